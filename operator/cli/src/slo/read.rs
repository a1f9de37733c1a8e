//! A policy from the latency objectives of an OpenSLO file.
//!
//! A part that a policy can't express is an error. If such a part were ignored, users would believe
//! that its objective is tracked.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use headgate_api::validate::{NAME, check_file, is_name};
use headgate_core::config::DEFAULT_TYPE;
use headgate_deliver::cluster::ObjectKey;
use serde_json::Value;

use super::{FIELD, FIELDS, OPENSLO, RESPONSE_TIME, TYPE, Unit};
use crate::draft::{SERVICE, free_name, head, kind};

/// Kinds of OpenSLO without objectives.
const OTHER_KINDS: [&str; 6] = [
    "AlertCondition",
    "AlertNotificationTarget",
    "AlertPolicy",
    "DataSource",
    "SLI",
    "Service",
];

/// A value of the file, and the path of the value, such as `document 2: spec.objectives[0].op`.
#[derive(Clone)]
struct At<'v> {
    path: String,
    value: &'v Value,
}

impl<'v> At<'v> {
    fn wrong(&self, right: &str) -> anyhow::Error {
        anyhow!("{}: {}; {right}", self.path, self.value)
    }

    fn of(&self, name: &str, value: &'v Value) -> Self {
        let dot = if self.path.ends_with(": ") { "" } else { "." };
        let path = format!("{}{dot}{name}", self.path);
        Self { path, value }
    }

    /// Returns a field, or `None` if the field is absent or null.
    fn get(&self, name: &str) -> Option<Self> {
        let value = self.value.get(name).filter(|value| !value.is_null())?;
        Some(self.of(name, value))
    }

    fn need(&self, name: &str) -> anyhow::Result<Self> {
        let missing = || anyhow!("{}: missing", self.of(name, &Value::Null).path);
        self.get(name).ok_or_else(missing)
    }

    /// Refuses fields whose names aren't in `names`.
    fn only(&self, names: &[&str]) -> anyhow::Result<()> {
        let fields = self.value.as_object();
        let fields = fields.ok_or_else(|| self.wrong("a mapping"))?;
        match fields.iter().find(|(name, _)| !names.contains(&&***name)) {
            Some((name, value)) => Err(self
                .of(name, value)
                .wrong(&format!("unknown field; known are {}", names.join(", ")))),
            None => Ok(()),
        }
    }

    fn text(&self) -> anyhow::Result<&'v str> {
        self.value.as_str().ok_or_else(|| self.wrong("a text"))
    }

    fn is(&self, right: &str) -> anyhow::Result<()> {
        match self.text()? == right {
            true => Ok(()),
            false => Err(self.wrong(right)),
        }
    }

    fn number(&self) -> anyhow::Result<f64> {
        self.value.as_f64().ok_or_else(|| self.wrong("a number"))
    }

    fn items(&self) -> anyhow::Result<Vec<Self>> {
        let items = self.value.as_array();
        let items = items.ok_or_else(|| self.wrong("a list"))?.iter();
        let item = |(i, value)| Self {
            path: format!("{}[{i}]", self.path),
            value,
        };
        Ok(items.enumerate().map(item).collect())
    }
}

/// A type of the policy.
struct Type {
    name: String,
    /// Times by the type's field, in the order of [`FIELDS`], and by percentile, such as `p99.9`.
    objectives: [BTreeMap<String, Duration>; FIELDS.len()],
}

/// Returns the text of a policy with the objectives of `text`.
///
/// # Errors
/// Returns the first part that no policy can express, by file, field and value.
pub(super) fn policy(
    file: &str,
    text: &str,
    unit: Option<Unit>,
    service: Option<&ObjectKey>,
) -> anyhow::Result<String> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(text).context(file.to_owned())?;
    let (mut types, mut of) = (Vec::new(), None);
    for (i, value) in documents.iter().enumerate() {
        let path = format!("{file}: document {}: ", i + 1);
        read(&At { path, value }, unit, &mut types, &mut of)?;
    }
    let of = of.with_context(|| format!("{file}: no SLO of {OPENSLO}"))?;
    let (namespace, name) = match service {
        Some(service) => (&*service.namespace, &*service.name),
        None => ("default", of),
    };
    let text = printed(file, &types, namespace, name);
    let report = check_file("the policy", text.as_bytes());
    if let Some(problem) = report.all_problems().next() {
        bail!("{file}: {problem}");
    }
    Ok(text)
}

