//! The page of stats, generated from the comments beside their definitions.

use std::fmt::Write as _;

use anyhow::{Context, Result, ensure};

use super::expanded;
use super::reference::{cell, head, read};

/// The files of `filter` that define stats of a policy, each with the heading of its stats.
const STATS: [(&str, &str); 2] = [
    ("core/src/stats.rs", "Requests, by policy and type"),
    (
        "mesh/src/workflows/stats.rs",
        "Workflows and calls, by policy",
    ),
];

pub(super) fn page() -> Result<String> {
    let mut page = head(
        "Stats of the filter",
        "filter/core/src/stats.rs and filter/mesh/src/workflows/stats.rs",
        "In `/stats` of Envoy's admin interface each begins with \
         `wasmcustom.headgate.policy.NAMESPACE/NAME.` or, with the native filter in \
         Envoy Gateway, `dynamicmodulescustom.headgate.policy.NAMESPACE/NAME.`. Prometheus sees \
         `headgate_rq_total{headgate_policy=\"shop/search\", headgate_type=\"slow\"}` where Envoy \
         has the [tags](metrics.md#labels-of-the-proxies-metrics). Counters are added to at each \
         tick, distributions as they happen. `headgate.panics`, without a policy, is a gauge of \
         the native filter: its panics so far.",
    );
    for (file, title) in STATS {
        let source = read(&format!("filter/{file}"))?;
        let _ = writeln!(page, "## {title}\n\n| stat | | |\n|---|---|---|");
        for line in source
            .lines()
            .filter_map(|l| l.strip_prefix("//! headgate.policy.<namespace>/<name>."))
        {
            let (name, rest) = line.split_once(' ').unwrap_or((line, ""));
            let (kind, text) = rest.trim().split_once(' ').unwrap_or((rest.trim(), ""));
            if !name.ends_with("<counter>") && !text.is_empty() {
                row(&mut page, name, kind.trim_end_matches('s'), text);
            }
        }
        let of = if file == "core/src/stats.rs" {
            "type.<type>"
        } else {
            "workflow.<workflow>"
        };
        for (name, text) in counters(
            &source,
            "pub enum Count {",
            "pub(super) enum Count {",
            "COUNTERS",
        )? {
            row(&mut page, &format!("{of}.{name}"), "counter", &text);
        }
        if file == "core/src/stats.rs" {
            for (name, text) in counters(&source, "pub enum StageCount {", "", "STAGE_COUNTERS")? {
                row(&mut page, &name, "counter", &text);
            }
        }
        page.push('\n');
    }
    Ok(page)
}

/// Writes a row for `name`. If the name contains a list such as `{a,b}`, each alternative gets a
/// row.
fn row(page: &mut String, name: &str, kind: &str, text: &str) {
    for name in expanded(name) {
        let _ = writeln!(page, "| `{name}` | {kind} | {} |", cell(text));
    }
}

/// Returns the names in the array `names` of `source`, each with the doc comment of the enum
/// variant at the same position.
fn counters(source: &str, head: &str, or: &str, names: &str) -> Result<Vec<(String, String)>> {
    let body = |from: &str, end: &str| {
        let (_, rest) = source.split_once(from)?;
        rest.split_once(end).map(|(body, _)| body.to_owned())
    };
    let docs = body(head, "\n}").or_else(|| body(or, "\n}"));
    let names = body(&format!("const {names}: [&str; "), "];").with_context(|| names.to_owned())?;
    let (mut texts, mut text) = (Vec::new(), String::new());
    for line in docs
        .with_context(|| head.to_owned())?
        .lines()
        .map(str::trim)
    {
        match line.strip_prefix("///") {
            Some(more) => text.push_str(more),
            None if line.ends_with(',') => texts.push(std::mem::take(&mut text)),
            None => {}
        }
    }
    let names: Vec<&str> = names.split('"').skip(1).step_by(2).collect();
    ensure!(
        names.len() == texts.len(),
        "{head}: {names:?} and {texts:?}"
    );
    Ok(names.into_iter().map(str::to_owned).zip(texts).collect())
}
