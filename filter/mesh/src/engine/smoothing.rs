//! The delay of calls while the called service refuses others ([`crate::smoothing`]).
//!
//! The sidecar acts as the client of Chronos §3.2 on behalf of its application. It reads the
//! rejection rate p from the answers of a service, and delays the next calls to the service with
//! probability p. The latest p counts. Each answer reports the p of the process that answered, and
//! the ratio of delayed calls is linear in p. So over many calls, the ratio of delayed calls is the
//! mean of the p of all processes, weighted by calls. Each worker uses the answers to its own
//! calls.
//!
//! A delayed call holds no slot, and workflows and class admission don't count it before it is
//! sent. In its request's progress, the delay is part of the call's time. A call whose deadline is
//! shorter than the delay isn't delayed, and the number of delayed calls is bounded.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use headgate_core::classify::RequestView;
use headgate_core::config::{ConfigError, OutboundConfig, SmoothingConfig};
use headgate_core::deadline::{lower, own_deadline};
use headgate_core::decision::Action;
use headgate_core::host::{Host, MetricId, MetricKind, Metrics};
use headgate_core::stats;
use headgate_strategies::host::HostError;
use headgate_strategies::rng::Rng;
use headgate_strategies::time::Instant;

use super::Mesh;
use super::admission::permille;
use crate::Engine;
use crate::smoothing::Smoothing;
use crate::workflows::stat_name;

/// The maximum number of delayed calls in a worker. Further calls are sent without a delay.
const MAX_HELD: usize = 4096;
/// The time without an answer after which a rejection rate is outdated. The rate covers the
/// service's last two periods, of 1 s unless configured otherwise.
const STALE: Duration = Duration::from_secs(10);
/// The name in stats of all services that the configuration doesn't name.
const OTHER: &str = "_other";

/// The last rejection rates of services, under one configuration.
#[derive(Debug)]
pub(crate) struct Smoother {
    /// The services. Those that the configuration names have stats of their own.
    services: Vec<SmoothedService>,
    other: ServiceStats,
    rng: Rng,
}

/// The delays of calls to a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Smoothed {
    /// The index of the cluster's service.
    service: usize,
    law: Smoothing,
    /// Whether calls are delayed. If false, the calls that would be delayed are only counted.
    pub(crate) enforced: bool,
}

#[derive(Debug)]
struct SmoothedService {
    name: String,
    stats: ServiceStats,
    /// The last announced rejection rate, and the time of the announcement.
    announced: Option<(f64, Instant)>,
}

#[derive(Debug, Clone, Copy)]
struct ServiceStats {
    /// The number of calls that were delayed. In a dry run, the number that would have been
    /// delayed.
    delayed: MetricId,
    /// The sum of their delays, µs.
    delay_us: MetricId,
    /// The last announced rejection rate · 1000.
    rejection: MetricId,
}

/// Delayed calls, by stream.
#[derive(Debug, Default)]
pub(crate) struct Held(HashMap<u32, HeldCall>);

#[derive(Debug)]
struct HeldCall {
    since: Instant,
    /// The time at which the call is sent, or `None` once its [`Action::Send`] was issued.
    due: Option<Instant>,
}

impl ServiceStats {
    fn new(host: &impl Metrics, policy: &str, service: &str) -> Result<Self, ConfigError> {
        let prefix = stats::prefix(policy);
        let metric =
            |kind, what: &str| host.define(kind, &format!("{prefix}.service.{service}.{what}"));
        let defined = || {
            Ok::<_, HostError>(Self {
                delayed: metric(MetricKind::Counter, "calls_delayed")?,
                delay_us: metric(MetricKind::Counter, "calls_delay_us")?,
                rejection: metric(MetricKind::Gauge, "rejection_permille")?,
            })
        };
        defined().map_err(|error| ConfigError::new("outbound.smoothing", error.to_string()))
    }
}

impl Smoother {
    /// Returns the smoother of `config`, or `None` if smoothing is off. `seed` makes the smoother's
    /// random decisions repeatable.
    ///
    /// # Errors
    /// [`ConfigError`] if the host refuses a stat.
    pub(crate) fn new(
        host: &impl Host,
        config: &OutboundConfig,
        seed: u64,
    ) -> Result<Option<Self>, ConfigError> {
        if config.smoothing.is_none() && config.service_smoothing.is_empty() {
            return Ok(None);
        }
        let stats = |service: &str| ServiceStats::new(host, &config.policy, service);
        let delayed = config.services.iter();
        let delayed = delayed.filter(|(pattern, _)| range(config, Some(pattern)).is_some());
        let names: BTreeSet<&String> = delayed.map(|(_, name)| name).collect();
        let service = |name: &String| {
            Ok(SmoothedService {
                name: name.clone(),
                stats: stats(&stat_name(name.as_bytes()))?,
                announced: None,
            })
        };
        let services = names.into_iter().map(service);
        Ok(Some(Self {
            services: services.collect::<Result<_, ConfigError>>()?,
            other: stats(OTHER)?,
            rng: Rng::new(seed.rotate_left(48)),
        }))
    }

