//! Delivery of policies to proxies that another control plane configures: objects that Istio and
//! Envoy Gateway read, and ConfigMaps that a Pod mounts.
//!
//! The xDS server programs proxies that were started for it. The proxies of a mesh or of a gateway
//! belong to another control plane, which accepts a filter only in an object of its own kind: a
//! `TrafficExtension`, a `WasmPlugin`, an `EnvoyFilter` or an `EnvoyExtensionPolicy`. Such an
//! object replaces the policy's path to the proxy. So all policies of one workload share one
//! object, as they do over xDS: Envoy creates a VM per configuration and worker.
//!
//! ```text
//! plan, cluster ─► workload ─► config_map | istio | envoy_gateway ─► objects wanted ─┐
//!                                                                                    ├─► difference ─► apply
//! our own objects, as the API server has them (observed) ────────────────────────────┘
//! ```
//!
//! The wanted objects are a pure function of the observed cluster. [`run`] compares them with a
//! watch of the objects that carry our labels and writes the differences; at rest it writes
//! nothing. It takes no field from another field manager and changes no object that it didn't
//! create. If a write isn't permitted, [`Delivered`] reports this for the policy's status.

pub mod apply;
pub mod clean_up;
pub mod config_map;
pub mod difference;
pub mod envoy_gateway;
mod fit;
pub mod istio;
pub mod istio_native;
mod leftovers;
mod mistaken;
pub mod object;
pub mod observed;
mod reconcile;
pub mod report;
mod run;
mod served;
pub mod settings;
#[cfg(test)]
mod tests;
mod unfetched;
pub mod wanted;
pub mod workload;

pub use object::{Adapter, Object};
pub use report::{Delivered, Delivery, NO_FILTER, ObjectState};
pub use run::{PlannedCluster, run};
pub use settings::{DeliverArgs, Settings};
pub use wanted::{Installed, Unwanted, Wanted, wanted};
