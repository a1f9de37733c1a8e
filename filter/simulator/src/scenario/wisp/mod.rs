//! The experiments of Wisp (§4.1.2 and §6): rates, fair queues and deadlines across a mesh of services.
//!
//! [`storage`] says what was modelled how.

mod convergence;
mod deadlines;
mod example;
mod hotspot;
mod isolation;
mod low_latency;
mod quantile;
mod setup;
mod storage;

use super::{Size, Study};
use crate::progress::Progress;
use crate::report::{Claim, Report, Subject};
use crate::simulation::SimulationError;

/// Requests that a run sends, about: what a smaller size is a part of.
const FULL_SIZE: f64 = 100_000.0;
/// Least part of the paper's times that is run.
const LEAST: f64 = 0.1;

/// The part of the paper's times that `size` asks for.
fn part(size: &Size) -> f64 {
    size.part(FULL_SIZE, LEAST)
}

/// One of the experiments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wisp {
    Example,
    Figure7,
    Figure8,
    Figure9,
    Figure10,
    Table3,
    Convergence,
}

/// All of them.
pub(super) fn studies() -> impl Iterator<Item = Box<dyn Study>> {
    [
        Wisp::Example,
        Wisp::Figure7,
        Wisp::Figure8,
        Wisp::Figure9,
        Wisp::Figure10,
        Wisp::Table3,
        Wisp::Convergence,
    ]
    .into_iter()
    .map(|study| Box::new(study) as Box<dyn Study>)
}

impl Study for Wisp {
    fn name(&self) -> &str {
        match self {
            Self::Example => "wisp-example",
            Self::Figure7 => "wisp-fig7",
            Self::Figure8 => "wisp-fig8",
            Self::Figure9 => "wisp-fig9",
            Self::Figure10 => "wisp-fig10",
            Self::Table3 => "wisp-table3",
            Self::Convergence => "wisp-convergence",
        }
    }

    fn title(&self) -> &str {
        match self {
            Self::Example => "Wisp, §4.1.2: the trade-off of the quantile q by example",
            Self::Figure7 => "Wisp, Figure 7: an aggressive workflow and a bursty one",
            Self::Figure8 => {
                "Wisp, Figure 8: low-latency workflows beside throughput-intensive clients"
            }
            Self::Figure9 => "Wisp, Figure 9: a hotspot",
            Self::Figure10 => "Wisp, Figure 10: goodput, utilization and rates over the quantile q",
            Self::Table3 => "Wisp, Table 3: latency by deadline under FIFO, EDF and LSTF",
            Self::Convergence => {
                "Beyond Wisp: how soon rates settle at the entry of a chain from a cold start, and how steady they stay"
            }
        }
    }

    fn run(&self, size: &Size, progress: &dyn Progress) -> Result<Report, SimulationError> {
        let report = Report::new(Subject::Scenario(self.name().to_owned()), self.title());
        let mut report = match self {
            Self::Example => example::example(size, progress, report),
            Self::Figure7 => isolation::figure_7(size, progress, report),
            Self::Figure8 => low_latency::figure_8(size, progress, report),
            Self::Figure9 => hotspot::figure_9(size, progress, report),
            Self::Figure10 => quantile::figure_10(size, progress, report),
            Self::Table3 => deadlines::table_3(size, progress, report),
            Self::Convergence => convergence::convergence(size, progress, report),
        }?;
        report.notes.push(self.chosen().to_owned());
        if size.seeds.unwrap_or(1) == 1 {
            report.notes.push(ONE_SEED.to_owned());
        }
        Ok(report)
    }
}

impl Wisp {
    /// What our choices mean for whoever reads the numbers.
    fn chosen(self) -> &'static str {
        match self {
            Self::Example => TOPOLOGY,
            Self::Convergence => NOT_THE_PAPERS,
            Self::Figure7 | Self::Figure8 | Self::Figure9 | Self::Figure10 | Self::Table3 => CHOSEN,
        }
    }
}

/// What the example says of its topology.
const TOPOLOGY: &str = "\
     The paper's text doesn't name all edges of Figure 3. The topology here is one that gives the loads of the text.";
const NOT_THE_PAPERS: &str = "\
     Not in the paper: what is expected are aims of this project. A run begins with the overload, before any process \
     has measured anything; no rate changes later.";
const CHOSEN: &str = "The paper tells neither slots nor service times nor its trace. Ours were chosen, some of them after results had been \
     seen, so that the system without Wisp does what the paper's does: that it does is no evidence.";
/// What one run is worth.
const ONE_SEED: &str = "One seed. The order of the variants is what to look at; differences of a few percent are chance.";

fn claim(text: &str, paper: &str, ours: String, holds: bool) -> Claim {
    Claim {
        text: text.to_owned(),
        paper: paper.to_owned(),
        ours,
        holds: Some(holds),
    }
}
