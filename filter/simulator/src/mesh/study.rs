//! What a policy's workflows do for a mesh: the same clients without rates, and with the policy in every process.

use std::ops::Range;

use headgate_core::config::{Discipline, SharingConfig, StageConfig, WorkflowSource};
use headgate_core::workflow;

use super::file::Plan;
use super::trial::{self, Trial, mean};
use super::{Clocks, Ending, Seen, Setup, seen};
use crate::progress::Progress;
use crate::report::{
    Axis, Cell, Figure, Group, Record, Report, Series, Style, Subject, Table, TableRow,
};
use crate::scenario::Size;
use crate::simulation::SimulationError;

/// A mesh under a policy.
#[derive(Debug, Clone)]
pub struct MeshStudy {
    plan: Plan,
    setup: Setup,
    policy: String,
    file: String,
    notes: Vec<String>,
}

/// What was found of a workflow.
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

/// What was found of a service.
struct ServiceRow {
    offered: Option<f64>,
    refused: Option<f64>,
    utilization: Option<f64>,
}

/// How every process is set up under `stage`: its workflows and the order of its queue. What the mesh's own file says of
/// slots and of who a request belongs to is in place of what the policy says of requests.
#[must_use]
fn setup(stage: &StageConfig) -> Setup {
    let mut workflows = stage.workflows.clone();
    if let Some(workflows) = &mut workflows {
        workflows.identify = vec![WorkflowSource::Header {
            name: workflow::HEADER.to_owned(),
        }];
        workflows.edge = false;
        workflows.peers.clear();
    }
    Setup {
        discipline: stage.queue.discipline.clone(),
        deadlines: true,
        workflows,
        clocks: Clocks::default(),
    }
}

impl MeshStudy {
    /// `plan`, which the file `file` holds, under the policy `policy` with this `stage`.
    #[must_use]
    pub fn new(stage: &StageConfig, policy: &str, plan: Plan, file: &str) -> Self {
        let mut notes = Vec::new();
        let setup = setup(stage);
        match &setup.workflows {
            None => notes.push(format!(
                "{policy} has no workflows: the two variants differ in the order of their queues and in deadlines alone"
            )),
            Some(workflows) => {
                if let SharingConfig::DominantResource { .. } = &workflows.sharing {
                    notes.push("no process reports a second resource: slots are what is shared".to_owned());
                }
                let mut unknown: Vec<&str> = (workflows.workflows.keys().map(String::as_str))
                    .filter(|name| plan.graph.workflows.iter().all(|w| w.name != **name))
                    .collect();
                unknown.sort_unstable();
                if !unknown.is_empty() {
                    let names = unknown.join(", ");
                    notes.push(format!("workflows of {policy} that the mesh doesn't have: {names}"));
                }
            }
        }
        if setup.discipline == Discipline::Slack {
            notes.push(format!(
                "{policy} orders by Slack, which is FIFO here: types of the mesh have no objectives"
            ));
        }
        notes.push(
            "strategy, types and classes of the policy take no part: a process refuses only for a rate, a deadline or \
             a full queue, and each workflow is a type of its own, so that its processing times are known"
                .to_owned(),
        );
        Self {
            plan,
            setup,
            policy: policy.to_owned(),
            file: file.to_owned(),
            notes,
        }
    }

    /// Simulates. `size` goes before what the file says.
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
        let trials = [without, self.setup.clone()].map(|setup| {
            let mut trial = Trial::new(&plan.graph, &plan.loads, setup, plan.duration);
            trial.requests = size.requests.unwrap_or(u64::MAX);
            trial
        });
        let runs = trial::run(&trials, &size, seeds, progress)?;
        Ok(self.report(&runs))
    }

    fn report(&self, runs: &[Vec<Seen>]) -> Report {
        let graph = &self.plan.graph;
        let subject = Subject::Policy {
            policy: self.policy.clone(),
            workload: self.file.clone(),
        };
        let title = format!("{} in every process of {}", self.policy, self.file);
        let mut report = Report::new(subject, title);
        let services: Vec<String> = (graph.services.iter())
            .map(|s| format!("{} × {} with {} slots", s.processes, s.name, s.slots))
            .collect();
        report.setup("services", services.join(", "));
        report.setup("runs", self.runs(runs));
        let variants = ["without", "with"];
        let names = [
            "without the policy".to_owned(),
            format!("with {}", self.policy),
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

    /// What counts.
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

    /// Rates at the entries, of the first run with the policy; `None` where nothing limited anybody.
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
            title: format!("Rates in force where workflows enter, with {}", self.policy),
            x: Axis::new("time, s"),
            y: Axis::new("rate, requests/s"),
            series,
            ..Figure::default()
        })
    }
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
