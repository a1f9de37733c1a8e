//! The variables of a dashboard: the values that they may have, and their places in queries.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use regex_lite::Regex;
use serde_json::Value;

use super::Dashboard;
use crate::prometheus::Prometheus;

/// The value of `$__rate_interval`. Grafana's value covers at least four scrapes.
const RATE_INTERVAL: &str = "10s";

/// The chosen value of a variable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// The text that Grafana shows, for `${name:text}`.
    pub text: String,
    /// The value that queries get, for `$name`.
    pub value: String,
}

/// The chosen values of each variable. In a repeated panel, the panel's variable has one of several
/// values. Everywhere else, the first value counts.
#[derive(Debug, Clone, Default)]
pub struct Bindings(BTreeMap<String, Vec<Choice>>);

impl Bindings {
    /// Queries Prometheus for the values of all variables of `dashboard`, in their order, as
    /// Grafana does when it opens the dashboard. `wanted` chooses the value of a variable. If it
    /// doesn't, all values are chosen if the variable allows it, otherwise the first value.
    ///
    /// # Errors
    /// If a variable has no values, or doesn't have the wanted value.
    pub fn resolve(
        dashboard: &Dashboard,
        prometheus: &Prometheus,
        wanted: &[(&str, &str)],
    ) -> Result<Self> {
        let mut bindings = Self::default();
        let variables = dashboard.json["templating"]["list"].as_array();
        for variable in variables.into_iter().flatten() {
            let name = variable["name"].as_str().unwrap_or_default();
            let wanted = wanted.iter().find(|(n, _)| *n == name).map(|(_, v)| *v);
            let choices = bindings
                .choices(variable, prometheus, wanted)
                .with_context(|| format!("{}: variable {name}", dashboard.uid))?;
            bindings.0.insert(name.to_owned(), choices);
        }
        Ok(bindings)
    }

    fn choices(
        &self,
        variable: &Value,
        prometheus: &Prometheus,
        wanted: Option<&str>,
    ) -> Result<Vec<Choice>> {
        let plain = |value: &str| Choice {
            text: value.to_owned(),
            value: value.to_owned(),
        };
        match variable["type"].as_str() {
            Some("datasource") => Ok(vec![plain("prometheus")]),
            Some("custom") => {
                let options = variable["options"].as_array().into_iter().flatten();
                let chosen = options.filter(|o| o["selected"] == true).map(|o| Choice {
                    text: o["text"].as_str().unwrap_or_default().to_owned(),
                    value: o["value"].as_str().unwrap_or_default().to_owned(),
                });
                Ok(chosen.collect())
            }
            Some("query") => {
                let values = self.query(variable, prometheus)?;
                ensure!(!values.is_empty(), "no value");
                match (wanted, variable["allValue"].as_str()) {
                    (Some(wanted), _) if values.iter().any(|v| v == wanted) => {
                        Ok(vec![plain(wanted)])
                    }
                    (Some(wanted), _) => bail!("{wanted} is not among {values:?}"),
                    (None, Some(all)) if variable["includeAll"] == true => Ok(vec![Choice {
                        text: "All".to_owned(),
                        value: all.to_owned(),
                    }]),
                    (None, _) => Ok(vec![plain(&values[0])]),
                }
            }
            other => bail!("a variable of type {other:?}"),
        }
    }

    /// Returns the values that a query variable offers.
    fn query(&self, variable: &Value, prometheus: &Prometheus) -> Result<Vec<String>> {
        let query = variable["query"]["query"].as_str().unwrap_or_default();
        let query = self.substitute(query);
        let (selector, label) = query
            .strip_prefix("label_values(")
            .and_then(|q| q.strip_suffix(')')?.rsplit_once(','))
            .with_context(|| format!("{query} is not label_values(SELECTOR, LABEL)"))?;
        let mut values = prometheus.label_values(selector.trim(), label.trim())?;
        let pattern = variable["regex"].as_str().unwrap_or_default();
        if let Some(pattern) = pattern.strip_prefix('/').and_then(|p| p.strip_suffix('/')) {
            let pattern = Regex::new(&pattern.replace("\\/", "/"))?;
            let first = |value: &String| Some(pattern.captures(value)?.get(1)?.as_str().to_owned());
            values = values.iter().filter_map(first).collect();
        }
        values.dedup();
        Ok(values)
    }

    /// Returns a set of bindings for each chosen value of `variable`, in which only this value is
    /// chosen.
    pub fn each(&self, variable: &str) -> Vec<Self> {
        let choices = self.0.get(variable).cloned().unwrap_or_default();
        let one = |choice: Choice| {
            let mut bindings = self.clone();
            bindings.0.insert(variable.to_owned(), vec![choice]);
            bindings
        };
        choices.into_iter().map(one).collect()
    }

    /// Returns `text` with all variables replaced.
    pub fn substitute(&self, text: &str) -> String {
        let mut text = text.replace("$__rate_interval", RATE_INTERVAL);
        // Longer names come first, so that `$type` doesn't replace the beginning of `$types`.
        let mut names: Vec<_> = self.0.iter().collect();
        names.sort_by_key(|(name, _)| std::cmp::Reverse(name.len()));
        for (name, choices) in names {
            let Some(choice) = choices.first() else {
                continue;
            };
            text = text
                .replace(&format!("${{{name}:text}}"), &choice.text)
                .replace(&format!("${{{name}}}"), &choice.value)
                .replace(&format!("${name}"), &choice.value);
        }
        text
    }

    /// Returns the choices as `name=text`.
    pub fn shown(&self) -> String {
        let all = self.0.iter().filter(|(name, _)| *name != "datasource");
        let one = |(name, choices): (&String, &Vec<Choice>)| {
            let texts: Vec<&str> = choices.iter().map(|c| c.text.as_str()).collect();
            format!("{name}={}", texts.join(","))
        };
        all.map(one).collect::<Vec<_>>().join("  ")
    }
}
