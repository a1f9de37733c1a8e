//! `headgate explain`: which rule a request matches, and why not the rules before it.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration as Span;

use anyhow::{Context as _, anyhow};
use clap::Args;
use headgate_core::classify::trace::{Outcome, Trace, trace};
use headgate_core::classify::{Classified, RequestView};
use headgate_core::config::{Match, Objective, StageConfig, StarvationAvoidance, StrategyConfig};
use serde::Serialize;

use super::validate::ReportFormat;
use super::{Output, input};
use crate::api::Duration;
use crate::plan::TargetRef;

mod words;

/// Tells which type a request is of, by which rule, and what holds for it.
#[derive(Debug, Clone, Args)]
pub struct ExplainArgs {
    /// Policy files, folders with such files, or - for standard input
    #[arg(required = true, value_name = "FILE|DIR")]
    pub files: Vec<PathBuf>,
    /// The request's method
    #[arg(long, short = 'X', value_name = "METHOD", default_value = "GET")]
    pub method: String,
    /// The request's path, with or without a query string
    #[arg(long, value_name = "PATH", default_value = "/")]
    pub path: String,
    /// A request header; may be given several times
    #[arg(long = "header", short = 'H', value_name = "NAME:VALUE", value_parser = header)]
    pub headers: Vec<(String, String)>,
    /// Name of the Envoy route that the request takes
    #[arg(long, value_name = "NAME")]
    pub route: Option<String>,
    /// For which object, such as Service/default/search; needed where policies have several targets
    #[arg(long, value_name = "KIND/NAMESPACE/NAME")]
    pub workload: Option<TargetRef>,
    /// How the answer looks
    #[arg(long, short, value_name = "FORMAT", default_value = "text")]
    pub output: ReportFormat,
}

fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text
        .split_once(':')
        .ok_or_else(|| format!("{text:?} has no colon; NAME:VALUE"))?;
    if name.is_empty() {
        return Err(format!(
            "{text:?} has no name; use --path and --method for :path and :method"
        ));
    }
    Ok((name.trim().to_ascii_lowercase(), value.trim().to_owned()))
}

impl RequestView for ExplainArgs {
    fn path(&self) -> Option<&[u8]> {
        Some(self.path.as_bytes())
    }

    fn method(&self) -> Option<&[u8]> {
        Some(self.method.as_bytes())
    }

    fn header(&self, name: &str) -> Option<&[u8]> {
        self.headers
            .iter()
            .find(|(n, _)| n == name)
            .map(|(_, value)| value.as_bytes())
    }

    fn route_name(&self) -> Option<&[u8]> {
        self.route.as_deref().map(str::as_bytes)
    }
}

/// The answer.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Explanation {
    policy: String,
    file: String,
    workload: TargetRef,
    /// `None`: the request bypasses admission.
    #[serde(rename = "type")]
    kind: Option<String>,
    matched: String,
    objectives: Vec<String>,
    mode: String,
    parallelism: u32,
    strategy: String,
    queue: String,
    /// Every rule that was tried, in order.
    tried: Vec<Rule>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Rule {
    rule: String,
    condition: String,
    matches: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    because: Option<String>,
}

/// Explains a request.
///
/// # Errors
/// A file that can't be read, or several targets to choose from.
pub fn run(args: &ExplainArgs) -> anyhow::Result<Output> {
    let reports = input::read(&args.files)?;
    let policies = match input::policies(&reports) {
        Ok(policies) => policies,
        Err(output) => return Ok(output),
    };
    let compiled = input::compiled(&policies);
    let target = input::target(&compiled, args.workload.as_ref())?;
    let config = compiled
        .workloads
        .get(target)
        .with_context(|| format!("no policy targets {target}"))?;
    let stage = config
        .stages
        .first()
        .with_context(|| format!("nothing is enforced for {target}"))?;
    let file = reports
        .iter()
        .find(|r| r.policies().any(|p| p.full_name() == stage.policy));

    let trace = trace(stage, args).map_err(|e| anyhow!("{e}"))?;
    let file = file.map(|r| r.file.clone()).unwrap_or_default();
    let explanation = explain(stage, &trace, args, file, target.clone());
    let text = match args.output {
        ReportFormat::Json => serde_json::to_string_pretty(&explanation)? + "\n",
        ReportFormat::Text => explanation.text(),
    };
    Ok(Output::ok(text))
}

