//! The xDS server: sends every proxy its filter configuration and records its answers.
//!
//! Envoy's *extension config discovery* (ECDS) replaces one HTTP filter's configuration on a live
//! listener without touching connections. An admission policy needs exactly that: an edit is
//! enforced in milliseconds, and a bad one leaves the last good one in place. The obvious
//! alternative, owning the whole listener through LDS, would make Headgate responsible for
//! everything else that users configure in the listener.
//!
//! ```text
//! watch<Plan> ───┐
//!                ├─► watch<Snapshot> ─► stream ─► DiscoveryResponse, one in flight a stream
//! watch<Modules>─┘                           │ ACK, NACK
//!                                            ▼
//!                                        registry ─► status, metrics, log
//! ```
//!
//! `listen` accepts connections, over TLS if [`tls`] has certificates for it, and [`peer`] says
//! which claims a proxy's certificate permits. [`sotw`] is the protocol's state machine and does no
//! I/O; [`stream`] drives it, and [`service`] exposes it as a gRPC service. Nothing is queued for a
//! slow proxy. A stream has at most one unanswered response. The answer is followed by a comparison
//! with the newest snapshot, not with the ones in between.
//!
//! State of the world is the only variant: a slot is one resource of a stream of its own, so delta
//! would save nothing, and ADS needs an Envoy without another control plane.

mod admission;
pub mod conditions;
mod limits;
mod listen;
pub mod module;
pub mod node;
mod older;
pub mod peer;
pub mod proxy;
pub mod registry;
pub mod resource;
mod server;
mod service;
pub mod snapshot;
pub mod sotw;
pub mod status;
mod stream;
pub mod tally;
mod tenants;
pub mod timestamp;
pub mod tls;

use headgate_core::config::Direction;

pub use admission::AdmissionServer;
pub use limits::Limits;
pub use server::Server;

/// The type URL of ECDS resources.
pub const ECDS_TYPE_URL: &str = "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig";

/// The version of this program.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The name of the filter slot that `headgate bootstrap` writes.
pub const DEFAULT_SLOT: &str = "headgate";
/// The slot of the listener for the calls of the process behind the proxy.
pub const OUTBOUND_SLOT: &str = "headgate-outbound";

/// Returns the direction of a filter slot of this name: outbound (calls of the process behind the
/// proxy) if it begins with [`OUTBOUND_SLOT`], else inbound (requests to the process).
#[must_use]
pub fn direction(name: &str) -> Direction {
    match name.starts_with(OUTBOUND_SLOT) {
        true => Direction::Outbound,
        false => Direction::Inbound,
    }
}

/// Whether Headgate fills the filter slot of this name. A proxy may have several, one for each
/// listener.
#[must_use]
pub fn is_headgate_slot(name: &str) -> bool {
    name.starts_with(DEFAULT_SLOT)
}
