//! A mesh in simulated time: services of several processes that call each other, each behind the engine that
//! decides in Envoy.
//!
//! [`crate::simulation`] is one stage before one backend. What workflows are about ([`headgate_core::workflows`])
//! only shows where a request crosses many: work that is done at the first hop and lost at the last, a bottleneck
//! that the entry point can't see, rates that travel against the calls. So a mesh has
//!
//! - [`graph`]: the services, and what each of them does for a request of a workflow, as steps of computing and
//!   calling (one after the other or at once, once or many times) that make the execution DAG of Wisp §2;
//! - [`load`]: clients, open or closed loop, who give up after a while;
//! - [`policy`]: what stands in front of a service: the stage of its own policy;
//! - `process`: a process of a service: its slots and queue ([`headgate_core::stage::Stage`]), the workflows'
//!   rates where the run has them, and the threads on which it computes;
//! - [`clocks`]: how far what the processes take for the time is apart;
//! - [`world`]: the run. Discrete events: arrivals, ends of computing, answers, timeouts and ticks, taken in the
//!   order of their time, of equal times in the order in which they came about;
//! - [`seen`]: what clients and processes saw;
//! - [`mod@file`] and [`study`]: a mesh that people write, and what a policy's workflows do for it.
//!
//! A slot is held from the stage's decision to the answer, while a request computes and while it waits for its
//! own calls, as in a server with a thread for each request, and as Envoy sees it. A caller that gives up says so
//! to nobody: what it asked for is worked on to the end, unless deadlines travel with the requests
//! ([`Setup::deadlines`]) and tell the next queue that it is pointless: that of the whole, and how long the
//! caller waits.
//!
//! What is left out: several workers of one proxy (each process has one), and bandwidth.

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
