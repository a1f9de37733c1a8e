//! Compares the strategies with their papers, and with the properties that all of them have.

#[path = "../common/mod.rs"]
mod common;
#[path = "../memory/mod.rs"]
mod memory;

mod backlog_control;
mod bouncer_tables;
mod strategy_conformance;
