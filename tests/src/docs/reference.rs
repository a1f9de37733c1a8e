//! The book's reference pages. Each is generated from the source that defines its content.

use std::fmt::Write as _;
use std::fs;

use anyhow::{Context, Result};
use clap::{Command, CommandFactory as _};
use headgate::Cli;
use headgate_strategies::reason::Reason;
use regex_lite::Regex;
use serde_json::{Value, json};

use super::stats;
use crate::chart;
use crate::kube::programs::repository;

/// A page: the name of its file in `docs/src/reference`, and its text.
pub type Page = (&'static str, String);

/// Generates all pages.
///
/// # Errors
/// If a source can't be read or doesn't have the expected form.
pub fn pages() -> Result<Vec<Page>> {
    Ok(vec![
        ("fields.md", fields()?),
        ("stats.md", stats::page()?),
        ("reasons.md", reasons()),
        ("cli.md", cli()),
        ("chart.md", values()?),
        ("alerts.md", alerts()?),
        ("metrics.md", metrics()?),
    ])
}

/// Returns the head of a page that is generated from `source`.
pub(super) fn head(title: &str, source: &str, text: &str) -> String {
    format!(
        "<!-- Made from {source} by a test of tests/src/docs; don't edit. -->\n# {title}\n\n\
         {text}\n\n"
    )
}

pub(super) fn read(path: &str) -> Result<String> {
    fs::read_to_string(repository().join(path)).with_context(|| path.to_owned())
}

/// Returns a text of several paragraphs as a cell of a table.
pub(super) fn cell(text: &str) -> String {
    let link = Regex::new(r"\[`(?:\w+::)*(\w+)`\]").map(|r| r.replace_all(text, "`$1`"));
    let text = link.unwrap_or(text.into());
    text.trim()
        .replace('|', "\\|")
        .replace('<', "&lt;")
        .replace("\n\n", "<br>")
        .replace('\n', " ")
}

fn fields() -> Result<String> {
    const SOURCE: &str = "crds/admissionpolicies.headgate.dev.yaml";
    let crd: Value = serde_saphyr::from_str(&read(SOURCE)?).context(SOURCE)?;
    let spec = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
    let all = spec["properties"]
        .as_object()
        .context("spec has no properties")?;
    let mut page = head(
        "Fields of an AdmissionPolicy",
        SOURCE,
        "`apiVersion: headgate.dev/v1alpha1`, `kind: AdmissionPolicy`. `kubectl explain \
         admissionpolicy.spec --recursive` says the same. `headgate validate` names a mistake by \
         its field and says what would be right. Durations are written `18ms`, `1s`, `1m30s`.",
    );
    for (name, schema) in all {
        let _ = writeln!(
            page,
            "## `{name}`\n\n{}\n",
            schema["description"].as_str().unwrap_or_default()
        );
        let mut rows = String::new();
        nested(schema, name, &mut rows);
        if rows.is_empty() {
            let _ = writeln!(page, "{}\n", facts(schema));
        } else {
            let _ = writeln!(
                page,
                "| field | type | default | |\n|---|---|---|---|\n{rows}"
            );
        }
    }
    Ok(page)
}

/// Writes a row for each field below `schema`. `at` is the path of `schema`.
fn nested(schema: &Value, at: &str, rows: &mut String) {
    if schema["items"].is_object() {
        return nested(&schema["items"], &format!("{at}[]"), rows);
    }
    if schema["additionalProperties"].is_object() {
        return nested(&schema["additionalProperties"], &format!("{at}.NAME"), rows);
    }
    for (name, of) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{at}.{name}");
        let text = cell(of["description"].as_str().unwrap_or_default());
        let required = schema["required"].as_array();
        let default = match &of["default"] {
            Value::Null if required.is_some_and(|all| all.contains(&json!(name))) => {
                "*required*".to_owned()
            }
            Value::Null => String::new(),
            Value::String(text) if !text.is_empty() => format!("`{text}`"),
            other => format!("`{other}`"),
        };
        let _ = writeln!(rows, "| `{path}` | {} | {default} | {text} |", kind(of));
        nested(of, &path, rows);
    }
}

fn kind(schema: &Value) -> String {
    match schema["type"].as_str() {
        Some("array") => format!("list of {}", kind(&schema["items"])),
        Some("object") if schema["additionalProperties"].is_object() => {
            format!("map to {}", kind(&schema["additionalProperties"]))
        }
        // Other enumerations list their values in the description.
        Some("string")
            if !schema["description"]
                .as_str()
                .is_some_and(|d| d.contains("\n\n")) =>
        {
            let values = schema["enum"].as_array().into_iter().flatten();
            let values: Vec<String> = values
                .filter_map(|v| Some(format!("`{}`", v.as_str()?)))
                .collect();
            match values.is_empty() {
                true => "string".to_owned(),
                false => values.join(", "),
            }
        }
        Some(other) => other.to_owned(),
        None => "any".to_owned(),
    }
}

fn facts(schema: &Value) -> String {
    match schema["default"].as_str() {
        Some(default) => format!("Type: {}. Default: `{default}`.", kind(schema)),
        None => format!("Type: {}.", kind(schema)),
    }
}

