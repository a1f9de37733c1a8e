//! A simulated mesh: services of several processes that call each other, each process behind the
//! same engine as in Envoy.
//!
//! [`crate::simulation`] is one stage before one backend. Workflows ([`headgate_mesh::workflows`])
//! solve problems of requests that cross many services: work done at the first hop and lost at the
//! last, and a bottleneck that the entry can't see. The rates of workflows are sent in the opposite
//! direction of the calls. So a mesh has
//!
//! - [`graph`]: the services, and the work of each for a request of a workflow, as steps of
//!   computing and calling (one after the other or at once, once or many times) that make the
//!   execution DAG of Wisp §2;
//! - [`load`]: open-loop and closed-loop clients, which give up after a while;
//! - [`policy`]: the stage of a service's own policy, in front of its processes;
//! - `process`: a process of a service: its engine ([`headgate_mesh::Engine`]), with the workflows'
//!   rates if the run has them, and the threads on which it computes;
//! - [`clocks`]: the differences between the processes' clocks;
//! - [`world`]: the run. Discrete events (arrivals, ends of computing, answers, timeouts and ticks)
//!   are processed in the order of their times, and at the same time in the order in which they
//!   were scheduled;
//! - [`seen`]: the measurements of clients and processes;
//! - [`mod@file`] and [`study`]: a mesh from a file, and the effect of policies on its workflows.
//!
//! A request holds its slot from its start to the answer, while it computes and while it waits for
//! its own calls, as in a server with a thread for each request, and as in Envoy. A caller that
//! gives up sends no message. The called service finishes the request, unless requests carry
//! deadlines ([`Setup::deadlines`]). With deadlines, the next queue drops the request after the
//! end-to-end deadline, or after the time for which the caller waits.
//!
//! The model leaves out bandwidth and multiple workers of a proxy. Each process has one worker.

mod agenda;
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
