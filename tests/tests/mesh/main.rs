//! Tests on a mesh of Envoys.

mod run;
mod tiers;
mod wisp;
