//! The effect of policies on a mesh. The same clients are simulated without policies, and with each
//! service's policy in front of its processes.

use std::iter::once;
use std::ops::Range;
use std::time::Duration;

use headgate_core::config::{Mode, SharingConfig, StageConfig};

use super::file::Plan;
use super::seen::{self, ProcessSample};
use super::{Ending, Policy, Run, Seen, Setup};
use crate::progress::Progress;
use crate::report::{
    Axis, Cell, Figure, Group, Report, ReportRow, Series, Style, Subject, Table, TableRow,
};
use crate::results;
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

/// A service's compiled policy.
#[derive(Debug, Clone)]
pub struct Applied {
    /// The policy's `namespace/name`.
    pub name: String,
    /// The compiled stage.
    pub stage: StageConfig,
}

/// A column of results: its heading, its name in machine-readable rows, and whether it is a ratio,
/// which the table shows in percent.
type Column = (&'static str, &'static str, bool);

const OF_WORKFLOWS: [Column; 8] = [
    ("offered/s", "offered_rps", false),
    ("served/s", "served_rps", false),
    ("refused, %", "refused_rate", true),
    ("failed, %", "failed_rate", true),
    ("timed out, %", "timed_out_rate", true),
    ("p50, ms", "p50_ms", false),
    ("p99, ms", "p99_ms", false),
    ("rate, 1/s", "rate_rps", false),
];
const OF_SERVICES: [Column; 3] = [
    ("offered/s", "offered_rps", false),
    ("refused/s", "refused_rps", false),
    ("slots held, %", "utilization", true),
];

/// The results of all workflows or of all services.
struct Results<'a> {
    title: &'static str,
    /// `workflow` or `service`.
    kind: &'static str,
    columns: &'static [Column],
    names: Vec<&'a str>,
    /// Values by setup, then by workflow or service, then by column.
    values: Vec<Vec<Vec<Option<f64>>>>,
}

impl MeshStudy {
    /// Returns the study of `plan`, from the file `file`. `policies` has an entry for each service,
    /// in their order.
    ///
    /// # Errors
    /// [`SimulationError::Config`] if a policy's rules are invalid.
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
                    "{service} has no policy: its processes have only slots and a queue"
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
        // The number of a closed loop's requests isn't known in advance, so the progress bar counts
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
        let names = [
            "without the policy".to_owned(),
            format!("with {}", self.policies),
        ];
        let values = |of: fn(&Self, &[Seen], usize) -> Vec<Option<f64>>, count| {
            let of_setup = |runs: &Vec<Seen>| (0..count).map(|at| of(self, runs, at)).collect();
            runs.iter().map(of_setup).collect()
        };
        let all = [
            Results {
                title: "Requests of clients",
                kind: "workflow",
                columns: &OF_WORKFLOWS,
                names: graph.workflows.iter().map(|w| w.name.as_str()).collect(),
                values: values(Self::workflow, graph.workflows.len()),
            },
            Results {
                title: "Services, all processes",
                kind: "service",
                columns: &OF_SERVICES,
                names: graph.services.iter().map(|s| s.name.as_str()).collect(),
                values: values(Self::service, graph.services.len()),
            },
        ];
        report.tables.extend(all.iter().map(|of| of.table(&names)));
        for (setup, variant) in ["without", "with"].into_iter().enumerate() {
            report
                .rows
                .extend(all.iter().flat_map(|of| of.records(setup, variant)));
        }
        report.figures.extend(self.rates(runs));
        report.notes.clone_from(&self.notes);
        report
    }

    fn runs(&self, runs: &[Vec<Seen>]) -> String {
        let seeds = runs.first().map_or(0, Vec::len);
        format!(
            "{seeds} of {} s each, with a warm-up of {} s",
            self.plan.duration, self.plan.warm_up
        )
    }

    /// Returns the span of time that results cover, s.
    fn time(&self) -> Range<f64> {
        self.plan.warm_up..self.plan.duration
    }

    fn workflow(&self, runs: &[Seen], workflow: usize) -> Vec<Option<f64>> {
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
        let rate = |seen: &Seen| {
            let rates = seen.rates(entry, workflow).into_iter();
            let counted = rates.filter(|(at, _)| time.contains(at));
            let limited: Vec<f64> = counted.filter_map(|(_, rate)| rate).collect();
            results::mean(&limited)
        };
        vec![
            over(&|seen| Some(seen.sent_in(which, time.clone()).count() as f64 / seconds)),
            over(&|seen| Some(seen.throughput(workflow, time.clone()))),
            part(Ending::Refused),
            part(Ending::Failed),
            part(Ending::TimedOut),
            latency(0.5),
            latency(0.99),
            over(&rate),
        ]
    }

    fn service(&self, runs: &[Seen], service: usize) -> Vec<Option<f64>> {
        let time = self.time();
        let slots = self.plan.graph.services[service].slots;
        let per_second = |counts: fn(&ProcessSample) -> &Vec<u64>| {
            let sum = |p: &ProcessSample| counts(p).iter().sum::<u64>() as f64;
            mean(runs, |seen| {
                Some(seen.per_second(service, time.clone(), sum))
            })
        };
        vec![
            per_second(|p| &p.offered),
            per_second(|p| &p.refused),
            mean(runs, |seen| {
                Some(seen.utilization(service, slots, time.clone()))
            }),
        ]
    }

    /// Returns a figure of the rates at the entries, from the first run with the policies; `None`
    /// if no workflow was limited.
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
            title: format!("Rates at the entries of workflows, with {}", self.policies),
            x: Axis::new("time, s"),
            y: Axis::new("rate, requests/s"),
            series,
            ..Figure::default()
        })
    }
}

