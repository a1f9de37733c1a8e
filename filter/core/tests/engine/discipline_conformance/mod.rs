//! What every queue discipline must do, and what tells each from all others.

// Of helpers outside of `#[test]` functions, clippy can't tell that they are tests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod edits;
mod order;
mod process;
mod safety;
mod shares;
