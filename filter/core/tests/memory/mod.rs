//! Test doubles for Envoy in memory, for this crate and those that use it: a host, a stream and a
//! request.
//!
//! They are not part of the library. A crate includes this file by its path.
#![allow(dead_code, unused_imports)] // no crate uses all of it

#[path = "../../../strategies/tests/memory/host.rs"]
mod host;
mod metrics;
mod request;
mod stream;

use headgate_core::host::{MetricId, MetricKind};

pub(crate) use host::{Fault, Group, MemoryHost};
pub(crate) use request::MemoryRequest;
pub(crate) use stream::{MemoryStream, pairs};
