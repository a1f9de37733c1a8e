//! The experiments of centralized Aequitas (§4): its two methods against the distributed algorithm.
//!
//! Each is an [`Experiment`], which is data: a [`Setup`] of the fabric, the methods that run in it, what is shown, and
//! the paper's claims with their bounds. [`measure`] finds the numbers, [`show`] makes the report.
//!
//! Without tables, and with figures that were not at hand, the paper's text has few numbers. It names the setups of
//! Aequitas, whose published simulator has the rest: rates, weights, targets, buffers. Notes say what neither has.

mod measure;
mod show;

use std::num::NonZeroU32;
use std::time::Duration;

use headgate_core::class_admission::Scope;

use super::{Size, Study};
use crate::fabric::{self, Method, Pattern, Seen, Setup};
use crate::parallel::in_parallel;
use crate::progress::Progress;
use crate::report::Report;
use crate::simulation::SimulationError;

use measure::Quantity::{
    Admission, HostAdmission, HostThroughput, Settled, TailLatency, WithinTarget,
};
use measure::Value::{Difference, Of, Ratio};
use measure::{Bound, Number};

/// Setup 1, of targets and convergence: every host calls every other at a mean load of 0.8.
pub(crate) const ALL_TO_ALL: Setup = Setup {
    hosts: 33,
    pattern: Pattern::AllToAll {
        burst: 1.4,
        calls: 4,
        idle: 0.75,
    },
    call_bytes: 32_768,
    weights: &[8, 4, 1],
    mixes: &[&[60.0, 30.0, 10.0]],
    buffer_bytes: 524_288,
    targets_us: &[14, 25],
    percentile: 99.9,
    interval: Duration::from_millis(10),
};

/// Setup 2, of fairness: two hosts send as much as their links carry to a third, the first little of it in the high
/// class. A window of 2 ms at a target of 30 µs is that of the 98.5th percentile.
pub(crate) const INCAST: Setup = Setup {
    hosts: 3,
    pattern: Pattern::Incast { load: 1.0 },
    call_bytes: 32_768,
    weights: &[4, 1],
    mixes: &[&[10.0, 90.0], &[70.0, 30.0]],
    buffer_bytes: 1_048_576,
    targets_us: &[30],
    percentile: 98.5,
    interval: Duration::from_millis(50),
};

/// Calls of a run of the paper's size, and its length, s.
const ALL_TO_ALL_SIZE: (f64, f64) = (10e6, 1.0);
const INCAST_SIZE: (f64, f64) = (5e6, 6.6);
/// Least part of the paper's times that is run.
const LEAST: f64 = 0.05;

/// K of the paper.
const K: NonZeroU32 = NonZeroU32::MIN.saturating_add(4);
/// Ten times the paper's.
const K_50: NonZeroU32 = NonZeroU32::MIN.saturating_add(49);

/// One of the experiments.
#[derive(Debug, Clone, Copy)]
struct Experiment {
    name: &'static str,
    title: &'static str,
    /// The paper's figure.
    figure: u64,
    setup: &'static Setup,
    /// Calls and s of a run of the paper's size.
    size: (f64, f64),
    runs: &'static [Run],
    /// Columns of the table of all runs: head, number, decimals.
    columns: &'static [(&'static str, measure::Quantity, usize)],
    /// What is drawn over time.
    curves: &'static [Curve],
    claims: &'static [Expected],
    notes: &'static [&'static str],
}

/// A method with its parameters.
#[derive(Debug, Clone, Copy)]
struct Run {
    name: &'static str,
    method: Method,
    /// Its curves are drawn, and its rows printed for each interval.
    shown: bool,
}

/// What is drawn over time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Curve {
    /// Mean of all senders' admitted parts.
    OverallAdmission,
    /// Admitted part of the first and second sender.
    HostAdmission,
    /// Their throughput in the high class.
    HostThroughput,
}

/// A claim of the paper, and what would bear it out.
#[derive(Debug, Clone, Copy)]
struct Expected {
    text: &'static str,
    /// The paper's number, if it has one.
    paper: &'static str,
    value: measure::Value,
    bound: Bound,
    /// Why it is not reproduced, if it isn't.
    not_reproduced: Option<&'static str>,
}

const NONE: Run = Run {
    name: "no control",
    method: Method::None,
    shown: true,
};
const BASELINE: Run = Run {
    name: "baseline",
    method: Method::Distributed,
    shown: true,
};

const fn misses(name: &'static str, period_ms: u64, allowed: NonZeroU32) -> Run {
    Run {
        name,
        method: Method::Misses {
            period: Duration::from_millis(period_ms),
            allowed,
            scope: Scope::Destination,
        },
        shown: false,
    }
}

