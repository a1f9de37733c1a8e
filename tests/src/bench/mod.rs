//! The benchmarks behind `scripts/bench`: Headgate's cost, and its benefit in overload.

pub mod agreement;
pub mod closed_loop;
pub mod cpu;
pub mod decision;
pub mod llm;
pub mod lock;
pub mod memory;
pub mod overload;
mod refusals;
pub mod scale;
pub mod slack_order;
pub mod throughput;
pub mod wild;
pub mod workflows;

use headgate_harness::{lab, native_filters, table};
