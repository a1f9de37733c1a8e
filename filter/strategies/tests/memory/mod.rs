//! Test doubles for Envoy in memory: the part of a host that decisions read.
//!
//! They are not part of the library. `headgate-core` has those with metrics, requests and streams,
//! for itself and for the crates above it.
#![allow(dead_code, unused_imports)] // no test uses all of it

mod host;

pub(crate) use host::{Fault, Group, MemoryHost};

/// The id of a metric. A number is a gauge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MetricId(pub(crate) u32);

/// The kind of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MetricKind {
    Counter,
    Gauge,
    Histogram,
}
