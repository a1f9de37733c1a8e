//! Policies for proxies whose configuration somebody else writes: objects that Istio and Envoy
//! Gateway read, and ConfigMaps that a Pod mounts.
//!
//! The xDS server programs proxies that were started for it. The proxies of a mesh or of a gateway
//! belong to another control plane, which takes a filter only in an object of its own kind: a
//! `TrafficExtension`, a `WasmPlugin` or an `EnvoyFilter`, an `EnvoyExtensionPolicy`. Such an
//! object replaces the policy's path to the proxy, so all policies of one workload go into one, as
//! they do over xDS: Envoy makes a VM per configuration and worker.
//!
//! ```text
//! plan, cluster ─► workload ─► config_map | istio | envoy_gateway ─► objects wanted ─┐
//!                                                                                    ├─► difference ─► apply
//! our own objects, as the API server has them (observed) ────────────────────────────┘
//! ```
//!
//! What is wanted is a pure function of what was seen. [`run`] compares it with a watch of the
//! objects that carry our labels and writes what differs: nothing at rest. It takes no field from
//! another field manager and touches no object that it didn't make; where it may not write,
//! [`Delivered`] says so for the policy's status.

pub mod apply;
pub mod config_map;
pub mod difference;
pub mod envoy_gateway;
#[cfg(test)]
mod example;
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
pub mod wanted;
pub mod workload;

pub use object::{Adapter, Object};
pub use report::{Delivered, Delivery, NO_FILTER, State};
pub use run::{View, run};
pub use settings::{DeliverArgs, Settings};
pub use wanted::{Installed, Unwanted, Wanted, wanted};