const fn incast(name: &'static str, past: f64) -> Run {
    Run {
        name,
        method: Method::Incast {
            past,
            scope: Scope::Destination,
        },
        shown: false,
    }
}

const fn shown(run: Run) -> Run {
    Run { shown: true, ..run }
}

const METHOD_1: Run = shown(misses("method 1", 25, K));
const METHOD_2: Run = shown(incast("method 2, w = 0.1", 0.1));
const METHOD_2_HALF: Run = incast("method 2, w = 0.5", 0.5);

impl Run {
    /// A quantity that is measured in this run.
    const fn number(&self, quantity: measure::Quantity) -> Number {
        Number {
            run: self.name,
            quantity,
        }
    }
}

const fn baseline(quantity: measure::Quantity) -> Number {
    BASELINE.number(quantity)
}

const fn method_1(quantity: measure::Quantity) -> Number {
    METHOD_1.number(quantity)
}

const fn method_2(quantity: measure::Quantity) -> Number {
    METHOD_2.number(quantity)
}

const fn method_2_half(quantity: measure::Quantity) -> Number {
    METHOD_2_HALF.number(quantity)
}

const PERIOD_IS_OURS: &str = "T of method 1 is not in the paper. 25 ms is K divided by the misses that a target at the \
     99.9th percentile allows of the calls to one receiver in the high class.";
const WEIGHT_IS_OURS: &str = "w of method 2 is not in the paper, and 0.1 was chosen after results had been seen. A \
     large one hides single misses in the average, so that more is admitted than by the baseline and the target is \
     lost: that both are the same, as the paper has it, bounds w from above.";
const CLOCK_AT_ONE: &str = "The simulator that the paper extends begins its traffic at second 1.0 of its clock. If the \
     paper's 1.03 s and 1.26 s are readings of that clock, they are 0.03 s and 0.26 s after the begin, and method 1 \
     needs an eighth of the time. Here 0 is the begin. Only the order is judged.";
const ADMISSION_IS_A_PART: &str = "Admission is the part of the calls asking for the high class that was not \
     downgraded, which for the baseline is its admit probability.";
const AVERAGED: &str =
    "single misses are left in the average for less than they count in the baseline";
const BALANCE: &str = "a miss takes 7 windows to make up for, in which a pair has some 250 calls: the probabilities \
     come to rest where the target holds at the 99.6th percentile";

const OVER_TIME: &[(&str, measure::Quantity, usize)] = &[
    ("settles, s", Settled, 2),
    ("admitted once settled, ratio", Admission, 3),
    ("p99.9 high, µs", TailLatency(0), 1),
    ("p99.9 medium, µs", TailLatency(1), 1),
];

const BY_HOST: &[(&str, measure::Quantity, usize)] = &[
    ("admitted of host 1, ratio", HostAdmission(0), 3),
    ("admitted of host 2, ratio", HostAdmission(1), 3),
    ("host 1 in the high class, Gb/s", HostThroughput(0), 2),
    ("host 2 in the high class, Gb/s", HostThroughput(1), 2),
    ("p99.9 high, µs", TailLatency(0), 1),
];

