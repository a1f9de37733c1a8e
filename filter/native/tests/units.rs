//! The library's parts that need nothing of Envoy, whose functions a test program has not: their unit tests run here.
#![allow(dead_code, unreachable_pub)] // the library uses it

#[path = "../src/family.rs"]
mod family;
#[path = "../src/recovery.rs"]
mod recovery;
