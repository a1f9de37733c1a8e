//! Class admission of calls ([`headgate_admission`]): the class in which each call runs, and
//! the effect of its answer.
//!
//! A call requests the class that it names (header [`wire::CLASS`]), else the class of the request
//! that caused the call, else the first class that the call matches. Classes are those of the
//! called service's policy, so both sides agree. The header [`wire::CLASS`] also names the class of
//! a downgraded call to the called process. So the called process must trust this process.
//!
//! ```text
//! ℓ = time from the call to the start of its answer − time in the slot of the called process
//! ```
//!
//! A class's target excludes the service time, so an answer that doesn't report its service time
//! isn't a miss. A refusal for lack of room and the lack of an answer in time count as misses
//! without a service time, regardless of the call's size. If a service reports no times, as one
//! without Headgate, only these misses lower the probability, and its answers end windows and raise
//! it.
//!
//! If a server decides for all senders ([`super::central`]), the sender's own law is still updated,
//! because it is the fallback if the server doesn't answer.

use std::time::Duration;

use headgate_admission::{ChannelLaw, Completion};
use headgate_core::classify::{Classes, RequestView};
use headgate_core::config::{ConfigError, OutboundConfig, ServiceAdmissionConfig};
use headgate_core::host::{Host, MetricId, MetricKind, Metrics};
use headgate_core::stats;
use headgate_strategies::host::HostError;
use headgate_strategies::request::ClassId;
use headgate_strategies::rng::Rng;
use headgate_strategies::time::Instant;
use headgate_strategies::{rng, work};

use super::central::{Central, Reports};
use crate::channels::SharedChannels;
use crate::workflows::wire::Spent;
use crate::workflows::{stat_name, wire};

/// The header with a call's size.
const COST: &str = "x-headgate-cost";

/// The services whose classes have targets.
#[derive(Debug)]
pub(crate) struct Admission {
    services: Vec<Service>,
    rng: Rng,
    /// The schedule of reports, if a server decides for at least one service.
    pub(crate) reports: Option<Reports>,
}

#[derive(Debug)]
struct Service {
    name: String,
    /// The names of the classes.
    classes: Vec<String>,
    rules: Classes,
    channels: SharedChannels,
    /// The server's decisions, if a server decides.
    central: Option<Central>,
    enforced: bool,
    /// Stats by class, without the lowest.
    stats: Vec<ClassStats>,
}

#[derive(Debug, Clone, Copy)]
struct ClassStats {
    /// The number of calls that requested the class.
    calls: MetricId,
    /// The number of these calls that ran in the lowest class instead. In a dry run, the number
    /// that would have.
    downgraded: MetricId,
    /// The gauge with the admit probability · 1000.
    admit: MetricId,
}

/// A call to a service whose classes have targets.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Admitted {
    service: usize,
    began: Instant,
    /// The class that the call requested, if the call runs in another class.
    wanted: Option<ClassId>,
    class: ClassId,
    size: u32,
}

/// The outcome of a call according to its answer.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Heard {
    /// The call was refused for lack of room, or not answered in time.
    Failed,
    /// The called application answered, and the answer reports no times.
    Untimed,
    /// The queue wait and the time in the slot.
    Spent(Spent),
}

/// Returns a part of the names of a service's numbers. It differs between services, unlike
/// [`stat_name`], which cuts long names.
fn key(service: &str) -> String {
    let part = stat_name(service.as_bytes());
    match part == service {
        true => part,
        false => format!("{part}-{:016x}", rng::hash(service.bytes())),
    }
}

impl ClassStats {
    fn new(host: &impl Metrics, service: &str, class: &str) -> Result<Self, HostError> {
        let metric =
            |kind, what: &str| host.define(kind, &format!("{service}.{what}.class.{class}"));
        Ok(Self {
            calls: metric(MetricKind::Counter, "calls")?,
            downgraded: metric(MetricKind::Counter, "calls_downgraded")?,
            admit: metric(MetricKind::Gauge, "admit_permille")?,
        })
    }
}

