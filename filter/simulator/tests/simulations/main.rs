//! Tests of expected results of simulations.

mod controllers;
mod mesh;
mod strategies;
