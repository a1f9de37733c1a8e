//! Tests of the common behaviour of all queue disciplines, and of their differences.

// Clippy doesn't recognize helpers outside of `#[test]` functions as test code.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod edits;
#[path = "../../../core/tests/memory/mod.rs"]
mod memory;
mod order;
mod process;
mod safety;
mod shares;
