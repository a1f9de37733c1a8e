//! The effect of policies on a mesh: the same clients without any, and with each service's own
//! policy in front of its processes.

use std::ops::Range;
use std::time::Duration;

use headgate_core::config::{Mode, SharingConfig, StageConfig};

use super::file::Plan;
use super::{Ending, Policy, Run, Seen, Setup, seen};
use crate::progress::Progress;
use crate::report::{
    Axis, Cell, Figure, Group, Record, Report, Series, Style, Subject, Table, TableRow,
};
use crate::simulation::SimulationError;
use crate::size::Size;

/// A mesh under policies.
#[derive(Debug, Clone)]
pub struct MeshStudy {
    plan: Plan,
    setup: Setup,
    /// Names of the policies.
    policies: String,
    file: String,
    notes: Vec<String>,
}

/// A service's policy, compiled.
#[derive(Debug, Clone)]
pub struct Applied {
    /// `namespace/name` of the policy.
    pub name: String,
    /// The stage that it compiles to.
    pub stage: StageConfig,
}

/// The results of a workflow.
struct WorkflowRow {
    offered: Option<f64>,
    served: Option<f64>,
    refused: Option<f64>,
    failed: Option<f64>,
    timed_out: Option<f64>,
    p50: Option<f64>,
    p99: Option<f64>,
    rate: Option<f64>,
}

/// The results of a service.
struct ServiceRow {
    offered: Option<f64>,
    refused: Option<f64>,
    utilization: Option<f64>,
}

impl MeshStudy {
    /// Returns the study of `plan`, which comes from the file `file`, with the policy of each of
    /// its services, in their order.
    ///
    /// # Errors
    /// [`SimulationError::Config`] of invalid rules.
    pub fn new(
        policies: &[Option<Applied>],
        plan: Plan,
        file: &str,
    ) -> Result<Self, SimulationError> {
        let (mut setup, mut names, mut notes) = (Setup::default(), Vec::new(), Vec::new());
        for (service, applied) in policies.iter().enumerate() {
            let Some(Applied { name, stage }) = applied else {
                let service = &plan.graph.services[service].name;
                notes.push(format!(
                    "{service} has no policy: its processes only have slots and a queue"
                ));
                setup.policies.push(None);
                continue;
            };
            if !names.contains(name) {
                notes.extend(remarks(name, stage, &plan));
                names.push(name.clone());
            }
            let policy = Policy::new(stage.clone(), &plan, service)?;
            setup.policies.push(Some(policy));
        }
        setup.deadlines = true;
        Ok(Self {
            plan,
            setup,
            policies: names.join(", "),
            file: file.to_owned(),
            notes,
        })
    }

    /// Runs the simulations. `size` takes precedence over the file.
    ///
    /// # Errors
    /// [`SimulationError`].
    pub fn run(&self, size: &Size, progress: &dyn Progress) -> Result<Report, SimulationError> {
        let plan = &self.plan;
        let size = Size {
            seed: size.seed.or(plan.seed),
            ..*size
        };
        let seeds = plan.seeds.unwrap_or(1);
        let without = Setup::default();
        let setups = [&without, &self.setup];
        // The number of requests of closed loops isn't known in advance; the progress bar counts
        // simulated seconds.
        let seconds = plan.duration as u64;
        progress.expect(2 * seconds * u64::from(size.seeds.unwrap_or(seeds).max(1)));
        let runs = size.runs(seeds, setups.len(), |at, seed| {
            let run = Run {
                graph: &plan.graph,
                loads: &plan.loads,
                setup: setups[at],
                until: Duration::from_secs_f64(plan.duration),
                sample_every: Duration::from_secs(1),
                requests: size.requests.unwrap_or(u64::MAX),
                seed,
            };
            let seen = run.make()?;
            progress.done(seconds);
            Ok(seen)
        })?;
        Ok(self.report(&runs))
    }

