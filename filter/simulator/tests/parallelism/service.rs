//! Services for which P is found, their load, and runs with P fixed or found.

#[path = "network.rs"]
pub(crate) mod network;
#[path = "paced.rs"]
pub(crate) mod paced;

use std::cell::Cell;
use std::time::Duration;

use headgate_core::config::{
    AutoParallelism, Discipline, HistogramWindow, Logic, Mode, Objective, QueueConfig,
    ServiceTimesConfig, StageConfig, StrategyConfig, TypeConfig,
};
use headgate_simulator::backend::Backend;
use headgate_simulator::{
    Answer, Ending, LogNormal, Request, Run, Source, TypeLoad, Until, Workload,
};
use headgate_strategies::strategy::TypeId;

use network::{Network, Resource};
use paced::Paced;

pub(crate) const SECOND: u64 = 1_000_000_000;

/// Name, share, mean and median of the service time, ms, and objectives at p50 and p90, ms.
pub(crate) type Kind = (&'static str, f64, f64, f64, [u64; 2]);

/// Bouncer's Table 1, with its one objective.
pub(crate) const PAPER: &[Kind] = &[
    ("fast", 0.4, 1.16, 0.38, [18, 50]),
    ("mediumfast", 0.2, 2.53, 1.14, [18, 50]),
    ("mediumslow", 0.3, 12.13, 7.40, [18, 50]),
    ("slow", 0.1, 20.05, 12.51, [18, 50]),
];

/// Typical objectives, which are looser for expensive types.
pub(crate) const NATURAL: &[Kind] = &[
    ("fast", 0.6, 2.5, 2.0, [50, 150]),
    ("search", 0.3, 4.0, 3.2, [50, 150]),
    ("report", 0.1, 60.0, 48.0, [200, 500]),
];

/// The types of [`NATURAL`], with an objective for reports that is missed as soon as three reports
/// share a core.
pub(crate) const TIGHT: &[Kind] = &[
    ("fast", 0.6, 2.5, 2.0, [50, 150]),
    ("search", 0.3, 4.0, 3.2, [50, 150]),
    ("report", 0.1, 60.0, 48.0, [120, 500]),
];

/// Bouncer's Table 1 with four times its service times, and with objectives that are looser for
/// expensive types.
pub(crate) const PAPER_NATURAL: &[Kind] = &[
    ("fast", 0.4, 4.64, 1.52, [50, 150]),
    ("mediumfast", 0.2, 10.12, 4.56, [50, 150]),
    ("mediumslow", 0.3, 48.52, 29.6, [200, 500]),
    ("slow", 0.1, 80.2, 50.04, [200, 500]),
];

/// A number of slots at which every request is admitted.
pub(crate) const UNFILTERED: u32 = 1_000_000;

/// A service and its load.
#[derive(Clone, Copy)]
pub(crate) struct Service {
    pub(crate) kinds: &'static [Kind],
    pub(crate) workers: u32,
    pub(crate) steps: &'static [(f64, Resource)],
    /// The maximum work per time.
    pub(crate) capacity: f64,
    /// Load, in multiples of the capacity.
    pub(crate) load: f64,
    /// The number of seconds at 0.6 of the capacity before the load.
    pub(crate) calm: u64,
    pub(crate) seconds: u64,
    /// The number of seconds before results count.
    pub(crate) warm_up: u64,
    pub(crate) seed: u64,
    /// Bouncer's `shedByValue`.
    pub(crate) shed_by_value: bool,
}

/// The results of a run.
pub(crate) struct Found {
    /// P after each second.
    pub(crate) slots: Vec<u32>,
    /// Answers within the objective at p90, by the second of the answer.
    pub(crate) good: Vec<u32>,
    /// The ratio of refused requests among the requests that ended after the warm-up.
    pub(crate) refused: f64,
    /// Answers within the objective at p90 per second after the warm-up.
    pub(crate) goodput: f64,
    /// The numbers of all requests and of requests answered within the objective at p90, by type
    /// and second of arrival.
    pub(crate) kinds: Vec<Vec<(u32, u32)>>,
    /// The arrival and response times of answered requests, ns, by type.
    pub(crate) times: Vec<Vec<(u64, u64)>>,
}

impl Found {
    /// Returns a percentile of the response times, ms, of a type's requests that arrived from this
    /// second on.
    pub(crate) fn percentile(&self, kind: usize, percentile: usize, from: u64) -> f64 {
        let times = self.times[kind]
            .iter()
            .filter(|(at, _)| *at >= from * SECOND);
        let mut times: Vec<u64> = times.map(|(_, time)| *time).collect();
        times.sort_unstable();
        times
            .get(times.len() * percentile / 100)
            .map_or(0.0, |time| *time as f64 / 1e6)
    }

    /// Returns the ratio of a type's requests in these seconds that were answered within the
    /// objective at p90.
    pub(crate) fn in_time(&self, kind: usize, seconds: std::ops::Range<usize>) -> f64 {
        in_time(&self.kinds[kind], seconds)
    }
}

/// Returns the ratio of the requests in these seconds that count as good.
pub(crate) fn in_time(counts: &[(u32, u32)], seconds: std::ops::Range<usize>) -> f64 {
    let counts = counts.iter().take(seconds.end).skip(seconds.start);
    let (came, good) = counts.fold((0, 0), |(came, good), of| (came + of.0, good + of.1));
    f64::from(good) / f64::from(came.max(1))
}

impl Service {
    pub(crate) fn new(
        kinds: &'static [Kind],
        workers: u32,
        steps: &'static [(f64, Resource)],
        capacity: f64,
    ) -> Self {
        Self {
            kinds,
            workers,
            steps,
            capacity,
            load: 1.5,
            calm: 0,
            seconds: 40,
            warm_up: 15,
            seed: 7,
            shed_by_value: false,
        }
    }

    pub(crate) fn network(&self) -> Network {
        Network::new(self.workers, self.steps, self.capacity.ceil() as u32)
    }

    fn mean_ms(&self) -> f64 {
        self.kinds.iter().map(|kind| kind.1 * kind.2).sum()
    }

    pub(crate) fn workload(&self) -> Workload {
        let load = |(at, &(name, share, mean, median, _)): (usize, &Kind)| {
            TypeLoad::new(
                name,
                TypeId(at as u16),
                share,
                LogNormal::new(mean, median).unwrap(),
            )
        };
        Workload::new(self.kinds.iter().enumerate().map(load).collect()).unwrap()
    }

    pub(crate) fn per_second(&self) -> f64 {
        self.load * self.capacity * 1e3 / self.mean_ms()
    }

    /// Returns the stage. P is found if `fixed` is `None`.
    pub(crate) fn stage(&self, fixed: Option<u32>) -> StageConfig {
        let kind = |(name, objectives): (&str, [u64; 2])| TypeConfig {
            name: name.to_owned(),
            slo: [(50.0, objectives[0]), (90.0, objectives[1])]
                .map(|(percentile, ms)| Objective {
                    percentile,
                    objective_us: ms * 1_000,
                })
                .to_vec(),
            matches: vec![headgate_core::config::Match {
                method: Some(name.to_owned()),
                ..Default::default()
            }],
            ..TypeConfig::default()
        };
        let mut types: Vec<TypeConfig> = self.kinds.iter().map(|k| kind((k.0, k.4))).collect();
        types.push(TypeConfig {
            matches: Vec::new(),
            ..kind(("default", [50, 150]))
        });
        StageConfig {
            policy: "default/found".to_owned(),
            generation: 1,
            mode: if fixed == Some(UNFILTERED) {
                Mode::DryRun
            } else {
                Mode::Enforce
            },
            parallelism: fixed.unwrap_or(4),
            auto_parallelism: fixed
                .is_none()
                .then_some(AutoParallelism { min: 2, max: 1_000 }),
            queue: QueueConfig {
                discipline: Discipline::Slack,
                max_length: 800,
                timeout_us: 1_000_000,
                ..QueueConfig::default()
            },
            service_times: ServiceTimesConfig {
                interval_us: 1_000_000,
                min_samples: 20,
                window: HistogramWindow::DualBuffer,
            },
            strategy: StrategyConfig::Bouncer {
                logic: Logic::Any,
                shed_by_value: self.shed_by_value,
                capacity: None,
            },
            types,
            ..StageConfig::default()
        }
    }

    /// Runs the service with its own backend.
    pub(crate) fn run(&self, fixed: Option<u32>) -> Found {
        self.run_on(fixed, Paced::new(self.network(), &[], &[]))
    }

    /// Runs the service with this backend.
    pub(crate) fn run_on(&self, fixed: Option<u32>, backend: impl Backend) -> Found {
        let workload = self.workload();
        let kinds: Vec<TypeId> = workload.types().iter().map(|kind| kind.kind).collect();
        let stage = self.stage(fixed);
        let run = Run {
            stage: &stage,
            kinds: &kinds,
            warm_up: Duration::ZERO,
            until: Until::Time(Duration::from_secs(self.seconds)),
            seed: !self.seed,
        };
        let mut source = Counting {
            inner: workload.steady(self.per_second(), self.seed),
            calm: self.calm * SECOND,
            kept: 0.6 / self.load,
            part: 0.0,
            limits: self
                .kinds
                .iter()
                .map(|kind| kind.4[1] * 1_000_000)
                .collect(),
            good: Vec::new(),
            by_kind: vec![Vec::new(); self.kinds.len()],
            times: vec![Vec::new(); self.kinds.len()],
            from: self.warm_up * SECOND,
            ended: 0,
            refused: 0,
        };
        let outcome = run.with(&mut source, backend).unwrap();
        let refused = f64::from(source.refused) / f64::from(source.ended.max(1));
        let (good, kinds, times) = (source.good, source.by_kind, source.times);
        let (from, to) = (self.warm_up as usize, self.seconds as usize);
        let counted: u32 = good.iter().take(to).skip(from).sum();
        Found {
            slots: outcome.parallelism,
            refused,
            goodput: f64::from(counted) / (to - from) as f64,
            good,
            kinds,
            times,
        }
    }
}

/// A backend that records the largest number of requests that it had at once.
pub(crate) struct Peak<'a, B> {
    inner: B,
    jobs: u32,
    most: &'a Cell<u32>,
}