const EXPERIMENTS: [Experiment; 5] = [
    Experiment {
        name: "aequitas-fig4",
        title: "Centralized Aequitas, Figure 4: admission over time, method 1 and baseline",
        figure: 4,
        setup: &ALL_TO_ALL,
        size: ALL_TO_ALL_SIZE,
        runs: &[
            BASELINE,
            METHOD_1,
            misses("method 1, T = 5 ms", 5, K),
            misses("method 1, T = 14 ms", 14, K),
            misses("method 1, T = 50 ms", 50, K),
            misses("method 1, T = 100 ms", 100, K),
            misses("method 1, K = 50", 25, K_50),
        ],
        columns: OVER_TIME,
        curves: &[Curve::OverallAdmission],
        claims: &[
            Expected {
                text: "method 1 settles sooner than the baseline (difference, s)",
                paper: "1.03 s and 1.26 s",
                value: Difference(method_1(Settled), baseline(Settled)),
                bound: Bound(-1e9, -0.005),
                not_reproduced: None,
            },
            Expected {
                text: "and admits less (ratio)",
                paper: "",
                value: Ratio(method_1(Admission), baseline(Admission)),
                bound: Bound(0.0, 0.8),
                not_reproduced: None,
            },
            Expected {
                text: "it suppresses too much: part admitted",
                paper: "",
                value: Of(method_1(Admission)),
                bound: Bound(0.0, 0.1),
                not_reproduced: None,
            },
        ],
        notes: &[CLOCK_AT_ONE, PERIOD_IS_OURS, ADMISSION_IS_A_PART],
    },
    Experiment {
        name: "aequitas-fig5",
        title: "Centralized Aequitas, Figure 5: fairness of method 1 and baseline under incast",
        figure: 5,
        setup: &INCAST,
        size: INCAST_SIZE,
        runs: &[BASELINE, METHOD_1],
        columns: BY_HOST,
        curves: &[Curve::HostAdmission, Curve::HostThroughput],
        claims: &[
            Expected {
                text: "baseline: host 1, which asks for less than its fair share, is admitted (ratio)",
                paper: "about 1",
                value: Of(baseline(HostAdmission(0))),
                bound: Bound(0.95, 1.0),
                not_reproduced: None,
            },
            Expected {
                text: "baseline: host 1 has the throughput that it asks for (Gb/s)",
                paper: "10 Gb/s",
                value: Of(baseline(HostThroughput(0))),
                bound: Bound(9.5, 10.5),
                not_reproduced: None,
            },
            Expected {
                text: "method 1: the admission of host 1 suffers (ratio)",
                paper: "",
                value: Of(method_1(HostAdmission(0))),
                bound: Bound(0.0, 0.95),
                not_reproduced: None,
            },
            Expected {
                text: "method 1: host 2 has less throughput than with the baseline (ratio)",
                paper: "",
                value: Ratio(method_1(HostThroughput(1)), baseline(HostThroughput(1))),
                bound: Bound(0.0, 0.95),
                not_reproduced: None,
            },
            Expected {
                text: "method 1: the throughput of host 1 does not suffer (Gb/s)",
                paper: "about 10 Gb/s",
                value: Of(method_1(HostThroughput(0))),
                bound: Bound(9.5, 10.5),
                not_reproduced: Some(
                    "of 10 Gb/s that are asked for, the high class has the part that is admitted; a lower \
                     admission and the same throughput exclude each other",
                ),
            },
        ],
        notes: &[PERIOD_IS_OURS, ADMISSION_IS_A_PART],
    },
    Experiment {
        name: "aequitas-fig6",
        title: "Centralized Aequitas, Figure 6: admission over time, method 2 and baseline",
        figure: 6,
        setup: &ALL_TO_ALL,
        size: ALL_TO_ALL_SIZE,
        runs: &[
            BASELINE,
            METHOD_2,
            METHOD_2_HALF,
            incast("method 2, w = 0.9", 0.9),
            incast("method 2, w = 0.99", 0.99),
        ],
        columns: OVER_TIME,
        curves: &[Curve::OverallAdmission],
        claims: &[
            Expected {
                text: "method 2 with w = 0.1 settles when the baseline does (ratio)",
                paper: "the same",
                value: Ratio(method_2(Settled), baseline(Settled)),
                bound: Bound(0.8, 1.2),
                not_reproduced: None,
            },
            Expected {
                text: "and admits as much (difference)",
                paper: "the same",
                value: Difference(method_2(Admission), baseline(Admission)),
                bound: Bound(-0.05, 0.05),
                not_reproduced: None,
            },
            Expected {
                text: "with w = 0.5 it admits as much (difference)",
                paper: "the same",
                value: Difference(method_2_half(Admission), baseline(Admission)),
                bound: Bound(-0.05, 0.05),
                not_reproduced: Some(AVERAGED),
            },
        ],
        notes: &[WEIGHT_IS_OURS, ADMISSION_IS_A_PART],
    },
    Experiment {
        name: "aequitas-fig7",
        title: "Centralized Aequitas, Figure 7: fairness of method 2 and baseline under incast",
        figure: 7,
        setup: &INCAST,
        size: INCAST_SIZE,
        runs: &[BASELINE, METHOD_2, METHOD_2_HALF],
        columns: BY_HOST,
        curves: &[Curve::HostAdmission, Curve::HostThroughput],
        claims: &[
            Expected {
                text: "host 1 is admitted as with the baseline (ratio)",
                paper: "the same",
                value: Ratio(method_2(HostAdmission(0)), baseline(HostAdmission(0))),
                bound: Bound(0.9, 1.1),
                not_reproduced: None,
            },
            Expected {
                text: "so is host 2 (ratio)",
                paper: "the same",
                value: Ratio(method_2(HostAdmission(1)), baseline(HostAdmission(1))),
                bound: Bound(0.9, 1.1),
                not_reproduced: None,
            },
            Expected {
                text: "host 1 has the same throughput (ratio)",
                paper: "the same",
                value: Ratio(method_2(HostThroughput(0)), baseline(HostThroughput(0))),
                bound: Bound(0.9, 1.1),
                not_reproduced: None,
            },
            Expected {
                text: "so has host 2 (ratio)",
                paper: "the same",
                value: Ratio(method_2(HostThroughput(1)), baseline(HostThroughput(1))),
                bound: Bound(0.9, 1.1),
                not_reproduced: None,
            },
        ],
        notes: &[WEIGHT_IS_OURS, ADMISSION_IS_A_PART],
    },
    Experiment {
        name: "aequitas-fig8",
        title: "Centralized Aequitas, Figure 8: 99.9th percentile latency by class",
        figure: 8,
        setup: &ALL_TO_ALL,
        size: ALL_TO_ALL_SIZE,
        runs: &[NONE, BASELINE, METHOD_1, METHOD_2],
        columns: &[
            ("p99.9 high, µs", TailLatency(0), 1),
            ("p99.9 medium, µs", TailLatency(1), 1),
            ("p99.9 low, µs", TailLatency(2), 1),
            ("high within target, %", WithinTarget(0), 2),
            ("medium within target, %", WithinTarget(1), 2),
        ],
        curves: &[],
        claims: &[
            Expected {
                text: "without control the high class misses its target (ratio to it)",
                paper: "",
                value: Ratio(
                    Number {
                        run: NONE.name,
                        quantity: TailLatency(0),
                    },
                    Number {
                        run: NONE.name,
                        quantity: measure::Quantity::Target(0),
                    },
                ),
                bound: Bound(3.0, 1e9),
                not_reproduced: None,
            },
            Expected {
                text: "baseline: the medium class keeps its target (ratio to it)",
                paper: "",
                value: Ratio(
                    baseline(TailLatency(1)),
                    baseline(measure::Quantity::Target(1)),
                ),
                bound: Bound(0.0, 1.1),
                not_reproduced: None,
            },
            Expected {
                text: "baseline: the high class keeps its target (ratio to it)",
                paper: "",
                value: Ratio(
                    baseline(TailLatency(0)),
                    baseline(measure::Quantity::Target(0)),
                ),
                bound: Bound(0.0, 1.1),
                not_reproduced: Some(BALANCE),
            },
            Expected {
                text: "method 2 keeps the high class as the baseline does (ratio)",
                paper: "the same",
                value: Ratio(method_2(TailLatency(0)), baseline(TailLatency(0))),
                bound: Bound(0.0, 1.1),
                not_reproduced: None,
            },
            Expected {
                text: "and the medium class (ratio)",
                paper: "the same",
                value: Ratio(method_2(TailLatency(1)), baseline(TailLatency(1))),
                bound: Bound(0.0, 1.1),
                not_reproduced: None,
            },
            Expected {
                text: "method 1 loses the high class to the first calls of each period (ratio to the baseline)",
                paper: "",
                value: Ratio(method_1(TailLatency(0)), baseline(TailLatency(0))),
                bound: Bound(1.5, 1e9),
                not_reproduced: None,
            },
        ],
        notes: &[PERIOD_IS_OURS, WEIGHT_IS_OURS],
    },
];

