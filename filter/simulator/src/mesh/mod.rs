//! A mesh in simulated time: services of several processes that call each other, each behind the
//! engine that decides in Envoy.
//!
//! [`crate::simulation`] is one stage before one backend. The subject of workflows
//! ([`headgate_mesh::workflows`]) only shows if a request crosses many services: work that is done
//! at the first hop and lost at the last, a bottleneck that the entry point can't see, rates that
//! travel against the calls. So a mesh has
//!
//! - [`graph`]: the services, and the work of each for a request of a workflow, as steps of
//!   computing and calling (one after the other or at once, once or many times) that make the
//!   execution DAG of Wisp §2;
//! - [`load`]: clients, open or closed loop, who give up after a while;
//! - [`policy`]: the stage of a service's own policy, in front of its processes;
//! - `process`: a process of a service: its slots and queue ([`headgate_core::stage::Stage`]), the
//!   workflows' rates if the run has them, and the threads on which it computes;
//! - [`clocks`]: the differences between the processes' clocks;
//! - [`world`]: the run. Discrete events (arrivals, ends of computing, answers, timeouts and ticks)
//!   are taken in the order of their times; events of the same time in the order in which they were
//!   scheduled;
//! - [`seen`]: the measurements of clients and processes;
//! - [`mod@file`] and [`study`]: a mesh that people write, and the effect of policies on its
//!   workflows.
//!
//! A slot is held from the stage's decision to the answer, while a request computes and while it
//! waits for its own calls, as in a server with a thread for each request, and as Envoy sees it. A
//! caller that gives up sends no message: the called service finishes the request, unless deadlines
//! travel with the requests ([`Setup::deadlines`]). Then the next queue sees that the work is
//! pointless, by the end-to-end deadline or by the time that the caller waits.
//!
//! The model leaves out several workers of one proxy (each process has one), and bandwidth.

pub mod clocks;
pub mod file;
pub mod graph;
pub mod load;
pub mod policy;
mod process;
pub mod seen;
mod spans;
pub mod study;
pub mod world;

pub use clocks::Clocks;
pub use graph::{Calls, Count, Graph, Network, Route, Service, Step, Task, Workflow};
pub use load::{Arrivals, Item, Load};
pub use policy::{Policy, Setup};
pub use seen::{Ended, Ending, Sample, Seen};
pub use world::Run;
