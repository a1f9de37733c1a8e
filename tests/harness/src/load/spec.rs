//! The specification of a load.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};

use crate::mix::QueryType;

/// A whole load. Durations in its JSON form are in ms.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoadSpec {
    /// The address to connect to.
    pub target: SocketAddr,
    /// Additional addresses. New connections go to all addresses in turn.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub more_targets: Vec<SocketAddr>,
    /// HTTP version.
    #[serde(default)]
    pub protocol: Protocol,
    /// The `Host` or `:authority` header.
    #[serde(default = "default_authority")]
    pub authority: String,
    /// The requests, and their proportions.
    pub types: Vec<RequestType>,
    /// Arrival rates, one after another.
    pub phases: Vec<Phase>,
    /// Clients that wait for each answer before they send again. With clients, all phases must have
    /// rate 0.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clients: Vec<Clients>,
    /// Seed of the arrival times and of the sequence of types. Equal seeds give equal schedules.
    #[serde(default = "default_seed")]
    pub seed: u64,
    /// Time before totals count. Earlier arrivals are sent and appear in the series.
    #[serde(default, with = "millis")]
    pub warmup: Duration,
    /// Width of a point of the series.
    #[serde(default = "default_bin", with = "millis")]
    pub bin: Duration,
    /// The largest number of requests that may await an answer. An arrival beyond this number is
    /// counted, not sent.
    #[serde(default = "default_max_outstanding")]
    pub max_outstanding: usize,
    /// The number of connections opened before the first request. HTTP/1.1 opens more as needed,
    /// and HTTP/2 shares these.
    #[serde(default = "default_connections")]
    pub connections: usize,
    /// The time for which answers are awaited after the last arrival.
    #[serde(default = "default_drain", with = "millis")]
    pub drain: Duration,
    /// Whether an `x-seq` header numbers requests in the order of arrival.
    #[serde(default)]
    pub sequence: bool,
}

/// The HTTP version of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// HTTP/1.1, one request at a time on a connection.
    #[default]
    Http1,
    /// HTTP/2 without TLS, with prior knowledge.
    Http2,
}

/// One kind of request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RequestType {
    /// Name in the report.
    pub name: String,
    /// Weight among the arrivals, relative to the other types.
    pub share: f64,
    /// HTTP method.
    #[serde(default = "default_method")]
    pub method: String,
    /// The path, with the query if it has one.
    pub path: String,
    /// Additional headers.
    #[serde(default)]
    pub headers: Vec<(String, String)>,
    /// The body of the request. Empty for none.
    #[serde(default)]
    pub body: String,
    /// The distribution of the service times. Each request carries its own service time in a header
    /// that the backend obeys (`x-backend-service-us`). So the whole work of a load is known in
    /// advance (see [`schedule`](super::schedule())).
    #[serde(default)]
    pub service: Option<ServiceTime>,
    /// Objective for the median, reported beside the measured median.
    #[serde(default, with = "optional_millis")]
    pub p50: Option<Duration>,
    /// Objective for the 90th percentile. Answers within it are goodput.
    #[serde(default, with = "optional_millis")]
    pub p90: Option<Duration>,
    /// The time after which the client closes the connection (with HTTP/2: resets the stream) if
    /// there is no answer.
    #[serde(default, with = "optional_millis")]
    pub abort_after: Option<Duration>,
    /// The number of further attempts for a request that failed, was refused, or whose client left.
    /// Each attempt is sent at once, with `x-envoy-attempt-count`. Ignored in a closed loop.
    #[serde(default)]
    pub retries: u32,
}

/// Lognormal service times.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceTime {
    /// Mean service time.
    #[serde(with = "millis")]
    pub mean: Duration,
    /// Median service time, below the mean.
    #[serde(with = "millis")]
    pub median: Duration,
}

/// A span of time with a constant arrival rate.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Phase {
    /// The length of the span.
    #[serde(with = "millis")]
    pub duration: Duration,
    /// Mean arrivals per second over all types. 0 is a pause.
    pub rate: f64,
}

/// Clients that wait for each answer before they send again.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Clients {
    /// The number of clients.
    pub count: usize,
    /// The time of the first request, after the start of the load.
    #[serde(default, with = "millis")]
    pub from: Duration,
    /// The time of the last request, after the start of the load.
    #[serde(with = "millis")]
    pub until: Duration,
    /// Pause after an answer.
    #[serde(default, with = "millis")]
    pub think: Duration,
}

impl LoadSpec {
    /// Returns a load of `types` at one `rate` (req/s) for `duration`, with the defaults for
    /// everything else.
    pub fn new(target: SocketAddr, types: Vec<RequestType>, rate: f64, duration: Duration) -> Self {
        Self {
            target,
            more_targets: Vec::new(),
            protocol: Protocol::default(),
            authority: default_authority(),
            types,
            phases: vec![Phase { duration, rate }],
            clients: Vec::new(),
            seed: default_seed(),
            warmup: Duration::ZERO,
            bin: default_bin(),
            max_outstanding: default_max_outstanding(),
            connections: default_connections(),
            drain: default_drain(),
            sequence: false,
        }
    }

