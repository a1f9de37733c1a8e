//! `headgate simulate`: runs a policy under a workload or in a mesh, or an experiment of the
//! papers.

mod document;
mod mesh;
mod progress;
mod workload;

use std::fmt::Write as _;
use std::fs;
use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use clap::{ArgGroup, Args};
use headgate_scenarios::Scenario;
use headgate_simulator::Size;
use headgate_simulator::report::{Report, html, text};
use headgate_simulator::trial::Trial;

use crate::input;
use headgate_api::compile::configuration;
use headgate_api::validate::{ValidPolicy, instead_of};
use headgate_command::output::{Output, json};
use progress::Bar;

pub use document::WorkloadDocument;

/// The value of `--scenario` that lists all scenarios.
const LIST: &str = "list";

/// Runs the filter's engine in simulated time: a policy under a workload, modelled or recorded, or
/// policies in front of the services of a mesh, or an experiment of the papers.
#[derive(Debug, Clone, Args)]
#[command(
    override_usage = "headgate simulate --policy <FILE> --workload <FILE> [OPTIONS]
       headgate simulate --policy <FILE> --mesh <FILE> [OPTIONS]
       headgate simulate --scenario <NAME> [OPTIONS]",
    group(ArgGroup::new("offered").args(["workload", "mesh"]))
)]
pub(crate) struct SimulateArgs {
    /// The policy to try; with a mesh, the policies of its services
    #[arg(
        long,
        value_name = "FILE",
        requires = "offered",
        required_unless_present = "scenario"
    )]
    pub(crate) policy: Option<PathBuf>,
    /// Workload file: arrivals in YAML, or an access log of Envoy
    #[arg(long, value_name = "FILE", requires = "policy")]
    pub(crate) workload: Option<PathBuf>,
    /// Service graph in YAML: services that call each other, and the clients of their workflows
    #[arg(long, value_name = "FILE", requires = "policy")]
    pub(crate) mesh: Option<PathBuf>,
    /// An experiment of the papers by its name; `list` lists them
    #[arg(long, value_name = "NAME", conflicts_with_all = ["policy", "workload", "mesh"])]
    pub(crate) scenario: Option<String>,
    /// Number of endpoints behind the proxy, for policies with parallelism.perEndpoint
    #[arg(
        long,
        value_name = "N",
        default_value = "1",
        conflicts_with_all = ["scenario", "mesh"]
    )]
    pub(crate) endpoints: NonZeroU32,
    /// Print the results as JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Write a page with tables and figures to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Exit with 1 if a result differs from the paper's, or if a type misses an objective
    #[arg(long)]
    pub(crate) check: bool,
    /// Run a scenario at the size at which its results are tested, instead of at the paper's
    #[arg(long, requires = "scenario", conflicts_with_all = ["policy", "requests", "seeds"])]
    pub(crate) quick: bool,
    /// Number of runs per load, each with its own seed
    #[arg(long, value_name = "N")]
    pub(crate) seeds: Option<NonZeroU32>,
    /// Seed of the first run; the same seed gives the same results
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// Number of requests per run that count in the results
    #[arg(long, value_name = "N")]
    pub(crate) requests: Option<NonZeroU64>,
    /// Number of threads; all cores by default
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<NonZeroUsize>,
    /// Show no progress
    #[arg(long, short)]
    pub(crate) quiet: bool,
}

impl SimulateArgs {
    fn size(&self) -> Size {
        Size {
            requests: self.requests.map(NonZeroU64::get),
            seeds: self.seeds.map(NonZeroU32::get),
            seed: self.seed,
            threads: self.threads,
        }
    }
}

