//! `headgate explain`: the rule that a request matches, the reasons why earlier rules don't match,
//! and the request's treatment by its policy.

use std::borrow::Cow;
use std::path::PathBuf;
use std::time::Duration as Span;

use anyhow::anyhow;
use clap::Args;
use headgate_core::classify::trace::{Outcome, Trace, trace};
use headgate_core::classify::{Classified, RequestView};
use headgate_core::config::{
    ATTEMPT_HEADERS, AutoParallelism, ClassConfig, ErrorsConfig, Match, Measure, Mode,
    RetriesConfig, ServiceAdmissionConfig, StageConfig, TypeConfig,
};
use serde::Serialize;

use super::input::Scale;
use super::validate::ReportFormat;
use super::{Output, input};
use headgate_api::Duration;
use headgate_api::plan::TargetRef;

mod admission;
mod calls;
mod conditions;
mod feedback;
mod queue;
mod strategy;
mod text;
mod workflow;

/// Shows the type of a request, the rule that matches it, and the settings for it.
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
    /// A value in Envoy's dynamic metadata, such as
    /// envoy.filters.http.jwt_authn/claims/tenant=acme; may be given several times
    #[arg(long, value_name = "NAMESPACE/KEY=VALUE", value_parser = workflow::metadata)]
    pub metadata: Vec<(Vec<String>, String)>,
    /// Name of the Envoy route that the request takes
    #[arg(long, value_name = "NAME")]
    pub route: Option<String>,
    /// The target, such as Service/default/search; required if policies have several
    #[arg(long, value_name = "KIND/NAMESPACE/NAME")]
    pub workload: Option<TargetRef>,
    /// Output format
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

    fn metadata(&self, path: &[String]) -> Option<Cow<'_, [u8]>> {
        let found = self.metadata.iter().find(|(at, _)| at == path);
        found.map(|(_, value)| Cow::Borrowed(value.as_bytes()))
    }
}

/// P: a number, or the bounds of the number that proxies find.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(untagged)]
enum Slots {
    Fixed(u32),
    Auto { auto: AutoParallelism },
}

impl std::fmt::Display for Slots {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Fixed(slots) => write!(f, "{slots}"),
            Self::Auto {
                auto: AutoParallelism { min, max },
            } => write!(f, "found by each proxy, {min} to {max}"),
        }
    }
}

/// The explanation of a request.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Explanation {
    policy: String,
    file: String,
    workload: TargetRef,
    /// `None` if the request bypasses admission.
    #[serde(rename = "type")]
    kind: Option<String>,
    matched: String,
    objectives: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    class: Option<Class>,
    mode: String,
    parallelism: Slots,
    /// The moments at which processing times end and slots become free, unless they are the
    /// default.
    #[serde(skip_serializing_if = "Option::is_none")]
    measure: Option<&'static str>,
    /// The responses that are errors, if the policy sets them.
    #[serde(skip_serializing_if = "Option::is_none")]
    errors: Option<String>,
    /// The requests that are retries, if the policy names a header.
    #[serde(skip_serializing_if = "Option::is_none")]
    retries: Option<String>,
    strategy: Part,
    #[serde(skip_serializing_if = "Option::is_none")]
    starvation_avoidance: Option<Part>,
    queue: Part,
    #[serde(skip_serializing_if = "Option::is_none")]
    workflow: Option<workflow::Workflow>,
    /// Effects on the backend's own calls, beside those of workflows and classes.
    #[serde(skip_serializing_if = "Option::is_none")]
    calls: Option<Part>,
    /// Every rule that was tried for the type, in order.
    tried: Vec<Rule>,
    /// Every rule that was tried for the class.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tried_for_class: Vec<Rule>,
}

#[derive(Debug, Serialize)]
struct Class {
    name: String,
    matched: String,
    /// The effects of classes; empty without any.
    matters: &'static str,
    /// The effects of class admission on this class.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    admission: Vec<String>,
}

