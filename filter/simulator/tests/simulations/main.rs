//! What simulations must show.

mod aequitas;
mod closed_loops;
mod mesh;
mod strategies;
mod sysid;