impl<'a, B> Peak<'a, B> {
    pub(crate) fn new(inner: B, most: &'a Cell<u32>) -> Self {
        Self {
            inner,
            jobs: 0,
            most,
        }
    }
}

impl<B: Backend> Backend for Peak<'_, B> {
    fn take(&mut self, now: u64, job: u32, request: &Request) {
        self.jobs += 1;
        self.most.set(self.most.get().max(self.jobs));
        self.inner.take(now, job, request);
    }

    fn work(&self, request: &Request, quality: f64) -> u64 {
        self.inner.work(request, quality)
    }

    fn next_end(&self) -> u64 {
        self.inner.next_end()
    }

    fn end(&mut self, now: u64) -> Option<u32> {
        let ended = self.inner.end(now);
        self.jobs -= u32::from(ended.is_some());
        ended
    }

    fn failed(&self) -> bool {
        self.inner.failed()
    }

    fn endpoint(&self, job: u32) -> Option<u32> {
        self.inner.endpoint(job)
    }

    fn busy(&self) -> u32 {
        self.inner.busy()
    }

    fn servers(&self) -> u32 {
        self.inner.servers()
    }
}

/// A source that counts answers within their objectives, by second.
struct Counting<S> {
    inner: S,
    /// The end of the calm phase, ns, the ratio of requests that are kept in this phase, and the
    /// accumulated fraction of a request.
    calm: u64,
    kept: f64,
    part: f64,
    limits: Vec<u64>,
    good: Vec<u32>,
    by_kind: Vec<Vec<(u32, u32)>>,
    times: Vec<Vec<(u64, u64)>>,
    /// The start of counting, ns, the number of requests that ended after this time, and the number
    /// of requests refused after this time.
    from: u64,
    ended: u32,
    refused: u32,
}

