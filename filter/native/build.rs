//! Keeps the library in the process after `dlclose`, because other libraries use its state
//! (`src/shared.rs`) and its thread runs its code.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-link-arg-cdylib=-Wl,-z,nodelete");
}
