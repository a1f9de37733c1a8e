//! The parts that Headgate's commands share: the cluster and its operators, queried with the user's
//! rights, and the output for terminals and programs.

pub mod cluster;
pub mod output;
pub mod table;
