//! The settings in force, in the words of the policy's CRD.

use headgate_core::config::{Discipline, StageConfig};
use serde_json::{Map, Value, json};

use crate::api::AdmissionPolicySpec;
use crate::kubernetes::crd;

/// A policy's `spec`, and the schema that describes it.
pub(super) struct Settings {
    schema: Value,
    spec: Value,
    /// Names of the request's type and class, which choose among settings by name.
    names: Vec<String>,
}

impl Settings {
    /// Fills the defaults into `spec` that depend on other fields, as `stage` has them.
    ///
    /// # Errors
    /// The CRD can't be made; a test makes sure that it can.
    pub(super) fn new(
        spec: Option<&AdmissionPolicySpec>,
        stage: &StageConfig,
        mut names: Vec<String>,
    ) -> anyhow::Result<Self> {
        names.dedup();
        let definition = serde_json::to_value(crd::definition()?)?;
        let versions = &definition["spec"]["versions"];
        let schema = &versions[0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
        let mut settings = Self {
            schema: schema.clone(),
            spec: serde_json::to_value(spec)?,
            names,
        };
        let queue = &mut settings.spec["queue"];
        queue["discipline"] = discipline(&stage.queue.discipline).into();
        let block = match stage.queue.discipline {
            Discipline::Drr { .. } => "drr",
            Discipline::Wfq { .. } => "wfq",
            _ => return Ok(settings),
        };
        if queue[block].is_null() {
            queue[block] = json!({});
        }
        Ok(settings)
    }

    /// The text of the field at `at`, such as `/strategy/type`.
    pub(super) fn text(&self, at: &str) -> &str {
        let found = self.spec.pointer(at).and_then(Value::as_str);
        found.unwrap_or_default()
    }

    /// The meaning of the value at `at`, in the CRD's words.
    pub(super) fn meaning(&self, at: &str) -> Option<String> {
        let field = self.schema.pointer(&properties(at))?;
        Some(description(self.text(at), field))
    }

    /// The fields at `at` that have a value, each with the CRD's description.
    pub(super) fn of(&self, at: &str) -> Vec<String> {
        let schema = self.schema.pointer(&properties(at));
        let given = self.spec.pointer(at).filter(|given| given.is_object());
        let mut all = Vec::new();
        let nothing = json!({});
        if let Some(schema) = schema {
            self.walk(schema, given.unwrap_or(&nothing), "", &mut all);
        }
        all
    }

    fn walk(&self, schema: &Value, given: &Value, within: &str, all: &mut Vec<String>) {
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            let Some(value) = given.get(name).or_else(|| field.get("default")) else {
                continue;
            };
            let name = format!("{within}{name}");
            match value.as_object() {
                Some(_) if field.get("properties").is_some() => {
                    self.walk(field, value, &format!("{name}."), all);
                }
                Some(by_name) => all.extend(self.own(&name, by_name, field)),
                None => all.push(sentence(&name, value, field)),
            }
        }
    }

    /// Those of settings by name that are of the request's type or class.
    fn own(&self, name: &str, by_name: &Map<String, Value>, field: &Value) -> Vec<String> {
        let own = self
            .names
            .iter()
            .filter_map(|own| by_name.get_key_value(own));
        own.map(|(own, value)| sentence(&format!("{name}.{own}"), value, field))
            .collect()
    }
}

/// The place in the schema of the field at `at`.
fn properties(at: &str) -> String {
    at.replace('/', "/properties/")
}

fn sentence(name: &str, value: &Value, field: &Value) -> String {
    let value = match value.as_str() {
        Some(text) => text.to_owned(),
        None => value.to_string(),
    };
    format!("{name} {value}: {}", description(&value, field))
}

/// The description of `value` where the field is an enum, else that of the field.
fn description(value: &str, field: &Value) -> String {
    let description = field["description"].as_str().unwrap_or_default();
    let mut paragraphs = description.split("\n\n");
    let first = paragraphs.next().unwrap_or_default();
    let of_value = paragraphs.find_map(|text| text.strip_prefix(value)?.strip_prefix(": "));
    let words = of_value.unwrap_or(first).split_whitespace();
    words.collect::<Vec<_>>().join(" ")
}

/// A discipline, as policies write it.
fn discipline(discipline: &Discipline) -> &'static str {
    match discipline {
        Discipline::Fifo => "FIFO",
        Discipline::Edf => "EDF",
        Discipline::Lstf => "LSTF",
        Discipline::Sjf => "SJF",
        Discipline::Srtf => "SRTF",
        Discipline::Lasf => "LASF",
        Discipline::Drr { .. } => "DRR",
        Discipline::Wfq { .. } => "WFQ",
        Discipline::Priority => "Priority",
        Discipline::Slack => "Slack",
    }
}
