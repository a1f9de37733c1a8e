//! A mesh on one machine: any number of service processes, each behind a real Envoy of its own.
//!
//! Wisp's claims are about many processes that communicate only with their neighbours, so a test of
//! it needs many processes. One proxy in front of one backend can't show that work is refused at
//! the first hop instead of being lost at the last. A [`Topology`] says, in YAML, which services
//! exist, what their requests do and which policies apply; a [`Mesh`] runs it on loopback. Capacity
//! is slots and sleeping, not CPU, so that the eight proxies of a scaled-down Azure Storage (Wisp
//! §6, Figure 6) fit two cores.
//!
//! ```text
//! clients ─► inbound ─► service ─► outbound ─► inbound ─► service …
//!            └─── Envoy of fe-1 ────┘          └── Envoy of ps-2
//! ```
//!
//! Every number that a test asserts is measured at an end: by clients ([`drive`]), and by services
//! ([`service::ServiceStats`]). The proxies' own stats are only compared with it.

pub mod drive;
pub mod ports;
mod runner;
pub mod service;
mod sidecar;
pub mod topology;

pub use runner::{Mesh, Node, Options, Slots};
pub use topology::Topology;
