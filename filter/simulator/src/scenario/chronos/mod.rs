//! The experiments of Chronos (§4 and §5): backlog control on a stock trading database.
//!
//! [`model`] says what was modelled how. The clients are a closed loop of 1200 threads, so the load is what
//! the database makes of it: threads that wait send nothing, threads that are refused come back soon.

mod bursty;
mod identification;
mod measures;
mod model;

use super::{Size, Study};
use crate::progress::Progress;
use crate::report::{Report, Subject};
use crate::simulation::SimulationError;

/// Requests that a run sends, about: what a smaller size is a part of.
const FULL_SIZE: f64 = 500_000.0;
/// Least part of the paper's times that is run.
const LEAST: f64 = 0.05;

/// The part of the paper's times that `size` asks for.
fn part(size: &Size) -> f64 {
    size.part(FULL_SIZE, LEAST)
}

/// One of the experiments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Chronos {
    Figure4,
    Figure5,
    Figure6,
    Identification,
}

/// All of them.
pub(super) fn studies() -> impl Iterator<Item = Box<dyn Study>> {
    [
        Chronos::Figure4,
        Chronos::Figure5,
        Chronos::Figure6,
        Chronos::Identification,
    ]
    .into_iter()
    .map(|study| Box::new(study) as Box<dyn Study>)
}

impl Study for Chronos {
    fn name(&self) -> &str {
        match self {
            Self::Figure4 => "chronos-fig4",
            Self::Figure5 => "chronos-fig5",
            Self::Figure6 => "chronos-fig6",
            Self::Identification => "chronos-sysid",
        }
    }

    fn title(&self) -> &str {
        match self {
            Self::Figure4 => {
                "Chronos, Figure 4: average service delay of Open, AC, FC-Q, FC-D and FC-TS"
            }
            Self::Figure5 => "Chronos, Figure 5: transient service delay in a burst",
            Self::Figure6 => "Chronos, Figure 6: timely and total data accesses",
            Self::Identification => "Chronos, Eq. 4 to 8: system identification and pole placement",
        }
    }

    fn run(&self, size: &Size, progress: &dyn Progress) -> Result<Report, SimulationError> {
        let report = Report::new(Subject::Scenario(self.name().to_owned()), self.title());
        let figure = match self {
            Self::Identification => return identification::run(size, progress, report),
            Self::Figure4 => bursty::figure_4,
            Self::Figure5 => bursty::figure_5,
            Self::Figure6 => bursty::figure_6,
        };
        let runs = bursty::Runs::make(size, progress)?;
        Ok(figure(&runs, size, report))
    }
}
