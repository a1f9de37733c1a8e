//! Runs a dashboard's queries.

use anyhow::Result;
use regex_lite::Regex;

use super::{Bindings, Dashboard, Kind, Panel, picture};
use crate::prometheus::{INTERVAL, Prometheus, Series};

/// A panel with the answers to its queries.
#[derive(Debug, Clone)]
pub struct Shown {
    /// The panel.
    pub panel: Panel,
    /// The title of the panel, with the variables replaced.
    pub title: String,
    /// The title of the row that contains the panel.
    pub row: String,
    /// The number of this repetition of the panel, and the number of all repetitions.
    pub part: (usize, usize),
    /// The queries, with the variables replaced.
    pub queries: Vec<String>,
    /// The answer to each query.
    pub answers: Vec<Vec<Series>>,
}

impl Shown {
    /// Returns the queries whose answer has no number, because the answer is empty or has only NaN.
    pub fn empty(&self) -> impl Iterator<Item = &str> {
        let has_number = |s: &Series| s.points.iter().any(|(_, value)| value.is_finite());
        let all = self.queries.iter().zip(&self.answers);
        all.filter(move |(_, answer)| !answer.iter().any(has_number))
            .map(|(query, _)| query.as_str())
    }

    /// Returns the series of the panel with their names.
    pub fn named(&self) -> Vec<(String, &Series)> {
        self.by_target()
            .map(|(_, name, series)| (name, series))
            .collect()
    }

    /// Returns the series of the panel, each with the position of its query and its name.
    pub fn by_target(&self) -> impl Iterator<Item = (usize, String, &Series)> {
        let targets = self.panel.targets.iter().zip(&self.answers).enumerate();
        targets.flat_map(|(at, (target, answer))| {
            let named = move |series| (at, legend(&target.legend, series), series);
            answer.iter().map(named)
        })
    }

    /// Returns the number of names in the panel's legend.
    pub fn legend_entries(&self) -> usize {
        let curves = picture::curves(self);
        curves.iter().filter(|curve| curve.is_in_legend).count()
    }
}

/// Runs all queries of `dashboard`. Range queries cover the span between two Unix times.
///
/// # Errors
/// If Prometheus refuses a query, with its message.
pub fn run(
    dashboard: &Dashboard,
    bindings: &Bindings,
    prometheus: &Prometheus,
    span: (f64, f64),
) -> Result<Vec<Shown>> {
    let mut all = Vec::new();
    let mut row = String::new();
    for panel in &dashboard.panels {
        if panel.kind == Kind::Row {
            row.clone_from(&panel.title);
        }
        let parts = match &panel.repeat {
            Some(variable) => bindings.each(variable),
            None => vec![bindings.clone()],
        };
        for (at, bindings) in parts.iter().enumerate() {
            let mut queries = Vec::new();
            let mut answers = Vec::new();
            for target in &panel.targets {
                let query = bindings.substitute(&target.expression);
                answers.push(if target.instant {
                    prometheus.query(&query)?
                } else {
                    prometheus.query_range(&query, span, INTERVAL.as_secs_f64())?
                });
                queries.push(query);
            }
            all.push(Shown {
                title: bindings.substitute(&panel.title),
                row: row.clone(),
                part: (at, parts.len()),
                panel: panel.clone(),
                queries,
                answers,
            });
        }
    }
    Ok(all)
}

/// Returns the name of a series. It is `format` with each `{{label}}` replaced by the label's
/// value.
fn legend(format: &str, series: &Series) -> String {
    let Ok(label) = Regex::new(r"\{\{\s*([A-Za-z0-9_]+)\s*\}\}") else {
        return format.to_owned();
    };
    let value = |c: &regex_lite::Captures<'_>| series.labels.get(&c[1]).cloned();
    label
        .replace_all(format, |c: &regex_lite::Captures<'_>| {
            value(c).unwrap_or_default()
        })
        .trim()
        .to_owned()
}