/// Reads one document into `types`, and its service into `of`.
fn read<'v>(
    document: &At<'v>,
    unit: Option<Unit>,
    types: &mut Vec<Type>,
    of: &mut Option<&'v str>,
) -> anyhow::Result<()> {
    document.only(&["apiVersion", "kind", "metadata", "spec"])?;
    document.need("apiVersion")?.is(OPENSLO)?;
    let kind = document.need("kind")?;
    if OTHER_KINDS.contains(&kind.text()?) {
        return Ok(());
    }
    kind.is("SLO")?;
    let metadata = document.need("metadata")?;
    metadata.only(&["name", "displayName", "labels", "annotations"])?;
    let name = metadata.need("name")?.text()?;
    let annotations = metadata.get("annotations");
    let annotation = |key| annotations.as_ref().and_then(|all| all.get(key));

    let spec = document.need("spec")?;
    spec.only(&[
        "description",
        "service",
        "indicator",
        "timeWindow",
        "budgetingMethod",
        "objectives",
        "alertPolicies",
    ])?;
    let service = spec.need("service")?;
    let first = *of.get_or_insert(service.text()?);
    if service.text()? != first {
        return Err(service.wrong(&format!("{first}, as before: a policy is for one service")));
    }
    let method = spec.need("budgetingMethod")?;
    if method.text()? != "Occurrences" {
        return Err(method.wrong("Occurrences: a policy's percentiles count responses"));
    }
    let indicator = spec.need("indicator")?;
    indicator.only(&["metadata", "spec"])?;
    let metric = indicator.need("spec")?;
    metric.only(&["description", "thresholdMetric", "ratioMetric"])?;
    let is_threshold = metric.get("thresholdMetric").is_some();
    let of_ratio = match (is_threshold, metric.get("ratioMetric")) {
        (true, None) => None,
        (false, Some(ratio)) => {
            let time = annotation(RESPONSE_TIME).with_context(|| {
                format!(
                    "{}: a ratio without a response time; give it in the annotation {RESPONSE_TIME} \
                     of the SLO, such as 150ms",
                    ratio.path
                )
            })?;
            let parsed = headgate_api::Duration(time.text()?.to_owned()).parse();
            Some(parsed.map_err(|error| time.wrong(&error))?)
        }
        _ => return Err(metric.wrong("either thresholdMetric or ratioMetric")),
    };

    let type_name = match annotation(TYPE) {
        Some(name) if !is_name(name.text()?) => {
            return Err(name.wrong(NAME));
        }
        Some(name) => name.text()?.to_owned(),
        None => {
            let mut taken: BTreeSet<String> = types.iter().map(|of| of.name.clone()).collect();
            free_name([name], &mut taken)
        }
    };
    let at = types.iter().position(|known| known.name == type_name);
    let at = at.unwrap_or_else(|| {
        types.push(Type {
            name: type_name,
            objectives: Default::default(),
        });
        types.len() - 1
    });
    let field = match annotation(FIELD) {
        Some(field) => {
            let name = field.text()?;
            let known = FIELDS.iter().position(|known| *known == name);
            known.ok_or_else(|| field.wrong(&FIELDS.join(" or ")))?
        }
        None => 0,
    };
    let objectives = spec.need("objectives")?;
    if objectives.items()?.is_empty() {
        return Err(objectives.wrong("at least one"));
    }
    for objective in objectives.items()? {
        objective.only(&["displayName", "op", "value", "target", "targetPercent"])?;
        let percentile = percentile(&objective)?;
        let time = match of_ratio {
            Some(time) => time,
            None => threshold(&objective, unit)?,
        };
        let known = &mut types[at].objectives[field];
        if known.insert(percentile.clone(), time).is_some() {
            let name = &types[at].name;
            return Err(objective.wrong(&format!("type {name} has a {percentile} already")));
        }
    }
    Ok(())
}

/// Returns the objective's target as the name of a percentile.
fn percentile(objective: &At<'_>) -> anyhow::Result<String> {
    let (at, percent) = match (objective.get("target"), objective.get("targetPercent")) {
        (Some(target), None) => (target.clone(), target.number()? * 100.0),
        (None, Some(percent)) => (percent.clone(), percent.number()?),
        _ => return Err(objective.wrong("either target or targetPercent")),
    };
    // The percentile is rounded to four decimals, as in policies, because 0.999 * 100 is slightly
    // more than 99.9.
    let rounded = (percent * 1e4).round() / 1e4;
    match rounded > 0.0 && rounded < 100.0 {
        true => Ok(format!("p{rounded}")),
        false => Err(at.wrong("a percentile above 0 and below 100")),
    }
}

/// Returns the response time in an objective of a `thresholdMetric`.
fn threshold(objective: &At<'_>, unit: Option<Unit>) -> anyhow::Result<Duration> {
    let op = objective.need("op")?;
    if !["lte", "lt"].contains(&op.text()?) {
        return Err(op.wrong("lte or lt: a response time is good below its objective"));
    }
    let value = objective.need("value")?;
    let ms = match unit {
        Some(Unit::S) => value.number()? * 1e3,
        Some(Unit::Ms) => value.number()?,
        Some(Unit::Us) => value.number()? / 1e3,
        None => return Err(value.wrong("in which unit? Say it by --unit s, ms or us")),
    };
    match (1.0..=3_600_000.0).contains(&ms) {
        true => Ok(Duration::from_millis(ms.round() as u64)),
        false => Err(value.wrong("1ms to 1h")),
    }
}

fn printed(file: &str, types: &[Type], namespace: &str, name: &str) -> String {
    let mut text = format!(
        "# From {file} by headgate slo. OpenSLO doesn't say which requests an objective is about: \
         correct the matches.\n{}  types:\n",
        head(namespace, name, SERVICE)
    );
    let objectives = |of: &Type| -> Vec<(&str, String)> {
        let fields = FIELDS.into_iter().zip(&of.objectives);
        let given = fields.filter(|(_, percentiles)| !percentiles.is_empty());
        let written = given.map(|(field, percentiles)| {
            let one = |(p, time): (&String, &Duration)| {
                format!("{p}: {}", headgate_api::Duration::from(*time))
            };
            let all: Vec<String> = percentiles.iter().map(one).collect();
            (field, format!("{{{}}}", all.join(", ")))
        });
        written.collect()
    };
    for of in types {
        let path = format!("{{path: {{type: PathPrefix, value: /{}}}}}", of.name);
        let path = (of.name != DEFAULT_TYPE).then_some(&*path);
        text += &kind(&of.name, "", path, &objectives(of));
    }
    let longest = |of: &&Type| {
        of.objectives
            .iter()
            .flat_map(BTreeMap::values)
            .max()
            .copied()
    };
    if let Some(of) = types.iter().max_by_key(longest)
        && !types.iter().any(|of| of.name == DEFAULT_TYPE)
    {
        let comment = format!("       # all other requests; the objectives of {}", of.name);
        text += &kind(DEFAULT_TYPE, &comment, None, &objectives(of));
    }
    text
}
