//! Grafana dashboards without Grafana. Their variables and queries are run as Grafana would run
//! them, and their panels are drawn.
//!
//! A dashboard that has never been run may be wrong. A renamed stat, a nonexistent label, or a `by`
//! that doesn't match causes an empty panel, which is noticed months later, during an incident. So
//! tests run every query of every panel against a real Prometheus ([`run`]), and draw the results
//! ([`picture`]) for visual inspection.

mod format;
pub mod picture;
pub mod run;
mod variables;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;

pub use variables::{Bindings, Choice};

/// Returns the folder of the chart's dashboards.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../charts/headgate/dashboards")
}

/// A dashboard.
#[derive(Debug, Clone)]
pub struct Dashboard {
    /// The uid, which is also the name of the file.
    pub uid: String,
    /// The title of the dashboard.
    pub title: String,
    /// The content of the file.
    pub json: Value,
    /// The panels in the order of the file, including rows.
    pub panels: Vec<Panel>,
}

/// The type of a panel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A heading.
    Row,
    /// Values over time.
    TimeSeries,
    /// A single number.
    Stat,
    /// A table.
    Table,
}

/// A panel.
#[derive(Debug, Clone)]
pub struct Panel {
    /// The title with variables.
    pub title: String,
    /// The type of the panel.
    pub kind: Kind,
    /// The variable for whose values the panel is repeated.
    pub repeat: Option<String>,
    /// The queries of the panel.
    pub targets: Vec<Target>,
    /// The panel's JSON.
    pub json: Value,
}

/// A query of a panel.
#[derive(Debug, Clone)]
pub struct Target {
    /// PromQL with variables.
    pub expression: String,
    /// The format of the series' names, such as `{{label}}`.
    pub legend: String,
    /// Whether the query is an instant query rather than a range query.
    pub instant: bool,
}

impl Dashboard {
    /// Returns all dashboards of the chart.
    ///
    /// # Errors
    /// If a dashboard can't be read.
    pub fn all() -> Result<Vec<Self>> {
        let mut files: Vec<PathBuf> = std::fs::read_dir(folder())?
            .map(|entry| Ok(entry?.path()))
            .collect::<Result<_>>()?;
        files.retain(|file| file.extension().is_some_and(|e| e == "json"));
        files.sort();
        files.iter().map(|file| Self::read(file)).collect()
    }

    /// Returns the dashboard in `file`.
    ///
    /// # Errors
    /// If the file isn't a dashboard of known panels.
    pub fn read(file: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(file)?;
        let json: Value =
            serde_json::from_str(&text).with_context(|| file.display().to_string())?;
        let text = |key: &str| json[key].as_str().unwrap_or_default().to_owned();
        let panels = json["panels"].as_array().map(Vec::as_slice);
        let panels = panels.unwrap_or_default().iter().map(Panel::read);
        Ok(Self {
            uid: text("uid"),
            title: text("title"),
            panels: panels
                .collect::<Result<_>>()
                .with_context(|| file.display().to_string())?,
            json,
        })
    }
}

impl Panel {
    fn read(json: &Value) -> Result<Self> {
        let kind = match json["type"].as_str() {
            Some("row") => Kind::Row,
            Some("timeseries") => Kind::TimeSeries,
            Some("stat") => Kind::Stat,
            Some("table") => Kind::Table,
            other => anyhow::bail!("a panel of type {other:?}"),
        };
        let target = |t: &Value| -> Result<Target> {
            let text = |key: &str| t[key].as_str().map(str::to_owned);
            Ok(Target {
                expression: text("expr").context("a query without expr")?,
                legend: text("legendFormat").unwrap_or_default(),
                instant: t["instant"] == true,
            })
        };
        let targets = json["targets"].as_array().map(Vec::as_slice);
        Ok(Self {
            title: json["title"].as_str().unwrap_or_default().to_owned(),
            kind,
            repeat: json["repeat"].as_str().map(str::to_owned),
            targets: targets
                .unwrap_or_default()
                .iter()
                .map(target)
                .collect::<Result<_>>()?,
            json: json.clone(),
        })
    }

    /// Returns the panel's position on Grafana's grid of 24 columns: x, y, width, height.
    pub fn grid(&self) -> [f64; 4] {
        ["x", "y", "w", "h"].map(|key| self.json["gridPos"][key].as_f64().unwrap_or_default())
    }
}
