//! `headgate explain`: shows the rule that a request matches, the reasons why earlier rules don't
//! match, and how the policy treats the request.

use std::borrow::Cow;
use std::path::PathBuf;

use anyhow::{Context as _, anyhow};
use clap::Args;
use headgate_core::classify::trace::{Outcome, trace};
use headgate_core::classify::{Classified, RequestView};
use headgate_core::config::{Match, Measure, Objective, WorkflowSource, WorkflowsConfig};
use headgate_mesh::engine::named;
use serde::Serialize;

use crate::input::{self, Selection};
use crate::path::normalized;
use crate::validate::ReportFormat;
use headgate_api::Duration;
use headgate_api::plan::TargetRef;
use headgate_command::output::{Output, json};
use settings::Setting;

mod computed;
mod conditions;
mod settings;
mod text;

/// The id of workflows without a rate of their own.
const OTHER: &str = "_other";

/// Shows the type of a request, the rule that matches it, and the settings for it.
#[derive(Debug, Clone, Args)]
pub(crate) struct ExplainArgs {
    /// Policy files, folders with such files, or - for standard input
    #[arg(required = true, value_name = "FILE|DIR")]
    pub(crate) files: Vec<PathBuf>,
    /// The request's method
    #[arg(long, short = 'X', value_name = "METHOD", default_value = "GET")]
    pub(crate) method: String,
    /// The request's path, with or without a query string
    #[arg(long, value_name = "PATH", default_value = "/")]
    pub(crate) path: String,
    /// A request header; may be repeated
    #[arg(long = "header", short = 'H', value_name = "NAME:VALUE", value_parser = header)]
    pub(crate) headers: Vec<(String, String)>,
    /// A value in Envoy's dynamic metadata, such as
    /// envoy.filters.http.jwt_authn/claims/tenant=acme; may be repeated
    #[arg(long, value_name = "NAMESPACE/KEY=VALUE", value_parser = metadata)]
    pub(crate) metadata: Vec<(Vec<String>, String)>,
    /// Name of the Envoy route that the request takes
    #[arg(long, value_name = "NAME")]
    pub(crate) route: Option<String>,
    /// Target object, such as Service/default/search; required if policies have several targets
    #[arg(long, value_name = "KIND/NAMESPACE/NAME")]
    pub(crate) workload: Option<TargetRef>,
    /// Output format
    #[arg(long, short, value_name = "FORMAT", default_value = "text")]
    pub(crate) output: ReportFormat,
}

fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text
        .split_once(':')
        .ok_or_else(|| format!("{text:?} has no colon; NAME:VALUE"))?;
    if name.is_empty() {
        return Err(format!(
            "{text:?} has no name; use --path, --method and --header Host:… for pseudo-headers"
        ));
    }
    Ok((name.trim().to_ascii_lowercase(), value.trim().to_owned()))
}

/// Parses `NAMESPACE/KEY/KEY=VALUE`.
fn metadata(text: &str) -> Result<(Vec<String>, String), String> {
    let right = "NAMESPACE/KEY=VALUE, such as envoy.filters.http.jwt_authn/claims/tenant=acme";
    let (path, value) = text
        .split_once('=')
        .ok_or_else(|| format!("{text:?} has no =; {right}"))?;
    let path: Vec<String> = path.split('/').map(str::to_owned).collect();
    if path.len() < 2 || path.iter().any(String::is_empty) {
        return Err(format!("{text:?}; {right}"));
    }
    Ok((path, value.to_owned()))
}

impl RequestView for ExplainArgs {
    fn path(&self) -> Option<&[u8]> {
        Some(self.path.as_bytes())
    }

    fn method(&self) -> Option<&[u8]> {
        Some(self.method.as_bytes())
    }

    fn header(&self, name: &str) -> Option<&[u8]> {
        let found = self.headers.iter().find(|(n, _)| n == name);
        found.map(|(_, value)| value.as_bytes())
    }

    fn values(&self, name: &'static str) -> impl Iterator<Item = &[u8]> {
        let named = self.headers.iter().filter(move |(n, _)| n == name);
        named.map(|(_, value)| value.as_bytes())
    }

    fn route_name(&self) -> Option<&[u8]> {
        self.route.as_deref().map(str::as_bytes)
    }

    fn metadata(&self, path: &[String]) -> Option<Cow<'_, [u8]>> {
        let found = self.metadata.iter().find(|(at, _)| at == path);
        found.map(|(_, value)| Cow::Borrowed(value.as_bytes()))
    }
}

/// The explanation of a request.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Explanation {
    policy: String,
    file: String,
    workload: String,
    /// The type. `None` if the request bypasses admission. The settings are empty in this case.
    #[serde(rename = "type")]
    kind: Option<String>,
    matched: String,
    objectives: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    class: Option<Class>,
    #[serde(skip_serializing_if = "Option::is_none")]
    workflow: Option<Workflow>,
    /// The values computed from the settings for this request.
    computed: Vec<String>,
    /// The settings in force.
    settings: Vec<Setting>,
    /// The rules that were tested for the type, in order.
    tried: Vec<Rule>,
    /// The rules that were tested for the class, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tried_for_class: Vec<Rule>,
}

