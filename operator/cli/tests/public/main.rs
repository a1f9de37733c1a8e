//! Tests of `headgate` from outside: the program, and the public items of its library.

#[path = "common/envoy.rs"]
mod envoy;
#[path = "common/program.rs"]
mod program;
#[path = "common/wire.rs"]
mod wire;

mod admin;
mod admission;
mod any_policy;
mod bad_policies;
mod cli;
mod cli_cluster;
mod cli_simulate;
mod cli_top;
mod common;
mod modules_server;
mod policies_any;
mod policies_bad;
mod policies_good;
mod proxies;
mod source_dir;
mod workloads_bad;
mod xds_bounds;
mod xds_envoy;
mod xds_envoy_tls;
mod xds_native;
mod xds_protocol;
mod xds_run;
mod xds_server;
mod xds_tls;
