//! Tests of expected results of simulations.

mod mesh;
mod strategies;
mod sysid;