impl Service {
    fn new(
        host: &impl Host,
        (policy, name): (&str, &str),
        config: &ServiceAdmissionConfig,
    ) -> Result<Self, ConfigError> {
        let at = format!("outbound.class_admission.{name}");
        let of_host = |error: HostError| ConfigError::new(&at, error.to_string());
        let law = ChannelLaw::try_from(config.settings());
        let law = law.map_err(|error| ConfigError::new(&at, error.to_string()))?;
        let service = |part: &str| format!("{}.service.{part}", stats::prefix(policy));
        let prefix = service(&stat_name(name.as_bytes()));
        let key = service(&key(name));
        let classes: Vec<String> = config.classes.iter().map(|c| c.name.clone()).collect();
        let number = |class: ClassId| {
            let class = classes.get(usize::from(class.0)).map_or("", String::as_str);
            format!("{key}.admit.{class}")
        };
        let channels = SharedChannels::new(host, law, number).map_err(of_host)?;
        let promised = classes.iter().take(classes.len().saturating_sub(1));
        let stats = promised.map(|class| ClassStats::new(host, &prefix, class));
        let stats: Vec<ClassStats> = stats.collect::<Result<_, _>>().map_err(of_host)?;
        let shown = stats.iter().map(|stats| stats.admit);
        let central = Central::new(host, config, &key, shown).map_err(of_host)?;
        Ok(Self {
            rules: Classes::new(&config.classes)?,
            stats,
            enforced: config.enforced,
            channels,
            central,
            name: name.to_owned(),
            classes,
        })
    }

    /// Returns the class in which a call that requests `wanted` must run.
    fn decide(
        &self,
        host: &impl Host,
        now: Instant,
        wanted: ClassId,
        rng: &mut Rng,
    ) -> Result<ClassId, HostError> {
        let decided = match &self.central {
            Some(central) => central.class_for(host, now, wanted, rng)?,
            None => None,
        };
        match decided {
            Some(decided) => Ok(decided),
            None => self.channels.class_for(host, now, wanted, rng),
        }
    }

    /// Sets the gauges to the sender's own probabilities.
    fn show(&self, host: &impl Host, now: Instant) -> Result<(), HostError> {
        let admits_all = self
            .central
            .as_ref()
            .is_some_and(Central::falls_back_to_all);
        for (class, stats) in (0..).map(ClassId).zip(&self.stats) {
            let admit = match admits_all {
                true => 1.0,
                false => self.channels.probability(host, now, class)?,
            };
            host.record(stats.admit, permille(admit))?;
        }
        Ok(())
    }

    /// Returns the class of this name, or `None` if the service has no such class.
    fn class_of(&self, name: &[u8]) -> Option<ClassId> {
        let at = self.classes.iter().position(|n| n.as_bytes() == name)?;
        u8::try_from(at).ok().map(ClassId)
    }

    fn class_name(&self, class: ClassId) -> &str {
        self.classes
            .get(usize::from(class.0))
            .map_or("", String::as_str)
    }
}

impl Admission {
    /// Creates the admission for the services of `config` with class targets. Returns `None` if
    /// there are none. `seed` makes the admission's random decisions repeatable.
    ///
    /// # Errors
    /// [`ConfigError`] with the setting at fault, or with the host's refusal of a number.
    pub(crate) fn new(
        host: &impl Host,
        config: &OutboundConfig,
        seed: u64,
    ) -> Result<Option<Self>, ConfigError> {
        let of_host =
            |error: HostError| ConfigError::new("outbound.class_admission", error.to_string());
        let mut this = Self {
            services: Vec::new(),
            rng: Rng::new(seed.rotate_left(16)),
            reports: None,
        };
        let centrals = config.class_admission.values();
        let centrals = centrals.filter_map(|service| service.central.as_ref());
        if let Some(interval_us) = centrals.map(|central| central.report_us).min() {
            let reports = Reports::new(host, &config.policy, interval_us);
            this.reports = Some(reports.map_err(of_host)?);
        }
        for (name, service) in &config.class_admission {
            let service = Service::new(host, (&config.policy, name), service)?;
            // At time 0 no channel counts as idle, so the gauges get the stored probabilities. The
            // next call in a class updates the gauge of the class.
            let shown = service.show(host, Instant::default());
            shown.map_err(of_host)?;
            this.services.push(service);
        }
        Ok((!this.services.is_empty()).then_some(this))
    }

    /// Yields, for each service for which the server decides, the exchange with the server.
    pub(crate) fn centrals(&self) -> impl Iterator<Item = &Central> {
        self.services
            .iter()
            .filter_map(|service| service.central.as_ref())
    }