/// Returns notes about settings of a policy that have no effect in the simulation.
fn remarks(name: &str, stage: &StageConfig, plan: &Plan) -> Vec<String> {
    let mut notes = Vec::new();
    if stage.mode == Mode::DryRun {
        notes.push(format!(
            "{name} has mode DryRun; the results are those of mode Enforce"
        ));
    }
    let Some(workflows) = &stage.workflows else {
        return notes;
    };
    if let SharingConfig::DominantResource { .. } = &workflows.sharing {
        notes.push("no process reports a second resource, so only slots are shared".to_owned());
    }
    let mut unknown: Vec<&str> = (workflows.workflows.keys().map(String::as_str))
        .filter(|name| plan.graph.workflows.iter().all(|w| w.name != **name))
        .collect();
    unknown.sort_unstable();
    if !unknown.is_empty() {
        let unknown = unknown.join(", ");
        notes.push(format!(
            "{name} names workflows that are not in the mesh: {unknown}"
        ));
    }
    notes
}

/// Returns the mean over the runs that have a value.
fn mean(runs: &[Seen], value: impl Fn(&Seen) -> Option<f64>) -> Option<f64> {
    results::mean(runs.iter().filter_map(value))
}

impl Results<'_> {
    /// Returns a group of rows for each setup, named by `setups`.
    fn table(&self, setups: &[String]) -> Table {
        let cell = |(column, value): (&Column, &Option<f64>)| {
            let scale = if column.2 { 100.0 } else { 1.0 };
            Cell::number(value.map(|value| value * scale), 1)
        };
        let row = |(name, values): (&&str, &Vec<Option<f64>>)| TableRow {
            label: (*name).to_owned(),
            cells: self.columns.iter().zip(values).map(cell).collect(),
        };
        let group = |(title, rows): (&String, &Vec<Vec<Option<f64>>>)| Group {
            title: title.clone(),
            rows: self.names.iter().zip(rows).map(row).collect(),
        };
        let heads = self.columns.iter().map(|column| column.0);
        Table {
            title: self.title.to_owned(),
            columns: once(self.kind).chain(heads).map(str::to_owned).collect(),
            groups: setups.iter().zip(&self.values).map(group).collect(),
        }
    }

    /// Returns a setup's machine-readable rows.
    fn records(&self, setup: usize, variant: &str) -> impl Iterator<Item = ReportRow> {
        let rows = self.values.get(setup).into_iter().flatten();
        self.names.iter().zip(rows).map(move |(name, values)| {
            let record = ReportRow::new().with("variant", variant);
            let record = record.with(self.kind, *name);
            let values = self.columns.iter().zip(values);
            values.fold(record, |record, (column, value)| {
                record.with(column.1, *value)
            })
        })
    }
}