impl<S: Source> Source for Counting<S> {
    fn peek(&self) -> Option<u64> {
        self.inner.peek()
    }

    fn take(&mut self) -> Option<Request> {
        let taken = self.inner.take();
        while self.inner.peek().is_some_and(|at| at < self.calm) {
            self.part += self.kept;
            if self.part >= 1.0 {
                self.part -= 1.0;
                break;
            }
            self.inner.take();
        }
        taken
    }

    fn answered(&mut self, request: &Request, at: u64, answer: Answer) {
        if at >= self.from {
            self.ended += 1;
            self.refused += u32::from(answer.ending == Ending::Refused);
        }
        let second = (at / SECOND) as usize;
        if self.good.len() <= second {
            self.good.resize(second + 1, 0);
        }
        let in_time =
            answer.ending == Ending::Served && at - request.at <= self.limits[request.kind];
        self.good[second] += u32::from(in_time);
        if answer.ending == Ending::Served {
            self.times[request.kind].push((request.at, at - request.at));
        }
        let (seconds, came) = (
            &mut self.by_kind[request.kind],
            (request.at / SECOND) as usize,
        );
        if seconds.len() <= came {
            seconds.resize(came + 1, (0, 0));
        }
        seconds[came].0 += 1;
        seconds[came].1 += u32::from(in_time);
    }
}
