//! What simulations must show.

mod mesh;
mod strategies;
mod sysid;