fn reasons() -> String {
    let mut page = head(
        "Reasons of refusals",
        "filter/strategies/src/reason.rs",
        "The reason is in the header `x-headgate-refused` of the answer, in the access log as \
         `%RESPONSE_CODE_DETAILS%` (`headgate_refused{REASON}`), in `rq_rejected.reason.REASON` \
         of the type's stats, and in the columns of `headgate top`. [Debugging a \
         refusal](../tasks/refusal.md) says what to do about each.",
    );
    page.push_str("| reason | HTTP | gRPC | refused because |\n|---|---|---|---|\n");
    let objective = Reason::Objective(50.0);
    for reason in std::iter::once(&objective).chain(Reason::FIXED) {
        let answer = reason.answer();
        let code = match answer.grpc {
            4 => "DEADLINE_EXCEEDED",
            8 => "RESOURCE_EXHAUSTED",
            14 => "UNAVAILABLE",
            _ => "?",
        };
        let _ = writeln!(
            page,
            "| `{reason}` | {} | {} `{code}` | {} |",
            answer.http, answer.grpc, answer.text
        );
    }
    page.push_str(
        "\n`slo_p50` is one of several: each objective has its own, such as `slo_p90` or \
         `slo_p99_9`.\n",
    );
    page
}

fn cli() -> String {
    let mut page = head(
        "Command line",
        "operator/cli/src",
        "`headgate COMMAND --help` prints the same. `kubectl headgate COMMAND` is the same \
         program under the name by which kubectl finds it. Exit codes: 0; 1 when something is \
         wrong with the input or the system; 2 when the command line is.",
    );
    let mut command = Cli::command();
    command.build();
    for sub in command
        .get_subcommands()
        .filter(|c| !c.is_hide_set() && c.get_name() != "help")
    {
        let name = format!("headgate {}", sub.get_name());
        help(&name, sub, &mut page);
    }
    page
}

fn help(name: &str, command: &Command, page: &mut String) {
    let text = command
        .clone()
        .term_width(100)
        .render_long_help()
        .to_string();
    let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    let _ = writeln!(
        page,
        "## {name}\n\n```text\n{}\n```\n",
        lines.join("\n").trim_end()
    );
    for sub in command.get_subcommands().filter(|c| c.get_name() != "help") {
        help(&format!("{name} {}", sub.get_name()), sub, page);
    }
}

fn values() -> Result<String> {
    const SOURCE: &str = "charts/headgate/values.yaml";
    let table = chart::table(&chart::values(&read(SOURCE)?)?);
    let text = "Helm refuses names and shapes that `values.schema.json` doesn't know.";
    Ok(head("Values of the chart", SOURCE, text) + &table)
}

fn alerts() -> Result<String> {
    let mut page = head(
        "Alerts",
        "charts/headgate/alerts",
        "`metrics.prometheusRule.enabled` of the chart makes a PrometheusRule of them. The files \
         are rule files for a Prometheus without an operator, too. promtool runs tests of each \
         alert.",
    );
    for file in ["policies", "workflows", "operator", "recording"] {
        let path = format!("charts/headgate/alerts/{file}.yaml");
        let rules: Value = serde_saphyr::from_str(&read(&path)?).context(path)?;
        for rule in rules["groups"].as_array().into_iter().flatten() {
            let _ = writeln!(page, "## {}\n", rule["name"].as_str().unwrap_or_default());
            for rule in rule["rules"].as_array().into_iter().flatten() {
                let text = |at: &str| {
                    rule.pointer(at)
                        .and_then(Value::as_str)
                        .unwrap_or_default()
                        .trim()
                };
                let expr = text("/expr");
                match text("/alert") {
                    "" => {
                        let _ = writeln!(page, "`{}`\n\n```promql\n{expr}\n```\n", text("/record"));
                    }
                    name => {
                        let wait = match text("/for") {
                            "" => String::new(),
                            wait => format!(", after {wait}"),
                        };
                        let _ = writeln!(
                            page,
                            "### {name}\n\nSeverity: {severity}{wait}. {description}\n\n**What to \
                             do.** {runbook}\n\n```promql\n{expr}\n```\n",
                            severity = text("/labels/severity"),
                            description = plain(text("/annotations/description")),
                            runbook = plain(text("/annotations/runbook")),
                        );
                    }
                }
            }
        }
    }
    Ok(page)
}

/// Returns the text of an alert without Prometheus' templates.
fn plain(text: &str) -> String {
    let mut text = text.replace('<', "&lt;");
    for (template, value) in [
        (r"\{\{ \$labels\.(\w+) \}\}", "`$1`"),
        (r"\{\{ \$value[^}]*Percentage \}\}", "N%"),
        (r"\{\{ \$value[^}]*\}\}", "N"),
    ] {
        if let Ok(regex) = Regex::new(template) {
            text = regex.replace_all(&text, value).into_owned();
        }
    }
    text
}

fn metrics() -> Result<String> {
    const SOURCE: &str = "charts/headgate/dashboards/README.md";
    const FROM: &str = "## Labels of the proxies' metrics";
    let readme = read(SOURCE)?;
    let (_, rest) = readme
        .split_once(FROM)
        .with_context(|| format!("{SOURCE}: no {FROM}"))?;
    let text = "Proxies count requests; the names are in [Stats of the filter](stats.md). \
                The operator counts configurations and its own work.";
    Ok(head("Metrics", SOURCE, text) + FROM + rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With `HEADGATE_RENEW=1`, the test writes the pages instead of comparing them.
    #[test]
    fn reference_pages_are_up_to_date() {
        let folder = super::super::folder().join("reference");
        let mut stale = Vec::new();
        for (name, text) in pages().unwrap() {
            let file = folder.join(name);
            if std::env::var_os("HEADGATE_RENEW").is_some() {
                fs::create_dir_all(&folder).unwrap();
                fs::write(file, text).unwrap();
            } else if fs::read_to_string(file).ok().as_deref() != Some(&text) {
                stale.push(name);
            }
        }
        assert!(
            stale.is_empty(),
            "docs/src/reference: {stale:?} are not what the code says; run HEADGATE_RENEW=1 cargo \
             test --release -p headgate-tests --lib docs::reference"
        );
    }
}