/// All of them.
pub(super) fn studies() -> impl Iterator<Item = Box<dyn Study>> {
    EXPERIMENTS
        .into_iter()
        .map(|experiment| Box::new(experiment) as Box<dyn Study>)
}

impl Study for Experiment {
    fn name(&self) -> &str {
        self.name
    }

    fn title(&self) -> &str {
        self.title
    }

    fn run(&self, size: &Size, progress: &dyn Progress) -> Result<Report, SimulationError> {
        let part = size.part(self.size.0, LEAST);
        let length = Duration::from_secs_f64(self.size.1 * part);
        let seeds = size.seeds.unwrap_or(1).max(1) as usize;
        let calls = (self.size.0 * part) as u64;
        progress.expect((self.runs.len() * seeds) as u64 * calls);
        let mut all = in_parallel(size.threads, self.runs.len() * seeds, |at| {
            let seed = size.first_seed().wrapping_add((at % seeds) as u64);
            let method = self.runs[at / seeds].method;
            let seen = fabric::run(self.setup, method, length, length / 3, seed)?;
            progress.done(calls);
            Ok(seen)
        })?;
        let mut runs: Vec<Vec<Seen>> = Vec::new();
        while !all.is_empty() {
            let rest = all.split_off(seeds.min(all.len()));
            runs.push(std::mem::replace(&mut all, rest));
        }
        Ok(show::report(self, &runs, size, length))
    }
}
