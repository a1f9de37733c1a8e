//! The experiments of SEDA's overload control (§4): response time control of an e-mail service and of a
//! benchmark that can degrade its answers.
//!
//! [`service`] says what was modelled how, [`stage`] how SEDA's admission controllers are Headgate's. Time
//! is in the paper's units: seconds, in intervals of 5 s.

mod classes;
mod degradation;
mod load;
mod scope;
mod service;
mod spike;
mod stage;
mod trial;

use super::{Size, Study};
use crate::clients::users::Stay;
use crate::progress::Progress;
use crate::report::{Claim, Report, Subject};
use crate::simulation::SimulationError;

use service::{INTERVAL, SECOND};
use trial::Seen;

/// Requests that a run sends, about: what a smaller size is a part of.
const FULL_SIZE: f64 = 100_000.0;
/// Least part of the paper's times that is run.
const LEAST: f64 = 0.1;
/// Length of an interval, s.
const INTERVAL_S: u64 = INTERVAL / SECOND;

/// A time of the paper, s, or the part of it that `size` asks for, in whole intervals.
fn scaled(size: &Size, seconds: u64) -> u64 {
    let part = size.part(FULL_SIZE, LEAST);
    ((seconds as f64 * part / INTERVAL_S as f64).round() as u64).max(1) * INTERVAL_S
}

/// One of the experiments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Seda {
    Figure8,
    Figure10,
    Figure11,
    Figure12,
    Figure13,
    Figure14,
    Figure15,
}

/// All of them.
pub(super) fn studies() -> impl Iterator<Item = Box<dyn Study>> {
    [
        Seda::Figure8,
        Seda::Figure10,
        Seda::Figure11,
        Seda::Figure12,
        Seda::Figure13,
        Seda::Figure14,
        Seda::Figure15,
    ]
    .into_iter()
    .map(|study| Box::new(study) as Box<dyn Study>)
}

impl Study for Seda {
    fn name(&self) -> &str {
        match self {
            Self::Figure8 => "seda-fig8",
            Self::Figure10 => "seda-fig10",
            Self::Figure11 => "seda-fig11",
            Self::Figure12 => "seda-fig12",
            Self::Figure13 => "seda-fig13",
            Self::Figure14 => "seda-fig14",
            Self::Figure15 => "seda-fig15",
        }
    }

    fn title(&self) -> &str {
        match self {
            Self::Figure8 => {
                "SEDA, Figures 8 and 9: response times and rejections over the number of users"
            }
            Self::Figure10 => "SEDA, Figure 10: a load spike from 3 to 1000 users",
            Self::Figure11 => {
                "SEDA, Figure 11: per-stage against single-stage admission control, 128 users"
            }
            Self::Figure12 => "SEDA, Figure 12: service degradation alone in a load spike",
            Self::Figure13 => {
                "SEDA, Figure 13: service degradation with admission control in a load spike"
            }
            Self::Figure14 => {
                "SEDA, Figure 14: two classes of users without service differentiation"
            }
            Self::Figure15 => "SEDA, Figure 15: two classes of users with service differentiation",
        }
    }

    fn run(&self, size: &Size, progress: &dyn Progress) -> Result<Report, SimulationError> {
        let report = Report::new(Subject::Scenario(self.name().to_owned()), self.title());
        match self {
            Self::Figure8 => load::figure_8(size, progress, report),
            Self::Figure10 => spike::figure_10(size, progress, report),
            Self::Figure11 => scope::figure_11(size, progress, report),
            Self::Figure12 => degradation::figure(false, size, progress, report),
            Self::Figure13 => degradation::figure(true, size, progress, report),
            Self::Figure14 => classes::figure(false, size, progress, report),
            Self::Figure15 => classes::figure(true, size, progress, report),
        }
    }
}

/// So many users, who come one after the other within `within` s and stay until `until` s.
fn stays(users: u64, class: u8, from: u64, within: u64, until: u64) -> Vec<Stay> {
    let stay = |n: u64| Stay {
        from: from * SECOND + n * within * SECOND / users.max(1),
        until: until.saturating_mul(SECOND),
        class,
    };
    (0..users).map(stay).collect()
}

/// Points of a curve; a value may be missing.
type Curve = Vec<(f64, Option<f64>)>;

/// The intervals between two times, s.
fn intervals(from: u64, to: u64) -> std::ops::Range<usize> {
    (from / INTERVAL_S) as usize..(to / INTERVAL_S) as usize
}

/// Mean over runs of what there is.
fn mean(runs: &[Seen], value: impl Fn(&Seen) -> Option<f64>) -> Option<f64> {
    let values: Vec<f64> = runs.iter().filter_map(value).collect();
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

fn claim(text: &str, paper: &str, ours: String, holds: bool) -> Claim {
    Claim {
        text: text.to_owned(),
        paper: paper.to_owned(),
        ours,
        holds: Some(holds),
    }
}

/// A number that may be missing, in words.
fn words(value: Option<f64>, decimals: usize, unit: &str) -> String {
    value.map_or_else(|| "none".to_owned(), |v| format!("{v:.decimals$}{unit}"))
}
