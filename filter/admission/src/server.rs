//! The server of centralized class admission. It has a state for each service, which is updated by
//! reports.
//!
//! ```text
//! report of process s on service d          d's state changes by its method: Misses or Incast
//! answer                                    for each class, the part of s' calls that runs in it
//! ```
//!
//! In the paper, each sender asks the server before each call. Here no call waits for the server.
//! The server answers each report with probabilities, by which the sender draws until its next
//! report. With [`Misses`] the probability is 0 or 1, and holds until the end of the period.
//!
//! State is bounded, regardless of the reports. The server keeps at most [`SERVICES`] services and,
//! for each service, the [`CHANNELS`] most recently used pairs of sender and class. All services
//! together have memory for at most [`CHANNELS_OF_ALL`] pairs. A new service counts for the
//! namespace of the sender that reported it first. Beyond a limit, services of the namespace with
//! the most services, or with the most pairs, are evicted. So the reports of one namespace don't
//! evict the services of others. The content of reports is trusted, because the server's TLS
//! authenticates the senders.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::num::NonZeroU32;
use std::time::Duration;

use headgate_config::ConfigError;
use headgate_strategies::request::ClassId;
use headgate_strategies::time::{Instant, nanos};

use crate::incast::Incast;
use crate::misses::Misses;
use crate::protocol::{
    ClassReport, Decision, Decisions, MAX_SERVICES, Method, Report, Rules, ServiceAnswer,
};
use crate::{ChannelLaw, Completion, Limits};

/// The maximum number of services.
const SERVICES: usize = 512;
/// The maximum number of pairs of sender and class of a service.
const CHANNELS: usize = 32_768;
/// The maximum number of pairs of all services for which there is memory, about 50 bytes each. A
/// service with [`CHANNELS`] pairs has memory for up to twice as many.
const CHANNELS_OF_ALL: usize = 16 * CHANNELS;
/// The idle time after which a service is forgotten.
const IDLE: Duration = Duration::from_secs(60);

/// The state of all services.
#[derive(Debug, Default)]
pub struct Server {
    /// The services by the hash of their name and rules. The hashes are keyed, so a sender can't
    /// construct a collision.
    services: HashMap<u64, Service>,
    hashes: RandomState,
}

#[derive(Debug)]
struct Service {
    /// The hash of the namespace of the sender that reported the service first.
    namespace: u64,
    used: Instant,
    algorithm: Algorithm,
}

#[derive(Debug)]
enum Algorithm {
    Misses(Misses<()>),
    /// [`Incast`], whose senders are identified by the hash of their process id.
    Incast(Box<Incast<u64, ()>>),
}

/// The reason why a report is invalid.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ReportError {
    /// The report has more than [`MAX_SERVICES`] services.
    #[error("services: {0} of them; at most {MAX_SERVICES}")]
    Services(usize),
    /// A service's rules are invalid.
    #[error("services[{at}].rules.{error}")]
    Rules {
        /// The index of the service.
        at: usize,
        /// The rule at fault.
        error: ConfigError,
    },
}

