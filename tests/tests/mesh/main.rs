//! Tests of workflows on a mesh of Envoys.

mod wisp;