    fn report(&self, runs: &[Vec<Seen>]) -> Report {
        let graph = &self.plan.graph;
        let subject = Subject::Policy {
            policy: self.policies.clone(),
            workload: self.file.clone(),
        };
        let title = format!("{} in {}", self.policies, self.file);
        let mut report = Report::new(subject, title);
        let services: Vec<String> = (graph.services.iter())
            .map(|s| format!("{} × {} with {} slots", s.processes, s.name, s.slots))
            .collect();
        report.setup("services", services.join(", "));
        report.setup("runs", self.runs(runs));
        let variants = ["without", "with"];
        let names = [
            "without the policy".to_owned(),
            format!("with {}", self.policies),
        ];
        let groups = |rows: &dyn Fn(&[Seen]) -> Vec<TableRow>| {
            (names.iter().zip(runs))
                .map(|(name, runs)| Group {
                    title: name.clone(),
                    rows: rows(runs),
                })
                .collect()
        };
        let workflows = |runs: &[Seen]| -> Vec<TableRow> {
            (0..graph.workflows.len())
                .map(|w| self.workflow(runs, w).cells(&graph.workflows[w].name))
                .collect()
        };
        report.tables.push(Table {
            title: "Requests of clients".to_owned(),
            columns: [
                "workflow",
                "offered/s",
                "served/s",
                "refused, %",
                "failed, %",
                "timed out, %",
                "p50, ms",
                "p99, ms",
                "rate, 1/s",
            ]
            .map(str::to_owned)
            .to_vec(),
            groups: groups(&workflows),
        });
        let services = |runs: &[Seen]| -> Vec<TableRow> {
            (0..graph.services.len())
                .map(|s| self.service(runs, s).cells(&graph.services[s].name))
                .collect()
        };
        report.tables.push(Table {
            title: "Services, all processes".to_owned(),
            columns: ["service", "offered/s", "refused/s", "slots held, %"]
                .map(str::to_owned)
                .to_vec(),
            groups: groups(&services),
        });
        for (variant, runs) in variants.iter().zip(runs) {
            for (w, workflow) in graph.workflows.iter().enumerate() {
                let row = self.workflow(runs, w);
                report.rows.push(row.record(variant, &workflow.name));
            }
            for (s, service) in graph.services.iter().enumerate() {
                let row = self.service(runs, s);
                report.rows.push(row.record(variant, &service.name));
            }
        }
        report.figures.extend(self.rates(runs));
        report.notes.clone_from(&self.notes);
        report
    }

    fn runs(&self, runs: &[Vec<Seen>]) -> String {
        let seeds = runs.first().map_or(0, Vec::len);
        format!(
            "{seeds} of {} s each, of which the first {} s don't count",
            self.plan.duration, self.plan.warm_up
        )
    }

    /// Returns the span of time that results cover, s.
    fn time(&self) -> Range<f64> {
        self.plan.warm_up..self.plan.duration
    }

    fn workflow(&self, runs: &[Seen], workflow: usize) -> WorkflowRow {
        let time = self.time();
        let which = Some(workflow);
        let over = |value: &dyn Fn(&Seen) -> Option<f64>| mean(runs, value);
        let part = |ending| over(&|seen: &Seen| seen.part(which, time.clone(), ending));
        let latency = |q| {
            over(&|seen: &Seen| {
                let sorted = seen.latencies(which, time.clone());
                seen::quantile(&sorted, q).map(|s| s * 1e3)
            })
        };
        let seconds = time.end - time.start;
        let entry = self.plan.graph.tasks[self.plan.graph.workflows[workflow].entry].service;
        WorkflowRow {
            offered: over(&|seen| Some(seen.sent_in(which, time.clone()).count() as f64 / seconds)),
            served: over(&|seen| Some(seen.throughput(workflow, time.clone()))),
            refused: part(Ending::Refused),
            failed: part(Ending::Failed),
            timed_out: part(Ending::TimedOut),
            p50: latency(0.5),
            p99: latency(0.99),
            rate: over(&|seen| {
                let rates = seen.rates(entry, workflow);
                let limited: Vec<f64> = (rates.iter())
                    .filter(|(at, _)| time.contains(at))
                    .filter_map(|(_, rate)| *rate)
                    .collect();
                seen::mean(&limited)
            }),
        }
    }