impl Server {
    /// Records a report, and returns the decisions for its sender. `namespace` is the sender's
    /// authenticated namespace. If it is `None`, a new service counts for the namespace in the
    /// service's own name.
    ///
    /// # Errors
    /// [`ReportError`]. The reports on the services before the one at fault are recorded.
    pub fn exchange<'a>(
        &mut self,
        now: Instant,
        namespace: Option<&str>,
        report: &'a Report<'_>,
    ) -> Result<Decisions<'a>, ReportError> {
        if report.services.len() > MAX_SERVICES {
            return Err(ReportError::Services(report.services.len()));
        }
        let sender = self.hashes.hash_one(&report.process);
        let mut services = Vec::with_capacity(report.services.len());
        for (at, of_service) in report.services.iter().enumerate() {
            // Serialization can't fail, because all keys are strings.
            let rules = serde_json::to_vec(&of_service.rules).unwrap_or_default();
            let key = self.hashes.hash_one((&of_service.service, rules));
            let known = self.services.get(&key);
            if known.is_none_or(|known| now.since(known.used) >= IDLE) {
                let algorithm = Algorithm::new(&of_service.rules);
                let algorithm = algorithm.map_err(|error| ReportError::Rules { at, error })?;
                let own = || of_service.service.split_once('/').map_or("", |(of, _)| of);
                let namespace = namespace.unwrap_or_else(own);
                let entry = Service {
                    namespace: self.hashes.hash_one(namespace),
                    used: now,
                    algorithm,
                };
                self.services.remove(&key);
                self.make_room(now);
                self.services.insert(key, entry);
            }
            let Some(entry) = self.services.get_mut(&key) else {
                continue;
            };
            entry.used = now;
            let algorithm = &mut entry.algorithm;
            let promised = of_service.rules.settings.targets_us.len();
            let classes = || (0..).map(ClassId).take(promised);
            let before = algorithm.capacity();
            for (class, reported) in classes().zip(&of_service.classes) {
                algorithm.take(now, sender, class, reported);
            }
            let has_grown = algorithm.capacity() > before;
            services.push(ServiceAnswer {
                service: of_service.service.as_ref().into(),
                classes: classes()
                    .map(|class| algorithm.decide(now, sender, class))
                    .collect(),
            });
            if has_grown {
                self.free_channels(now);
            }
        }
        Ok(Decisions { services })
    }

    /// Makes room for another service. Idle services are removed first. If there are none, services
    /// of the namespace with the most services are evicted.
    fn make_room(&mut self, now: Instant) {
        if self.services.len() < SERVICES {
            return;
        }
        self.forget_idle(now);
        if self.services.len() >= SERVICES {
            self.evict(|_| 1);
        }
    }

    /// Keeps the memory for the channels of all services within [`CHANNELS_OF_ALL`], as
    /// [`Server::make_room`] does the number of services.
    fn free_channels(&mut self, now: Instant) {
        if self.channels() > CHANNELS_OF_ALL {
            self.forget_idle(now);
        }
        while self.channels() > CHANNELS_OF_ALL {
            self.evict(|service| service.algorithm.capacity());
        }
    }

    fn channels(&self) -> usize {
        let services = self.services.values();
        services.map(|service| service.algorithm.capacity()).sum()
    }

    fn forget_idle(&mut self, now: Instant) {
        self.services
            .retain(|_, entry| now.since(entry.used) < IDLE);
    }

    /// Evicts the least recently used half of the services of the namespace whose services have the
    /// most of `taken`. So one search makes room for many insertions.
    fn evict(&mut self, taken: impl Fn(&Service) -> usize) {
        let mut of_namespace: HashMap<u64, (usize, Vec<(Instant, u64)>)> = HashMap::new();
        for (key, entry) in &self.services {
            let (sum, own) = of_namespace.entry(entry.namespace).or_default();
            *sum += taken(entry);
            own.push((entry.used, *key));
        }
        let most = of_namespace.into_values().max_by_key(|(sum, _)| *sum);
        let (_, mut most) = most.unwrap_or_default();
        most.sort_unstable();
        for (_, key) in most.iter().take(most.len().div_ceil(2)) {
            self.services.remove(key);
        }
    }
}

impl Algorithm {
    fn new(rules: &Rules) -> Result<Self, ConfigError> {
        let law = ChannelLaw::try_from(rules.settings.clone())?;
        let limits = Limits {
            channels: CHANNELS,
            idle: IDLE,
        };
        Ok(match rules.method {
            Method::Misses { allowed, period_us } => {
                let period = Duration::from_micros(period_us);
                Self::Misses(Misses::new(law, allowed, period, rules.scope, limits))
            }
            Method::Incast { smoothing } => {
                let incast = Incast::new(law, smoothing, rules.scope, limits)?;
                Self::Incast(Box::new(incast))
            }
        })
    }

    /// Returns the number of channels for which memory is allocated.
    fn capacity(&self) -> usize {
        match self {
            // One count for each class.
            Self::Misses(_) => 0,
            Self::Incast(state) => state.capacity(),
        }
    }

    fn take(&mut self, now: Instant, sender: u64, class: ClassId, reported: &ClassReport) {
        match self {
            Self::Misses(state) => state.missed(now, (), class, whole(reported.misses)),
            Self::Incast(state) => {
                if reported.failed > 0 {
                    state.failed(now, sender, (), class, whole(reported.failed));
                }
                if let Some(calls) = NonZeroU32::new(whole(reported.calls)) {
                    let mean = |sum: u64| Duration::from_micros(sum) / calls.get();
                    let round_trip = mean(reported.round_trip_us);
                    let completion = Completion {
                        class,
                        latency: round_trip.saturating_add(mean(reported.delay_us)),
                        size: whole(reported.missed),
                    };
                    state.completed_together(now, sender, (), &completion, round_trip, calls);
                }
            }
        }
    }