    /// Returns a load of a mix of query types at one `rate` (req/s) for `duration`.
    pub fn for_mix(target: SocketAddr, mix: &[QueryType], rate: f64, duration: Duration) -> Self {
        Self::new(
            target,
            mix.iter().map(RequestType::from).collect(),
            rate,
            duration,
        )
    }

    /// Makes each request carry a service time of its type in `mix`, whose order is that of
    /// [`for_mix`](Self::for_mix). The times are the same in each run, in Envoy and in the
    /// simulator.
    pub fn carry_service_times(&mut self, mix: &[QueryType]) {
        for (kind, query) in self.types.iter_mut().zip(mix) {
            let (mean, median) = (query.mean, query.median);
            kind.service = Some(ServiceTime { mean, median });
        }
    }

    /// Returns the time from the first to the last possible arrival.
    pub fn duration(&self) -> Duration {
        let phases = self.phases.iter().map(|p| p.duration).sum();
        self.clients
            .iter()
            .map(|c| c.until)
            .fold(phases, Duration::max)
    }

    /// Checks the specification.
    ///
    /// # Errors
    /// If a field is invalid. The error names the first such field.
    pub(super) fn check(&self) -> Result<()> {
        if self.types.is_empty() || self.phases.is_empty() && self.clients.is_empty() {
            bail!("types and phases: give at least one of each");
        }
        if !self.clients.is_empty() && self.phases.iter().any(|p| p.rate > 0.0) {
            bail!("clients and phases: a load is a closed loop or an open one; give two loads");
        }
        if let Some(t) = self
            .types
            .iter()
            .find(|t| !(t.share.is_finite() && t.share >= 0.0))
        {
            bail!(
                "types[{}].share: {}; give a number of at least 0",
                t.name,
                t.share
            );
        }
        let wrong = |s: &ServiceTime| s.median.is_zero() || s.median > s.mean;
        if let Some(t) = self
            .types
            .iter()
            .find(|t| t.service.as_ref().is_some_and(wrong))
        {
            bail!(
                "types[{}].service: give a median above 0 and at most the mean",
                t.name
            );
        }
        if self.types.iter().map(|t| t.share).sum::<f64>() <= 0.0 {
            bail!("types: all shares are 0; give at least one above 0");
        }
        if let Some(p) = self
            .phases
            .iter()
            .find(|p| !(p.rate.is_finite() && p.rate >= 0.0))
        {
            bail!("phases.rate: {}; give a number of at least 0", p.rate);
        }
        if self.bin.is_zero() || self.connections == 0 || self.max_outstanding == 0 {
            bail!("bin, connections, max_outstanding: 0; each must be above 0");
        }
        Ok(())
    }
}

impl RequestType {
    /// Returns a type of `GET` requests of `path`, with share 1 and no objectives.
    pub fn get(name: &str, path: &str) -> Self {
        Self {
            name: name.to_owned(),
            share: 1.0,
            method: default_method(),
            path: path.to_owned(),
            headers: Vec::new(),
            body: String::new(),
            service: None,
            p50: None,
            p90: None,
            abort_after: None,
            retries: 0,
        }
    }

    /// Returns the type with an additional header.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }
}

impl From<&QueryType> for RequestType {
    fn from(query: &QueryType) -> Self {
        Self {
            share: query.share,
            p50: Some(query.p50),
            p90: Some(query.p90),
            ..Self::get(query.name, query.path)
        }
    }
}

fn default_authority() -> String {
    "headgate.test".to_owned()
}

fn default_method() -> String {
    "GET".to_owned()
}

fn default_seed() -> u64 {
    1
}

fn default_bin() -> Duration {
    Duration::from_millis(500)
}

fn default_max_outstanding() -> usize {
    10_000
}

fn default_connections() -> usize {
    64
}

fn default_drain() -> Duration {
    Duration::from_secs(10)
}

/// Durations as ms in JSON.
mod millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
    pub(super) fn serialize<S: Serializer>(
        value: &Duration,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(value.as_secs_f64() * 1_000.0)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Duration, D::Error> {
        let ms = f64::deserialize(deserializer)?;
        Duration::try_from_secs_f64(ms / 1_000.0)
            .map_err(|e| D::Error::custom(format!("{ms} ms: {e}")))
    }
}

/// Optional durations as ms in JSON.
mod optional_millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(
        value: &Option<Duration>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        value
            .map(|d| d.as_secs_f64() * 1_000.0)
            .serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Duration>, D::Error> {
        let to_duration = |ms: f64| {
            Duration::try_from_secs_f64(ms / 1_000.0)
                .map_err(|e| D::Error::custom(format!("{ms} ms: {e}")))
        };
        Option::<f64>::deserialize(deserializer)?
            .map(to_duration)
            .transpose()
    }
}
