//! A packet-level model of hosts around one switch, the network on which Aequitas was evaluated.
//!
//! Aequitas controls the queue in front of a switch's port, in which calls wait for microseconds.
//! Requests through a proxy take milliseconds. So the experiments with Aequitas need a network:
//! senders with congestion windows (`transport`), a weighted fair queue in front of each host
//! (`port`), and calls of several classes (`traffic`). [`run`] lets one of the class admission
//! algorithms of the engine decide the class in which each call runs.
//!
//! The model is that of the simulator of Aequitas, from which the paper's numbers come. The model
//! has no queues at senders (a window's packets reach the switch at once), only one switch, and no
//! selective acknowledgements (a lost packet is sent again after a timeout). Messages of a central
//! server take no time.

mod port;
mod seen;
mod traffic;
mod transport;
mod world;

use std::num::NonZeroU32;
use std::time::Duration;

use headgate_admission::Scope;
use serde::{Deserialize, Deserializer};

pub use seen::{Sample, Seen};
pub use world::run;

/// The number of ps in a µs.
const MICROSECOND: u64 = 1_000_000;

/// The hosts, their calls, and the targets of the classes.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Setup {
    /// The number of hosts at the switch.
    pub hosts: u16,
    /// The pairs of hosts that call each other, and the times of the calls.
    pub pattern: Pattern,
    /// The size of a call, bytes, without headers.
    pub call_bytes: u32,
    /// The weights of a port's classes, the highest class first.
    pub weights: Vec<u32>,
    /// The percentage of calls that request each class, by sender. The last entry holds for all
    /// further senders.
    pub mixes: Vec<Vec<f64>>,
    /// The size of a port's buffer, bytes.
    pub buffer_bytes: u32,
    /// The targets of all classes except the lowest, µs.
    pub targets_us: Vec<u64>,
    /// The percentile at which the targets apply.
    pub percentile: f64,
    /// The length of the intervals in which calls are counted. In a data file, a number of ms.
    #[serde(deserialize_with = "millis")]
    pub interval: Duration,
}

/// A traffic pattern: the pairs of hosts that call each other, and the times of the calls.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(tag = "type", deny_unknown_fields)]
pub enum Pattern {
    /// Every host calls every other. In a burst, `calls` calls of each pair arrive as a Poisson
    /// process at `burst` times a link's bandwidth. Then nothing arrives for `idle` times the
    /// burst's duration.
    AllToAll {
        /// The load of a sender in a burst, over all its receivers, as a ratio of the bandwidth.
        burst: f64,
        /// The number of calls of a pair in a burst.
        calls: u32,
        /// The idle time, as a ratio of the burst's duration.
        idle: f64,
    },
    /// All hosts except the last call the last. Each sender's calls arrive as a Poisson process at
    /// `load` times a link's bandwidth.
    Incast {
        /// The load of each sender, as a ratio of the bandwidth.
        load: f64,
    },
}

/// The algorithm that decides the class in which a call runs.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(tag = "type", rename_all_fields = "camelCase", deny_unknown_fields)]
pub enum Method {
    /// No algorithm: each call runs in the class that it requests.
    None,
    /// [`headgate_admission::Distributed`].
    Distributed,
    /// [`headgate_admission::Misses`].
    Misses {
        /// T, the period. In a data file, a number of ms.
        #[serde(deserialize_with = "millis")]
        period: Duration,
        /// K, the number of misses allowed in a period.
        allowed: NonZeroU32,
        /// The calls whose misses are counted together.
        #[serde(default = "destination")]
        scope: Scope,
        /// Whether K applies to each sender at a receiver separately, rather than to all senders
        /// together.
        #[serde(default)]
        by_sender: bool,
    },
    /// [`headgate_admission::Incast`].
    Incast {
        /// w, the weight of the past.
        past: f64,
        /// The calls whose delays are averaged together.
        #[serde(default = "destination")]
        scope: Scope,
    },
}

/// Returns the scope of the paper.
const fn destination() -> Scope {
    Scope::Destination
}

fn millis<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    let seconds = f64::deserialize(from)? / 1e3;
    Duration::try_from_secs_f64(seconds).map_err(serde::de::Error::custom)
}
