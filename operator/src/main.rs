//! headgate
fn main() {}
