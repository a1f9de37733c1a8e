//! A real Kubernetes for tests: an API server with its controllers ([`ApiServer`]), and a real node
//! that runs Pods ([`node::Node`]).
//!
//! A mock of the API server would only repeat this project's assumptions. Schemas, defaults, CEL
//! rules, server-side apply, broken watches, garbage collection and RBAC are the API server's
//! behaviour, so tests use the real one.

pub mod access;
pub mod api_server;
pub mod audit;
mod certificates;
mod control_plane;
pub mod node;
pub mod picker;
pub mod programs;
mod workspace;

pub use access::Access;
pub use api_server::ApiServer;
pub use node::Node;