    /// Returns the delays of calls to the service `name`, in this range.
    pub(super) fn of(&mut self, name: &str, range: SmoothingConfig) -> Smoothed {
        let found = self.services.iter().position(|s| s.name == name);
        Smoothed {
            service: found.unwrap_or_else(|| {
                self.services.push(SmoothedService {
                    name: name.to_owned(),
                    stats: self.other,
                    announced: None,
                });
                self.services.len() - 1
            }),
            law: Smoothing {
                least: Duration::from_micros(range.least_us),
                most: Duration::from_micros(range.most_us),
            },
            enforced: range.enforced,
        }
    }

    /// Records a service's rejection rate.
    ///
    /// # Errors
    /// [`HostError`]. The gauge then isn't updated.
    pub(crate) fn heard(
        &mut self,
        host: &impl Metrics,
        now: Instant,
        smoothed: Smoothed,
        rate: f64,
    ) -> Result<(), HostError> {
        let Some(service) = self.services.get_mut(smoothed.service) else {
            return Ok(());
        };
        let shown = service
            .announced
            .replace((rate, now))
            .map(|(rate, _)| permille(rate));
        match shown == Some(permille(rate)) {
            true => Ok(()),
            false => host.record(service.stats.rejection, permille(rate)),
        }
    }

    /// Returns a call's delay and the counters for the delay, or `None` if the call isn't delayed.
    fn draw(&mut self, now: Instant, smoothed: Smoothed) -> Option<(Duration, ServiceStats)> {
        let service = self.services.get(smoothed.service)?;
        let (rate, _) = service.announced.filter(|(_, at)| now.since(*at) < STALE)?;
        let delay = smoothed.law.delay(rate, &mut self.rng)?;
        Some((delay, service.stats))
    }
}

impl Held {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.values().all(|call| call.due.is_none())
    }

    /// Removes a delayed call. Returns the time of the call's arrival, or `None` if the call was
    /// not delayed.
    pub(crate) fn take(&mut self, stream: u32) -> Option<Instant> {
        Some(self.0.remove(&stream)?.since)
    }

    /// Sends the calls whose delay has ended at `now`, or all calls if `now` is `None`.
    pub(crate) fn send(&mut self, now: Option<Instant>, actions: &mut Vec<Action>) {
        let ends = |due: &mut Instant| now.is_none_or(|now| *due <= now);
        let calls = self.0.iter_mut();
        let sent = calls.filter_map(|(&stream, call)| Some((call.due.take_if(ends)?, stream)));
        let mut sent: Vec<(Instant, u32)> = sent.collect();
        sent.sort_unstable();
        actions.extend(sent.into_iter().map(|(_, stream)| Action::Send { stream }));
    }
}

impl Mesh {
    /// Whether smoothing is on, enforced or in a dry run.
    pub fn smooths_calls(&self) -> bool {
        self.outbound.as_ref().is_some_and(|o| o.smoother.is_some())
    }

    /// Removes the call of `stream`, if the call is delayed.
    pub fn forget_call(&mut self, stream: u32) {
        self.held.0.remove(&stream);
    }
}

/// Decides whether a call to Envoy's `cluster` is delayed. If true, the call waits for an
/// [`Action::Send`] with its `stream`, and `set` lowers the deadlines in its headers by the delay.
/// If false, the caller sends the call at once, with [`super::call`]. `token` is as there.
///
/// # Errors
/// [`HostError`]. The call then isn't delayed.
pub fn delay(
    engine: &mut Engine,
    host: &impl Host,
    now: Instant,
    (stream, request, token): (u32, &impl RequestView, Option<&[u8]>),
    cluster: &str,
    actions: &mut Vec<Action>,
    set: impl FnMut(&'static str, &str),
) -> Result<bool, HostError> {
    if engine.is_idle() {
        // Without stages there are no ticks, so the call would never be sent.
        return Ok(false);
    }
    engine.be_member(host, now, actions)?;
    let mesh = engine.beside_mut();
    let drawn = mesh.outbound.as_mut().and_then(|outbound| {
        let smoothed = outbound.cluster(cluster).smoothed?;
        let (delay, stats) = outbound.smoother.as_mut()?.draw(now, smoothed)?;
        Some((delay, stats, smoothed.enforced))
    });
    let Some((delay, stats, enforced)) = drawn else {
        return Ok(false);
    };
    let of_request = token.and_then(|token| mesh.time_left(now, token));
    let mut left = own_deadline(request).into_iter().chain(of_request);
    if mesh.held.0.len() >= MAX_HELD || left.any(|left| left <= delay) {
        return Ok(false);
    }
    host.add(stats.delayed, 1)?;
    let delay_us = i64::try_from(delay.as_micros()).unwrap_or(i64::MAX);
    host.add(stats.delay_us, delay_us)?;
    if enforced {
        let call = HeldCall {
            since: now,
            due: Some(now + delay),
        };
        mesh.held.0.insert(stream, call);
        lower(request, delay, set);
    }
    Ok(enforced)
}

/// Returns the range of delays for the clusters that this pattern of `services` matches.
pub(super) fn range(config: &OutboundConfig, pattern: Option<&String>) -> Option<SmoothingConfig> {
    let own = pattern.and_then(|pattern| config.service_smoothing.get(pattern));
    own.copied().or(config.smoothing)
}
