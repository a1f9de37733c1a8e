//! Compares the engine with its papers, and with the properties that all strategies and disciplines
//! have.

#[path = "../common/mod.rs"]
mod common;
#[path = "../memory/mod.rs"]
mod memory;

mod backlog_control;
mod bouncer_tables;
mod response_time_controller;
mod strategy_conformance;
