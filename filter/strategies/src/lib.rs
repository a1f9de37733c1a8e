//! The algorithms that decide from numbers: admission strategies, queue disciplines, the search for
//! P, and the measurements behind them.
//!
//! Their inputs are a request's attributes, the state of its stage, the time and random numbers,
//! all as arguments. The table of requests, streams and stats are in `headgate-core`, which calls
//! the algorithms. State that several workers share is behind [`host::Shared`].

pub mod demand;
pub mod discipline;
mod histogram;
pub mod host;
#[cfg(test)]
#[path = "../tests/memory/mod.rs"]
mod memory;
pub mod parallelism;
pub mod reason;
pub mod request;
pub mod retries;
pub mod rng;
pub mod service_times;
pub mod shared;
pub mod strategy;
pub mod time;
pub mod window;
pub mod work;

use headgate_config as config;

/// The name by which files that other crates also include refer to this crate.
#[cfg(test)]
extern crate self as headgate_strategies;
