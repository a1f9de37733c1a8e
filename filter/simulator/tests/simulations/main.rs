//! What simulations must show.

mod closed_loops;
mod mesh;
mod strategies;
mod sysid;
