//! Delivery of policies to proxies that another control plane configures, in objects that Istio and
//! Envoy Gateway read, and in ConfigMaps that Pods mount.
//!
//! The xDS server programs proxies whose bootstrap names it. The proxies of a mesh or a gateway
//! belong to another control plane, which accepts a filter only in an object of one of its own
//! kinds: `TrafficExtension`, `WasmPlugin`, `EnvoyFilter` or `EnvoyExtensionPolicy`. Such an object
//! takes the place of the xDS stream. All policies of a workload share one object, like one
//! configuration over xDS, because Envoy creates a VM per configuration and worker.
//!
//! ```text
//! plan, cluster ─► workload ─► config_map | istio | envoy_gateway ─► objects wanted ─┐
//!                                                                                    ├─► difference ─► apply
//! our own objects, as the API server has them (observed) ────────────────────────────┘
//! ```
//!
//! The wanted objects are a pure function of the observed cluster. [`run`] watches the objects with
//! Headgate's labels, compares them with the wanted objects, and writes the differences. Without
//! differences it writes nothing. It takes no field from another field manager, and changes no
//! object that it didn't create. If a write isn't permitted, [`Delivered`] reports this for the
//! policy's status.
//!
//! The observed [`cluster`] is plain data, which [`watch`](mod@watch) and [`read`] make of the API
//! server's objects. The controller makes its plan of the same data.

mod adapter;
pub mod apply;
pub mod clean_up;
pub mod cluster;
pub mod config_map;
pub mod difference;
pub mod envoy_gateway;
mod fit;
pub mod http_client;
mod installed;
pub mod istio;
pub mod istio_native;
mod leftovers;
mod mistaken;
pub mod object;
pub mod observed;
pub mod read;
pub mod readable;
mod reconcile;
pub mod report;
mod run;
mod served;
pub mod settings;
#[cfg(test)]
mod tests;
mod unfetched;
pub mod wanted;
pub mod watch;
pub mod workload;

pub use adapter::Adapter;
pub use cluster::PlannedCluster;
pub use installed::Installed;
pub use object::Object;
pub use report::{Delivered, Delivery, NO_FILTER, ObjectState};
pub use run::run;
pub use settings::{DeliverArgs, Settings};
pub use wanted::{Unwanted, Wanted, wanted};
