//! The common behaviour of all queue disciplines, and the differences between them.

// Of helpers outside of `#[test]` functions, clippy can't tell that they are tests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod edits;
#[path = "../../../core/tests/memory/mod.rs"]
mod memory;
mod order;
mod process;
mod safety;
mod shares;