    fn decide(&mut self, now: Instant, sender: u64, class: ClassId) -> Decision {
        match self {
            Self::Misses(state) => {
                let is_admitted = state.class_for(now, (), class) == class;
                // The time is rounded up, so the decision ends with the last µs of the period.
                let left = || nanos(state.period_end(now).since(now)).div_ceil(1_000);
                Decision {
                    admit: f64::from(u8::from(is_admitted)),
                    for_us: (!is_admitted).then(left),
                }
            }
            Self::Incast(state) => Decision {
                admit: state.probability(now, sender, (), class),
                for_us: None,
            },
        }
    }
}

fn whole(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use proptest::prelude::*;

    use super::*;
    use crate::protocol::ServiceReport;
    use crate::{Distributed, Scope, Settings};

    const MISSES: Method = Method::Misses {
        allowed: NonZeroU32::MIN.saturating_add(4),
        period_us: 25_000,
    };

    fn at(us: u64) -> Instant {
        Instant::from_nanos(us * 1_000)
    }

    fn rules(method: Method) -> Rules {
        Rules {
            settings: Settings::new(vec![14, 25]),
            scope: Scope::Class,
            method,
        }
    }

    fn report(process: &str, service: &str, rules: &Rules, high: ClassReport) -> Report<'static> {
        Report {
            process: Cow::Owned(process.to_owned()),
            services: vec![ServiceReport {
                service: Cow::Owned(service.to_owned()),
                rules: Cow::Owned(rules.clone()),
                classes: vec![high],
            }],
        }
    }

    fn misses(misses: u64) -> ClassReport {
        ClassReport {
            misses,
            ..ClassReport::default()
        }
    }

    /// Reports to the server, and returns `admit` and `for_us` of its decisions for high and
    /// medium.
    fn ask(server: &mut Server, us: u64, report: &Report<'_>) -> [(f64, Option<u64>); 2] {
        let answer = server.exchange(at(us), None, report).unwrap();
        let classes = &answer.services[0].classes;
        [0, 1].map(|class: usize| (classes[class].admit, classes[class].for_us))
    }

    /// The first new field of a newer sender must not make its whole report invalid.
    #[test]
    fn fields_of_a_newer_sender_are_skipped() {
        let json = r#"{"process":"1","new":1,"services":[{"service":"ns/d","new":1,
            "rules":{"targets_us":[15000],"percentile":99,"increase":0.01,"decrease":0.01,
                     "min_probability":0.1,"scope":"Class","new":1,
                     "method":{"type":"Misses","allowed":5,"period_us":1000000,"new":1}},
            "classes":[{"misses":3,"new":1}]}]}"#;
        let report: Report<'_> = serde_json::from_str(json).unwrap();
        let answer = Server::default().exchange(Instant::default(), None, &report);
        assert_eq!(answer.unwrap().services.len(), 1);
        let said = serde_json::to_string(&report).unwrap();
        let method = r#""method":{"type":"Misses","allowed":5,"period_us":1000000}"#;
        assert!(said.contains(method), "{said}");
    }

    #[test]
    fn misses_of_all_senders_end_the_class_for_all_until_the_period_does() {
        let mut server = Server::default();
        let (rules, yes) = (rules(MISSES), (1.0, None));
        let say = |server: &mut Server, us, process, n| {
            ask(server, us, &report(process, "a/b", &rules, misses(n)))
        };
        assert_eq!(say(&mut server, 1_000, "1", 2), [yes, yes]);
        assert_eq!(say(&mut server, 2_000, "2", 2), [yes, yes]);
        let no = (0.0, Some(22_000));
        assert_eq!(say(&mut server, 3_000, "1", 1), [no, yes]);
        assert_eq!(
            say(&mut server, 24_000, "3", 0),
            [(0.0, Some(1_000)), yes],
            "who caused none"
        );
        assert_eq!(say(&mut server, 25_000, "1", 0), [yes, yes]);
        // Another service, and the same service under other rules, have no misses.
        for _ in 0..9 {
            say(&mut server, 25_001, "1", 9);
        }
        let other = report("1", "a/c", &rules, misses(0));
        assert_eq!(ask(&mut server, 25_002, &other), [yes, yes]);
        let mut strict = rules.clone();
        strict.method = Method::Misses {
            allowed: NonZeroU32::MIN,
            period_us: 25_000,
        };
        let other = report("1", "a/b", &strict, misses(0));
        assert_eq!(ask(&mut server, 25_002, &other), [yes, yes]);
    }

    proptest! {
        /// With `past` = 0 and reports of single calls, the server's probabilities equal those of
        /// the distributed algorithm.
        #[test]
        fn single_calls_without_a_past_are_the_distributed_algorithm(
            calls in prop::collection::vec(
                (0_usize..3, 0_u8..2, 1_u64..40, 1_u32..9, 0_u64..9_000),
                1..200,
            ),
        ) {
            let rules = rules(Method::Incast { smoothing: 0.0 });
            let law = ChannelLaw::try_from(rules.settings.clone()).unwrap();
            let (mut server, mut model) =
                (Server::default(), Distributed::new(law.clone(), Limits::default()));
            let mut us = 0;
            for (sender, class, latency, size, later) in calls {
                us += later;
                let call = Completion {
                    class: ClassId(class),
                    latency: Duration::from_micros(latency),
                    size,
                };
                model.completed(at(us), sender, &call);
                let one = ClassReport {
                    calls: 1,
                    delay_us: latency / 2,
                    round_trip_us: latency - latency / 2,
                    missed: if law.missed(&call) { size.into() } else { 0 },
                    ..ClassReport::default()
                };
                let mut given = report(&sender.to_string(), "a/b", &rules, ClassReport::default());
                given.services[0].classes.resize(2, ClassReport::default());
                given.services[0].classes[usize::from(class)] = one;
                let said = ask(&mut server, us, &given);
                for (class, said) in (0..).map(ClassId).zip(said) {
                    let expected = model.probability(at(us), sender, class);
                    prop_assert_eq!(said.0.to_bits(), expected.to_bits());
                }
            }
        }

        /// No report makes the server panic, or decide a value that isn't a probability.
        #[test]
        fn no_report_causes_a_panic_or_an_invalid_probability(
            numbers in prop::collection::vec(any::<u64>(), 6),
            classes in 0_usize..40,
            period_us in any::<u64>(),
            smoothing in prop_oneof![Just(f64::NAN), Just(1.0), 0.0..1.0],
            us in any::<u32>(),
        ) {
            let given = ClassReport {
                misses: numbers[0],
                calls: numbers[1],
                delay_us: numbers[2],
                round_trip_us: numbers[3],
                missed: numbers[4],
                failed: numbers[5],
            };
            let mut server = Server::default();
            let allowed = NonZeroU32::MIN;
            for method in [Method::Misses { allowed, period_us }, Method::Incast { smoothing }] {
                let mut report = report("1", "a/b", &rules(method), given);
                report.services[0].classes = vec![given; classes];
                for us in [us, us.saturating_add(1)] {
                    match server.exchange(at(us.into()), None, &report) {
                        Ok(answer) => {
                            for decision in &answer.services[0].classes {
                                prop_assert!((0.0..=1.0).contains(&decision.admit));
                            }
                        }
                        Err(error) => prop_assert!(
                            error.to_string().starts_with("services[0].rules.smoothing: "),
                            "{}", error
                        ),
                    }
                }
            }
        }
    }

    /// Ten thousand senders report every 100 ms. A tenth of them report a miss. Each sender keeps
    /// its own probability.
    #[test]
    fn ten_thousand_senders_have_each_their_own_state() {
        const SENDERS: u64 = 10_000;
        let mut server = Server::default();
        let rules = rules(Method::Incast { smoothing: 0.0 });
        for round in 0..10 {
            for sender in 0..SENDERS {
                let misses = sender % 10 == 0;
                let given = ClassReport {
                    calls: 1,
                    delay_us: if misses { 20 } else { 10 },
                    missed: misses.into(),
                    ..ClassReport::default()
                };
                let report = report(&sender.to_string(), "a/b", &rules, given);
                let [high, medium] = ask(&mut server, round * 100_000 + sender * 10, &report);
                let expected = if misses {
                    0.99 - 0.01 * round as f64
                } else {
                    1.0
                };
                assert!((high.0 - expected).abs() < 1e-9, "{high:?} in {round}");
                assert_eq!(medium, (1.0, None));
            }
        }
    }

    #[test]
    fn many_services_are_bounded_and_one_report_names_few() {
        let mut server = Server::default();
        let rules = rules(MISSES);
        for service in 0..2_000 {
            let report = report("1", &service.to_string(), &rules, misses(9));
            server.exchange(at(service), None, &report).unwrap();
            assert!(server.services.len() <= SERVICES);
        }
        let last = report("2", "1999", &rules, misses(0));
        assert_eq!(ask(&mut server, 2_000, &last)[0].0, 0.0);
        let first = report("2", "0", &rules, misses(0));
        assert_eq!(ask(&mut server, 2_001, &first)[0].0, 1.0);
        // The services of one namespace don't evict the service of another namespace.
        let theirs = report("1", "other/0", &rules, misses(9));
        server.exchange(at(2_002), None, &theirs).unwrap();
        for service in 0..2_000 {
            let flood = report("1", &format!("flood/{service}"), &rules, misses(9));
            server.exchange(at(2_003 + service), None, &flood).unwrap();
            assert!(server.services.len() <= SERVICES);
        }
        let theirs = report("2", "other/0", &rules, misses(0));
        assert_eq!(ask(&mut server, 4_003, &theirs)[0].0, 0.0);
        // Reports from a namespace with other rules for a service of another namespace don't evict
        // that service.
        let mut other_rules = rules.clone();
        for flood in 1..=2 * SERVICES as u64 {
            other_rules.settings.targets_us[0] = 1_000 + flood;
            let flooded = report("3", "other/0", &other_rules, misses(9));
            let now = at(5_000 + flood);
            server.exchange(now, Some("evil"), &flooded).unwrap();
            assert!(server.services.len() <= SERVICES);
        }
        assert_eq!(ask(&mut server, 7_000, &theirs)[0].0, 0.0);
        let mut many = first;
        many.services = vec![many.services[0].clone(); MAX_SERVICES + 1];
        let error = server
            .exchange(at(7_001), None, &many)
            .unwrap_err()
            .to_string();
        assert_eq!(error, "services: 257 of them; at most 256");
    }

    /// Senders of one namespace report one service by many rules, each of which has its own
    /// channels, and let the channels end.
    #[test]
    fn channels_of_all_services_are_bounded_and_one_namespace_takes_none_of_another() {
        let mut server = Server::default();
        let rules = rules(Method::Incast { smoothing: 0.0 });
        let failed = ClassReport {
            failed: 1,
            ..ClassReport::default()
        };
        let theirs = report("1", "other/0", &rules, failed);
        server.exchange(at(0), Some("other"), &theirs).unwrap();
        let mut flood = report("", "evil/s", &rules, failed);
        flood.services = (0..MAX_SERVICES as u64)
            .map(|n| {
                let mut service = flood.services[0].clone();
                service.rules.to_mut().settings.targets_us[0] = 1 + n;
                service.classes = vec![failed; 2];
                service
            })
            .collect();
        let mut most = 0;
        for process in 0..1_500 {
            flood.process = process.to_string().into();
            let answer = server.exchange(at(process), Some("evil"), &flood);
            assert_eq!(answer.unwrap().services.len(), MAX_SERVICES);
            most = most.max(server.channels());
        }
        assert!(most > CHANNELS_OF_ALL / 2, "{most}");
        assert!(most <= CHANNELS_OF_ALL, "{most}");
        let theirs = report("1", "other/0", &rules, ClassReport::default());
        assert_eq!(ask(&mut server, 2_000, &theirs)[0].0, 0.99);
    }

    #[test]
    fn reports_and_answers_are_read_as_they_were_written() {
        let text = r#"{"process":"9f86d081884c7d65","services":[{"service":"shop/stock","rules":{"targets_us":[15000],"percentile":99.0,"increase":0.01,"decrease":0.01,"min_probability":0.1,"scope":"Class","method":{"type":"Misses","allowed":5,"period_us":1000000}},"classes":[{"misses":5}]}]}"#;
        let report: Report<'_> = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&report).unwrap(), text);
        let mut server = Server::default();
        let answer = server.exchange(at(400_000), None, &report).unwrap();
        let said = serde_json::to_string(&answer).unwrap();
        let expected =
            r#"{"services":[{"service":"shop/stock","classes":[{"admit":0.0,"for_us":600000}]}]}"#;
        assert_eq!(said, expected);
        assert_eq!(
            serde_json::from_str::<Decisions<'_>>(&said).unwrap(),
            answer
        );
    }
}