/// A part of a policy: its name and its effects on this request.
#[derive(Debug, Serialize)]
struct Part {
    name: String,
    does: Vec<String>,
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
/// Returns an error for a file that can't be read, or several targets without a choice.
pub fn run(args: &ExplainArgs) -> anyhow::Result<Output> {
    let selection = match input::select(&args.files, args.workload.as_ref(), Scale::ONE)? {
        Ok(selection) => selection,
        Err(output) => return Ok(output),
    };
    let stage = selection.stage()?;
    let trace = trace(stage, args).map_err(|e| anyhow!("{e}"))?;
    let file = selection.file_of(&stage.policy);
    let promises = selection.promises.get(&stage.policy);
    let mut explanation = explain((stage, promises), &trace, args, file, &selection.target);
    let calls = selection.outbound.as_ref();
    let calls = calls.and_then(|config| config.outbound.as_ref()?.smoothing.as_ref());
    explanation.calls = calls.map(calls::calls);
    let text = match args.output {
        ReportFormat::Json => serde_json::to_string_pretty(&explanation)? + "\n",
        ReportFormat::Text => text::text(&explanation),
    };
    Ok(Output::ok(text))
}

fn explain(
    (stage, promises): (&StageConfig, Option<&ServiceAdmissionConfig>),
    trace: &Trace,
    request: &ExplainArgs,
    file: &str,
    workload: &TargetRef,
) -> Explanation {
    let mut tried = rules("exclude", &stage.excluded, &trace.excluded, request);
    let types = stage.types.iter().map(|t| (&t.name, t.matches.as_slice()));
    tried.extend(all_rules(types, &trace.types, request));
    let classes = stage
        .classes
        .iter()
        .map(|c| (&c.name, c.matches.as_slice()));
    let tried_for_class = all_rules(classes, &trace.classes, request);
    let kind = match trace.classified {
        Classified::Type(id) => Some(usize::from(id.0)),
        Classified::Excluded => None,
    };
    let subject = Subject {
        stage,
        kind,
        class: kind.map(|_| usize::from(trace.class.0)),
    };
    let kind = subject.type_config();
    let objectives = kind.map(|k| k.slo.as_slice()).unwrap_or_default();
    Explanation {
        policy: stage.policy.clone(),
        file: file.to_owned(),
        workload: workload.clone(),
        kind: kind.map(|k| k.name.clone()),
        matched: matched(&tried),
        objectives: objectives
            .iter()
            .map(|o| format!("p{} within {}", o.percentile, duration(o.objective_us)))
            .collect(),
        class: subject.class_name().map(|name| Class {
            name: name.to_owned(),
            matched: matched(&tried_for_class),
            matters: strategy::use_of_classes(stage),
            admission: admission::admission(&subject, promises),
        }),
        mode: match stage.mode {
            Mode::Enforce => "Enforce".to_owned(),
            Mode::DryRun => "DryRun: decides and counts, refuses nothing, holds nothing".to_owned(),
        },
        parallelism: match stage.auto_parallelism {
            None => Slots::Fixed(stage.parallelism),
            Some(auto) => Slots::Auto { auto },
        },
        measure: match (stage.measure, stage.release_slot) {
            (Measure::LastByte, _) => None,
            (Measure::FirstByte, Measure::LastByte) => {
                Some("to the first byte of the response's body; its slot is free at its last")
            }
            (Measure::FirstByte, Measure::FirstByte) => {
                Some("to the first byte of the response's body; its slot is free then")
            }
        },
        errors: errors(&stage.errors),
        retries: stage.retries.as_ref().map(retries),
        strategy: strategy::strategy(&subject),
        starvation_avoidance: strategy::starvation_avoidance(stage),
        queue: queue::queue(&subject),
        workflow: workflow::workflow(&subject, request),
        calls: None,
        tried,
        tried_for_class,
    }
}

/// Returns the responses that are errors, unless they are the default.
fn errors(errors: &ErrorsConfig) -> Option<String> {
    if *errors == ErrorsConfig::default() {
        return None;
    }
    let http = errors.http.iter().map(|(first, last)| match first == last {
        true => first.to_string(),
        false => format!("{first} to {last}"),
    });
    let grpc = errors.grpc.iter().map(|status| format!("gRPC {status}"));
    let mut all: Vec<String> = http.chain(grpc).collect();
    all.push("timeouts and resets".to_owned());
    Some(all.join(", "))
}

/// Describes the requests that are retries.
fn retries(own: &RetriesConfig) -> String {
    let own = (own.header.as_str(), own.first_attempt);
    let headers = std::iter::once(own).chain(ATTEMPT_HEADERS);
    let above: Vec<String> = headers
        .map(|(name, first)| format!("{name} above {first}"))
        .collect();
    above.join(" or ")
}

/// The request to explain, by its type and class.
struct Subject<'s> {
    stage: &'s StageConfig,
    /// Index of its type; `None` if it bypasses admission.
    kind: Option<usize>,
    /// Index of its class; `None` in a stage without classes.
    class: Option<usize>,
}

impl<'s> Subject<'s> {
    fn type_config(&self) -> Option<&'s TypeConfig> {
        self.stage.types.get(self.kind?)
    }

    fn class_config(&self) -> Option<&'s ClassConfig> {
        self.stage.classes.get(self.class?)
    }

    fn class_name(&self) -> Option<&'s str> {
        Some(&self.class_config()?.name)
    }
}

fn matched(tried: &[Rule]) -> String {
    let rule = tried.iter().find(|r| r.matches);
    rule.map(|r| format!("{}: {}", r.rule, r.condition))
        .unwrap_or_default()
}

/// Returns all rules of all types, or of all classes, that were tried; the last type or class has
/// none.
fn all_rules<'s>(
    lists: impl Iterator<Item = (&'s String, &'s [Match])>,
    outcomes: &[Vec<Outcome>],
    request: &ExplainArgs,
) -> Vec<Rule> {
    let mut tried = Vec::new();
    for ((name, matches), outcomes) in lists.zip(outcomes) {
        if matches.is_empty() {
            tried.push(Rule {
                rule: name.clone(),
                condition: "everything else".to_owned(),
                matches: true,
                because: None,
            });
        }
        tried.extend(rules(name, matches, outcomes, request));
    }
    tried
}

fn rules(owner: &str, rules: &[Match], outcomes: &[Outcome], request: &ExplainArgs) -> Vec<Rule> {
    let several = rules.len() > 1;
    let rule = |(i, (rule, outcome)): (usize, (&Match, &Outcome))| Rule {
        rule: if several {
            format!("{owner}[{i}]")
        } else {
            owner.to_owned()
        },
        condition: conditions::condition(rule),
        matches: outcome.is_none(),
        because: outcome.map(|failing| conditions::because(rule, failing, request)),
    };
    rules.iter().zip(outcomes).enumerate().map(rule).collect()
}

fn duration(us: u64) -> Duration {
    Duration::from(Span::from_micros(us))
}