    fn service(&self, runs: &[Seen], service: usize) -> ServiceRow {
        let time = self.time();
        let slots = self.plan.graph.services[service].slots;
        let sum = |counts: &[u64]| counts.iter().sum::<u64>() as f64;
        ServiceRow {
            offered: mean(runs, |seen| {
                Some(seen.per_second(service, time.clone(), |p| sum(&p.offered)))
            }),
            refused: mean(runs, |seen| {
                Some(seen.per_second(service, time.clone(), |p| sum(&p.refused)))
            }),
            utilization: mean(runs, |seen| {
                Some(seen.utilization(service, slots, time.clone()))
            }),
        }
    }

    /// Returns a figure of the rates at the entries, of the first run with the policy; `None` if no
    /// workflow was limited.
    fn rates(&self, runs: &[Vec<Seen>]) -> Option<Figure> {
        let graph = &self.plan.graph;
        let seen = runs.get(1)?.first()?;
        let of = |(w, workflow): (usize, &super::Workflow)| {
            let rates = seen.rates(graph.tasks[workflow.entry].service, w);
            let limited = rates.iter().any(|(_, rate)| rate.is_some());
            let line = Series::new(workflow.name.clone(), Style::Line, rates);
            limited.then(|| line.coloured(w))
        };
        let series: Vec<Series> = graph.workflows.iter().enumerate().filter_map(of).collect();
        (!series.is_empty()).then(|| Figure {
            title: format!(
                "Rates in force where workflows enter, with {}",
                self.policies
            ),
            x: Axis::new("time, s"),
            y: Axis::new("rate, requests/s"),
            series,
            ..Figure::default()
        })
    }
}

/// Returns notes about settings of a policy that have no meaning in the mesh.
fn remarks(name: &str, stage: &StageConfig, plan: &Plan) -> Vec<String> {
    let mut notes = Vec::new();
    if stage.mode == Mode::DryRun {
        notes.push(format!(
            "{name} says mode: DryRun; this is what it would do if it enforced"
        ));
    }
    let Some(workflows) = &stage.workflows else {
        return notes;
    };
    if let SharingConfig::DominantResource { .. } = &workflows.sharing {
        notes.push("no process reports a second resource: slots are what is shared".to_owned());
    }
    let mut unknown: Vec<&str> = (workflows.workflows.keys().map(String::as_str))
        .filter(|name| plan.graph.workflows.iter().all(|w| w.name != **name))
        .collect();
    unknown.sort_unstable();
    if !unknown.is_empty() {
        let unknown = unknown.join(", ");
        notes.push(format!(
            "workflows of {name} that the mesh doesn't have: {unknown}"
        ));
    }
    notes
}

/// Returns the mean over the runs that have a value.
fn mean(runs: &[Seen], value: impl Fn(&Seen) -> Option<f64>) -> Option<f64> {
    crate::results::mean(runs.iter().filter_map(value))
}

fn percent(part: Option<f64>) -> Cell {
    Cell::number(part.map(|part| part * 100.0), 1)
}

impl WorkflowRow {
    fn cells(&self, name: &str) -> TableRow {
        TableRow {
            label: name.to_owned(),
            cells: vec![
                Cell::number(self.offered, 1),
                Cell::number(self.served, 1),
                percent(self.refused),
                percent(self.failed),
                percent(self.timed_out),
                Cell::number(self.p50, 1),
                Cell::number(self.p99, 1),
                Cell::number(self.rate, 1),
            ],
        }
    }

    fn record(&self, variant: &str, name: &str) -> Record {
        Record::new()
            .with("variant", variant)
            .with("workflow", name)
            .with("offered_rps", self.offered)
            .with("served_rps", self.served)
            .with("refused_rate", self.refused)
            .with("failed_rate", self.failed)
            .with("timed_out_rate", self.timed_out)
            .with("p50_ms", self.p50)
            .with("p99_ms", self.p99)
            .with("rate_rps", self.rate)
    }
}

impl ServiceRow {
    fn record(&self, variant: &str, name: &str) -> Record {
        Record::new()
            .with("variant", variant)
            .with("service", name)
            .with("offered_rps", self.offered)
            .with("refused_rps", self.refused)
            .with("utilization", self.utilization)
    }

    fn cells(&self, name: &str) -> TableRow {
        TableRow {
            label: name.to_owned(),
            cells: vec![
                Cell::number(self.offered, 1),
                Cell::number(self.refused, 1),
                percent(self.utilization),
            ],
        }
    }
}