/// Runs the simulation.
///
/// # Errors
/// Returns an error for a file that can't be read or written, or a scenario that does not exist.
pub(crate) fn run(args: &SimulateArgs) -> anyhow::Result<Output> {
    if args.scenario.as_deref() == Some(LIST) {
        return Ok(Output::ok(list()?));
    }
    if let Some(path) = &args.html {
        // The file is opened before the run, so that an error appears immediately.
        let opened = fs::OpenOptions::new().append(true).create(true).open(path);
        opened.with_context(|| format!("--html {}: can't be written", path.display()))?;
    }
    let bar = Bar::new(args.quiet);
    let report = match (&args.scenario, &args.policy, &args.workload, &args.mesh) {
        (Some(name), ..) => {
            let (scenario, size) = (scenario(name)?, args.size());
            let checked = scenario.check_size();
            let size = match args.quick {
                true => Size {
                    requests: checked.requests,
                    seeds: checked.seeds,
                    ..size
                },
                false => size,
            };
            scenario.run(&size, &bar).map_err(anyhow::Error::from)
        }
        (None, Some(policy), Some(workload), _) => {
            let trial = trial(args, policy, workload)?;
            trial.run(&args.size(), &bar).map_err(anyhow::Error::from)
        }
        (None, Some(policy), None, Some(mesh)) => {
            let study = mesh::study(policy, mesh)?;
            study.run(&args.size(), &bar).map_err(anyhow::Error::from)
        }
        // clap permits no other combination.
        _ => bail!("--policy with --workload or --mesh, or --scenario"),
    };
    bar.end();
    present(args, &report?)
}

/// Returns the output for a report, and writes the page of `--html`.
fn present(args: &SimulateArgs, report: &Report) -> anyhow::Result<Output> {
    let verdict = report.verdict();
    let mut notes = String::new();
    if let Some(path) = &args.html {
        let written = fs::write(path, html::html(report));
        written.with_context(|| format!("--html {}: can't be written", path.display()))?;
    }
    // Writing to a String does not fail.
    let text = match args.json {
        false => text::text(report),
        true => {
            for note in &report.notes {
                let _ = writeln!(notes, "note: {note}");
            }
            json(report)?
        }
    };
    if args.check && !verdict.holds() {
        let summary = verdict.summary().unwrap_or_default();
        let summary = summary.split(';').next().unwrap_or_default();
        let _ = writeln!(notes, "error: {summary}");
        if args.json {
            for failure in &verdict.failures {
                let _ = writeln!(notes, "  {failure}");
            }
        }
    }
    Ok(Output {
        text,
        notes,
        ok: !args.check || verdict.holds(),
    })
}

fn list() -> anyhow::Result<String> {
    let scenarios = headgate_scenarios::all()?;
    let mut text = columns(scenarios.iter().map(|s| (s.name(), s.title())));
    text.push_str("\nParts of the papers without a scenario:\n");
    text.push_str(&columns(headgate_scenarios::MISSING.into_iter()));
    Ok(text)
}

/// Returns aligned lines of names and descriptions.
fn columns<'a>(rows: impl Iterator<Item = (&'a str, &'a str)> + Clone) -> String {
    let widest = rows.clone().map(|(name, _)| name.len()).max().unwrap_or(0);
    let line = |(name, what)| format!("{name:widest$}  {what}\n");
    rows.map(line).collect()
}

fn scenario(name: &str) -> anyhow::Result<Scenario> {
    if let Some(scenario) = headgate_scenarios::by_name(name)? {
        return Ok(scenario);
    }
    let scenarios = headgate_scenarios::all()?;
    let right = instead_of(name, scenarios.iter().map(Scenario::name));
    bail!("--scenario {name}: no such scenario; {right}")
}

fn trial(args: &SimulateArgs, policy: &Path, workload: &Path) -> anyhow::Result<Trial> {
    let policy = policy_in(policy)?;
    let config = configuration(&policy, args.endpoints.get());
    let stage = config.stages.first().context("the policy has no stage")?;
    let named = workload.display().to_string();
    let plan = workload::plan(workload, stage)?;
    let name = policy.full_name();
    Ok(Trial::new(stage.clone(), &name, plan, &named))
}

/// Returns the only policy in a file.
fn policy_in(file: &Path) -> anyhow::Result<ValidPolicy> {
    let reports = input::read(&[file])?;
    match input::policies(&reports)?.as_slice() {
        [policy] => Ok((*policy).clone()),
        several => bail!(
            "--policy {}: {} policies ({}); give a file with one policy",
            file.display(),
            several.len(),
            several
                .iter()
                .map(|policy| policy.full_name())
                .collect::<Vec<_>>()
                .join(", ")
        ),
    }
}
