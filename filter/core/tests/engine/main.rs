//! The engine against its papers and against the properties that every strategy and discipline has.

#[path = "../common/mod.rs"]
mod common;
#[path = "../memory/mod.rs"]
mod memory;

mod backlog_control;
mod bouncer_tables;
mod response_time_controller;
mod strategy_conformance;