#[derive(Debug, Serialize)]
struct Class {
    name: String,
    matched: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Workflow {
    name: String,
    /// The source that named the workflow, or a note that none did.
    found_by: String,
}

#[derive(Debug, Serialize)]
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
/// Returns an error for a file that can't be read, or if there are several targets and none is
/// chosen.
pub(crate) fn run(args: &ExplainArgs) -> anyhow::Result<Output> {
    let selection = input::select(&args.files, args.workload.as_ref(), 1, 1)?;
    let explanation = explain(&selection, args)?;
    let text = match args.output {
        ReportFormat::Json => json(&explanation)?,
        ReportFormat::Text => text::text(&explanation),
    };
    Ok(Output {
        notes: unnormalized(&args.path),
        ..Output::ok(text)
    })
}

/// Returns a warning if a proxy that normalizes paths compares another path with the rules.
fn unnormalized(path: &str) -> String {
    let path = path.split(['?', '#']).next().unwrap_or_default();
    let normal = format!("/{}", normalized(path).join("/"));
    match path.starts_with('/') && path != normal {
        true => format!("warning: --path {path}: Envoy normalizes it to {normal}; write that\n"),
        false => String::new(),
    }
}

fn explain(selection: &Selection, request: &ExplainArgs) -> anyhow::Result<Explanation> {
    let stage = selection.stage()?;
    let found = selection.document(&stage.policy);
    let (file, document) = found.context("policy without a document")?;
    let trace = trace(stage, request).map_err(|e| anyhow!("{e}"))?;
    let mut tried = rules("exclude", &stage.excluded, &trace.excluded, request);
    let types = stage.types.iter().map(|t| (&t.name, t.matches.as_slice()));
    tried.extend(all_rules(types, &trace.types, request));
    let classes = stage
        .classes
        .iter()
        .map(|c| (&c.name, c.matches.as_slice()));
    let explanation = Explanation {
        policy: stage.policy.clone(),
        file: file.to_owned(),
        workload: selection.target.to_string(),
        matched: matched(&tried),
        tried,
        tried_for_class: all_rules(classes, &trace.classes, request),
        ..Explanation::default()
    };
    let Classified::Type(id) = trace.classified else {
        return Ok(explanation);
    };
    let (id, class) = (usize::from(id.0), usize::from(trace.class.0));
    let (kind, class_config) = (&stage.types[id], stage.classes.get(class));
    let workflow = stage.workflows.as_ref();
    let workflow = workflow.map(|config| workflow_of(config, &kind.name, request));
    let promises = document.policy.as_ref().ok();
    let promises = promises.and_then(|policy| policy.promises.as_ref());
    let computed = computed::strategy(stage, id, class).into_iter();
    let computed = computed.chain(computed::cost(stage, id));
    let computed = computed.chain(computed::tokens(stage));
    let computed = computed.chain(computed::on_refusal(stage, id));
    let recovery = promises.and_then(|promises| computed::recovery(promises, trace.class));
    let calls = selection.outbound.as_ref();
    let calls = calls.and_then(|config| config.outbound.as_ref());
    let reductions = calls.into_iter().flat_map(computed::reductions);
    let spec = document.spec.as_ref().context("policy without a spec")?;
    let end = match stage.measure_of(kind) {
        Measure::LastByte => "",
        Measure::FirstByte => " to the first byte",
    };
    let all = kind.slo.iter().map(|o| (o, end));
    let all = all.chain(kind.tpot.iter().map(|o| (o, " per output token")));
    let objective = |(o, of): (&Objective, &str)| {
        format!(
            "p{}{of} within {}",
            o.percentile,
            Duration::of_micros(o.objective_us)
        )
    };
    Ok(Explanation {
        kind: Some(kind.name.clone()),
        objectives: all.map(objective).collect(),
        class: class_config.map(|class| Class {
            name: class.name.clone(),
            matched: matched(&explanation.tried_for_class),
        }),
        computed: computed.chain(recovery).chain(reductions).collect(),
        settings: settings::settings(spec, stage, promises, workflow.as_ref())?,
        workflow,
        ..explanation
    })
}

/// Returns the workflow of a request of the type `kind`.
fn workflow_of(config: &WorkflowsConfig, kind: &str, request: &ExplainArgs) -> Workflow {
    let source = |source: &WorkflowSource| match source {
        WorkflowSource::Baggage { key } => format!("baggage member {key}"),
        WorkflowSource::Header { name } => format!("header {name}"),
        WorkflowSource::Metadata { path } => format!("metadata {}", path.join("/")),
        WorkflowSource::Type => "its type".to_owned(),
    };
    match named(config, request, kind) {
        Some((at, name)) => Workflow {
            name: String::from_utf8_lossy(&name).into_owned(),
            found_by: format!("found by {}", source(&config.identify[at])),
        },
        None => {
            let sources: Vec<String> = config.identify.iter().map(source).collect();
            Workflow {
                name: OTHER.to_owned(),
                found_by: format!("named by none of: {}", sources.join(", ")),
            }
        }
    }
}

fn matched(tried: &[Rule]) -> String {
    let rule = tried.iter().find(|r| r.matches);
    rule.map(|r| format!("{}: {}", r.rule, r.condition))
        .unwrap_or_default()
}

/// Returns the rules of all types, or of all classes. The last type or class has no rules and
/// matches all other requests.
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