    /// Sets the gauges of services without a server's decision in force to the sender's own
    /// probabilities. The time until which decisions hold is only read, because another worker may
    /// be writing a newer time.
    ///
    /// # Errors
    /// [`HostError`].
    pub(crate) fn show_fallbacks(&self, host: &impl Host, now: Instant) -> Result<(), HostError> {
        for service in &self.services {
            if let Some(central) = &service.central
                && !central.is_heard(host, now)?
            {
                service.show(host, now)?;
            }
        }
        Ok(())
    }

    /// Returns the index of a service, or `None` if the service has no class targets.
    pub(crate) fn service(&self, name: &str) -> Option<usize> {
        self.services
            .iter()
            .position(|service| service.name == name)
    }

    /// Decides the class in which `call` runs. `inherited` is the name of the class of the request
    /// that caused the call. Returns the admitted call and, if the call needs a header with its
    /// class, the name of the class.
    ///
    /// # Errors
    /// [`HostError`]. The caller then sends the call unchanged.
    pub(crate) fn admit(
        &mut self,
        host: &impl Host,
        now: Instant,
        service: usize,
        call: &impl RequestView,
        inherited: Option<&str>,
    ) -> Result<Option<(Admitted, Option<&str>)>, HostError> {
        let Some(of) = self.services.get(service) else {
            return Ok(None);
        };
        let own = call.header(wire::CLASS).and_then(|name| of.class_of(name));
        let named = own.or_else(|| of.class_of(inherited?.as_bytes()));
        let wanted = named.unwrap_or_else(|| of.rules.class(call));
        let decided = of.decide(host, now, wanted, &mut self.rng)?;
        let is_downgraded = decided != wanted;
        if let Some(stats) = of.stats.get(usize::from(wanted.0)) {
            host.add(stats.calls, 1)?;
            if is_downgraded {
                host.add(stats.downgraded, 1)?;
            }
        }
        let is_downgraded = is_downgraded && of.enforced;
        let admitted = Admitted {
            service,
            began: now,
            wanted: is_downgraded.then_some(wanted),
            class: if is_downgraded { decided } else { wanted },
            size: call.header(COST).and_then(work::cost).unwrap_or(1),
        };
        // A class found by matches needs no header, because the service finds the same one.
        let is_set = is_downgraded || named.is_some();
        Ok(Some((
            admitted,
            is_set.then(|| of.class_name(admitted.class)),
        )))
    }

    /// Returns the class that a call requested, or `None` if the call ran in that class.
    pub(crate) fn downgraded(&self, call: &Admitted) -> Option<&str> {
        let service = self.services.get(call.service)?;
        Some(service.class_name(call.wanted?))
    }

    /// Records the answer to a call.
    ///
    /// # Errors
    /// [`HostError`]. The call then may not count.
    pub(crate) fn answered(
        &mut self,
        host: &impl Host,
        now: Instant,
        call: &Admitted,
        heard: Heard,
    ) -> Result<(), HostError> {
        let Some(of) = self.services.get(call.service) else {
            return Ok(());
        };
        let completion = Completion {
            class: call.class,
            latency: match heard {
                Heard::Failed => Duration::MAX,
                Heard::Untimed => Duration::ZERO,
                Heard::Spent(spent) => now.since(call.began).saturating_sub(spent.slot),
            },
            size: call.size,
        };
        let changed = of.channels.completed(host, now, &completion)?;
        if let Some(central) = &of.central {
            let missed = of.channels.law().missed(&completion);
            match heard {
                Heard::Failed => central.completed(host, &completion, missed, None)?,
                // The server averages times, and this answer has none.
                Heard::Untimed => {}
                Heard::Spent(spent) => {
                    central.completed(host, &completion, missed, Some(spent.wait))?;
                }
            }
            if central.falls_back_to_all() || central.is_heard(host, now)? {
                return Ok(());
            }
        }
        match changed.zip(of.stats.get(usize::from(call.class.0))) {
            Some((admit, stats)) => host.record(stats.admit, permille(admit)),
            None => Ok(()),
        }
    }
}

pub(crate) fn permille(probability: f64) -> u64 {
    (probability * 1e3).round() as u64
}
