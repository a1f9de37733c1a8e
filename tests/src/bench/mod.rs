//! The benchmarks behind `scripts/bench`: what Headgate costs, and what it is worth in overload.

pub mod lab;
pub mod native_filters;
pub mod overload;
pub mod table;
