//! The xDS server, which sends every proxy its filter configuration and records the proxy's
//! answers.
//!
//! Envoy's *extension config discovery* (ECDS) replaces one HTTP filter's configuration on a live
//! listener without affecting connections. So an edit of an admission policy is enforced in
//! milliseconds, and a bad edit leaves the last good configuration in place. The alternative is to
//! own the whole listener through LDS. Headgate would then be responsible for everything else that
//! users configure in the listener.
//!
//! ```text
//! watch<Plan> ───┐
//!                ├─► watch<Snapshot> ─► stream ─► DiscoveryResponse, one in flight a stream
//! watch<Modules>─┘                           │ ACK, NACK
//!                                            ▼
//!                                        registry ─► status, metrics, log
//! ```
//!
//! `listen` accepts connections, over TLS if [`tls`] has certificates. [`peer`] decides which
//! claims a proxy's certificate or token permits. `sotw` is the protocol's state machine, without
//! I/O. `stream` drives it, and `service` exposes it as a gRPC service. Nothing is queued for a
//! slow proxy. A stream has at most one unanswered response. After the answer, the proxy is
//! compared with the newest snapshot, not with those in between.
//!
//! State of the world is the only supported variant. Each slot is one resource on its own stream,
//! so delta xDS would save nothing. ADS would require an Envoy without another control plane.

mod admission;
pub mod certificate;
pub mod digest;
pub mod files;
pub mod http_server;
mod in_use;
mod limits;
mod listen;
pub mod metrics;
pub mod module;
pub mod node;
mod older;
pub mod peer;
pub mod proxy;
mod quota;
pub mod random;
pub mod registry;
pub mod resource;
pub mod review;
mod server;
mod service;
pub mod snapshot;
mod sotw;
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
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The name of the filter slot that `headgate bootstrap` writes.
pub const DEFAULT_SLOT: &str = "headgate";
/// The name of the slot in the listener for the backend's own calls.
pub const OUTBOUND_SLOT: &str = "headgate-outbound";

/// Returns the direction of a filter slot of this name. It is outbound, for the backend's own
/// calls, if the name begins with [`OUTBOUND_SLOT`]. Otherwise it is inbound, for requests to the
/// backend.
pub fn direction(name: &str) -> Direction {
    match name.starts_with(OUTBOUND_SLOT) {
        true => Direction::Outbound,
        false => Direction::Inbound,
    }
}

/// Whether a filter slot with this name belongs to Headgate. A proxy may have several such slots,
/// one for each listener.
pub fn is_headgate_slot(name: &str) -> bool {
    name.starts_with(DEFAULT_SLOT)
}
