//! The stock trading database of Chronos §5.1, modelled.
//!
//! The text has the clients (1200 threads, 60% stock queries, inter-request times and when they change),
//! the formulas of §3.1, the sampling period, S_t, and how many data accesses FC-D made in 900 s: 18.68 M. It
//! has neither the sizes in the formulas nor what the database can do. Chosen here:
//!
//! - 1 to 30 companies in a stock query, portfolios of 1 to 119 items, rows of size 1 (§3.1: "the row size
//!   is considered uniform"): 59 data accesses a request on average.
//! - 4 worker threads, which are the slots of Headgate's stage (its queue is the ready queue), on two
//!   cores (the paper's laptop) that they share. An access takes 83.5 µs, and 12% more with all threads
//!   at work: locks, aborts and cache misses in one number. That is 21,400 accesses/s, so that FC-D makes
//!   those 18.7 M; 1200 threads at the low rate ask for 18,900, in the burst for up to 236,000.
//! - A refusal takes the work of one access: the server parses the request, looks up its size, and answers.
//! - The stock quotes' updates are part of the accesses' time.
//!
//! What the model does not have: contention that grows with the requests that wait, which is what the
//! paper explains its differences in *total* data by (Figure 6). Here a database that is always busy makes
//! as many accesses under any policy.

use std::time::Duration;

use headgate_core::config::{
    BacklogControlConfig, BacklogSignal, CostConfig, DEFAULT_TYPE, Discipline, ErrorsConfig,
    MAX_QUEUE_LENGTH, Match, Measure, Mode, PathMatch, QueueConfig, QueueMode, ServiceTimesConfig,
    StageConfig, StrategyConfig, TypeConfig,
};
use headgate_core::strategy::TypeId;

use crate::backend::SharedProcessor;
use crate::clients::ClosedLoop;
use crate::clients::threads::{Habits, Phase, Sample, TRANSACTIONS, Threads};
use crate::simulation::{Run, SimulationError, Until};

pub(super) const SECOND: u64 = 1_000_000_000;
const MS: u64 = SECOND / 1_000;
/// m.
const CLIENTS: u32 = 1_200;
const COMPANIES: u32 = 30;
const PORTFOLIO: u32 = 119;
const WORKERS: u32 = 4;
const CORES: u32 = 2;
/// Work of a data access, ns.
const ACCESS: f64 = 83_500.0;
/// κ of [`SharedProcessor`].
const CONTENTION: f64 = 0.04;
/// S_t, s.
pub(super) const TARGET_S: u64 = 2;
/// P.
const PERIOD_S: u64 = 1;
/// When the burst begins, and the end, s.
pub(super) const BURST_S: u64 = 300;
pub(super) const END_S: u64 = 900;

/// The approaches of Table 2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Approach {
    Open,
    Ac,
    FcQ,
    FcD,
    FcTs,
}

impl Approach {
    pub(super) const ALL: [Self; 5] = [Self::Open, Self::Ac, Self::FcQ, Self::FcD, Self::FcTs];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Open => "Open",
            Self::Ac => "AC",
            Self::FcQ => "FC-Q",
            Self::FcD => "FC-D",
            Self::FcTs => "FC-TS",
        }
    }
}

/// Threads of §5.1: inter-request times of 3.5 to 4 s, from the burst on of 0.1 to 0.5 s.
pub(super) fn bursty(approach: Approach, burst: u64) -> Habits {
    let phase = |from: u64, low: u64, high: u64| Phase {
        from: from * SECOND,
        think: (low * MS, high * MS),
    };
    Habits {
        phases: vec![phase(0, 3_500, 4_000), phase(burst, 100, 500)],
        // §3.2: t_a = 0.1 s, t_b = 0.3 s.
        smoothing: (approach == Approach::FcTs).then_some((100 * MS, 300 * MS)),
        ..threads()
    }
}

/// Threads of §4, for system identification: inter-request times of 0.5 to 2.5 s.
pub(super) fn for_identification() -> Habits {
    Habits {
        phases: vec![Phase {
            from: 0,
            think: (500 * MS, 2_500 * MS),
        }],
        ..threads()
    }
}

fn threads() -> Habits {
    Habits {
        threads: CLIENTS,
        phases: Vec::new(),
        smoothing: None,
        companies: COMPANIES,
        portfolio: PORTFOLIO,
        access: ACCESS,
    }
}

/// The stage with this approach.
pub(super) fn stage(approach: Approach) -> StageConfig {
    let control = |control: BacklogSignal| {
        StrategyConfig::BacklogControl(BacklogControlConfig {
            target_us: TARGET_S * 1_000_000,
            control,
            cost: CostConfig::Header {
                header: "x-headgate-cost".to_owned(),
            },
            period_us: PERIOD_S * 1_000_000,
            proportional_gain: None,
            integral_gain: None,
            max_backlog: None,
            hint: true,
        })
    };
    let kind = |name: &str| TypeConfig {
        name: name.to_owned(),
        matches: match name {
            DEFAULT_TYPE => Vec::new(),
            _ => vec![Match {
                path: Some(PathMatch::PathPrefix(format!("/{name}"))),
                ..Match::default()
            }],
        },
        slo: Vec::new(),
        value: 1.0,
    };
    StageConfig {
        policy: "default/simulated".to_owned(),
        generation: 1,
        routes: Vec::new(),
        mode: Mode::Enforce,
        parallelism: WORKERS,
        auto_parallelism: None,
        queue: QueueConfig {
            mode: QueueMode::Hold,
            discipline: Discipline::Fifo,
            max_length: MAX_QUEUE_LENGTH,
            timeout_us: 3_600_000_000,
        },
        measure: Measure::LastByte,
        errors: ErrorsConfig::default(),
        service_times: ServiceTimesConfig::default(),
        strategy: match approach {
            Approach::Open => StrategyConfig::MaxQueueLength,
            Approach::Ac => control(BacklogSignal::Proportional),
            Approach::FcQ => control(BacklogSignal::QueueLength),
            Approach::FcD | Approach::FcTs => control(BacklogSignal::Backlog),
        },
        starvation_avoidance: None,
        types: TRANSACTIONS
            .into_iter()
            .chain([DEFAULT_TYPE])
            .map(kind)
            .collect(),
        classes: Vec::new(),
        workflows: None,
        excluded: Vec::new(),
    }
}

/// What the server's monitor saw in a run of so many seconds, and the requests that were sent.
pub(super) fn run(
    approach: Approach,
    habits: &Habits,
    length: u64,
    seed: u64,
) -> Result<(Vec<Sample>, u64), SimulationError> {
    let stage = stage(approach);
    let kinds: Vec<TypeId> = (0..).take(TRANSACTIONS.len()).map(TypeId).collect();
    let mut threads = Threads::new(habits, PERIOD_S * SECOND, TARGET_S * SECOND, seed);
    let starts = threads.starts();
    let mut clients = ClosedLoop::new(threads, starts);
    let run = Run {
        stage: &stage,
        kinds: &kinds,
        warm_up: Duration::ZERO,
        until: Until::Time(Duration::from_secs(length)),
        // The strategy's luck must not be that of the clients.
        seed: !seed,
    };
    let database = SharedProcessor::new(CORES, CONTENTION).refusing_at(ACCESS);
    let outcome = run.with(&mut clients, database)?;
    let samples = clients.behaviour().samples();
    let whole = samples.len().min(length as usize);
    Ok((samples[..whole].to_vec(), outcome.simulated))
}
