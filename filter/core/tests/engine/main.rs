//! Compares the engine with its papers.

#[path = "../memory/mod.rs"]
mod memory;

mod response_time_controller;