fn explain(
    stage: &StageConfig,
    trace: &Trace,
    request: &ExplainArgs,
    file: String,
    workload: TargetRef,
) -> Explanation {
    let mut tried = rules("exclude", &stage.excluded, &trace.excluded, request);
    for (kind, outcomes) in stage.types.iter().zip(&trace.types) {
        if kind.matches.is_empty() {
            tried.push(Rule {
                rule: kind.name.clone(),
                condition: "everything else".to_owned(),
                matches: true,
                because: None,
            });
        }
        tried.extend(rules(&kind.name, &kind.matches, outcomes, request));
    }
    let kind = match trace.class {
        Classified::Type(id) => stage.types.get(usize::from(id.0)),
        Classified::Excluded => None,
    };
    let matched = tried.iter().find(|r| r.matches);
    Explanation {
        policy: stage.policy.clone(),
        file,
        workload,
        kind: kind.map(|k| k.name.clone()),
        matched: matched
            .map(|r| format!("{}: {}", r.rule, r.condition))
            .unwrap_or_default(),
        objectives: kind
            .map(|k| k.slo.iter().map(objective).collect())
            .unwrap_or_default(),
        mode: format!("{:?}", stage.mode),
        parallelism: stage.parallelism,
        strategy: strategy(stage),
        queue: queue(stage),
        tried,
    }
}

fn rules(owner: &str, rules: &[Match], outcomes: &[Outcome], request: &ExplainArgs) -> Vec<Rule> {
    let several = rules.len() > 1;
    let rule = |(i, (rule, outcome)): (usize, (&Match, &Outcome))| Rule {
        rule: if several {
            format!("{owner}[{i}]")
        } else {
            owner.to_owned()
        },
        condition: words::condition(rule),
        matches: outcome.is_none(),
        because: outcome.map(|failing| words::because(rule, failing, request)),
    };
    rules.iter().zip(outcomes).enumerate().map(rule).collect()
}

fn duration(us: u64) -> Duration {
    Duration::from(Span::from_micros(us))
}

fn objective(objective: &Objective) -> String {
    format!(
        "p{} within {}",
        objective.percentile,
        duration(objective.objective_us)
    )
}

fn strategy(stage: &StageConfig) -> String {
    let strategy = match stage.strategy {
        StrategyConfig::Bouncer { .. } => {
            let times = &stage.service_times;
            format!(
                "Bouncer (interval {}, at least {} samples)",
                duration(times.interval_us),
                times.min_samples
            )
        }
        StrategyConfig::MaxQueueLength => "MaxQueueLength".to_owned(),
        StrategyConfig::MaxQueueWait { .. } => "MaxQueueWait".to_owned(),
        StrategyConfig::AcceptFraction { .. } => "AcceptFraction".to_owned(),
        StrategyConfig::BacklogControl(_) => "BacklogControl".to_owned(),
        StrategyConfig::ResponseTimeController(_) => "ResponseTimeController".to_owned(),
    };
    let avoidance = match stage.starvation_avoidance {
        None => return strategy,
        Some(StarvationAvoidance::AcceptanceAllowance {
            allowance,
            window_us,
            step_us,
        }) => format!(
            "AcceptanceAllowance (allowance {allowance}, window {}, step {})",
            duration(window_us),
            duration(step_us)
        ),
        Some(StarvationAvoidance::HelpingTheUnderserved {
            alpha,
            window_us,
            step_us,
        }) => format!(
            "HelpingTheUnderserved (alpha {alpha}, window {}, step {})",
            duration(window_us),
            duration(step_us)
        ),
    };
    format!("{strategy} + {avoidance}")
}

fn queue(stage: &StageConfig) -> String {
    let queue = &stage.queue;
    let (length, timeout) = (queue.max_length, duration(queue.timeout_us));
    format!(
        "{:?}, first in first out, at most {length} requests and {timeout}",
        queue.mode
    )
}

impl Explanation {
    fn text(&self) -> String {
        let objectives = match self.objectives.as_slice() {
            [] => "none".to_owned(),
            some => some.join(", "),
        };
        let mut text = String::new();
        // Writing to a String does not fail.
        let mut line = |label: &str, value: &str| {
            let _ = writeln!(text, "{label:<12} {value}");
        };
        match &self.kind {
            Some(kind) => {
                line("type", kind);
                line("matched", &self.matched);
                line("objectives", &objectives);
            }
            None => {
                line("type", "none: the request bypasses admission");
                line("matched", &self.matched);
            }
        }
        line("policy", &format!("{} ({})", self.policy, self.file));
        line("workload", &self.workload.to_string());
        line("mode", &self.mode);
        line("parallelism", &self.parallelism.to_string());
        line("strategy", &self.strategy);
        line("queue", &self.queue);
        text.push_str("\nRules are tried in this order, exclusions first; the first match wins:\n");
        let widest = self
            .tried
            .iter()
            .map(|r| r.rule.chars().count())
            .max()
            .unwrap_or(0);
        for Rule {
            rule,
            condition,
            matches,
            because,
        } in &self.tried
        {
            let answer = if *matches { "yes" } else { "no " };
            let because = because
                .as_ref()
                .map(|b| format!(" ({b})"))
                .unwrap_or_default();
            let _ = writeln!(text, "  {answer} {rule:<widest$} {condition}{because}");
        }
        text
    }
}
