//! A mesh on one machine: any number of service processes, each behind its own real Envoy.
//!
//! Wisp's claims are about many processes that communicate only with their neighbours, so a test of
//! Wisp needs many processes. One proxy in front of one backend can't show that work is refused at
//! the first hop instead of being lost at the last. A [`Topology`] defines, in YAML, the services,
//! the work of their requests, and the policies. A [`Mesh`] runs a topology on the loopback
//! interface. Capacity comes from slots and sleeping rather than CPU, so the eight proxies of a
//! scaled-down Azure Storage (Wisp §6, Figure 6) fit on two cores.
//!
//! ```text
//! clients ─► inbound ─► service ─► outbound ─► inbound ─► service …
//!            └─── Envoy of fe-1 ────┘          └── Envoy of ps-2
//! ```
//!
//! Every number that a test asserts is measured at the ends: by clients ([`drive`]) and by services
//! ([`service::ServiceStats`]). The proxies' own stats are only compared with these numbers.

pub mod drive;
pub mod ports;
mod runner;
pub mod service;
mod sidecar;
pub mod topology;

pub use runner::{Mesh, Node, Options, Slots};
pub use topology::Topology;
