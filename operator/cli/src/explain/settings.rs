//! The settings of a policy: its `spec` with all defaults and with descriptions from the CRD.

use headgate_admission::protocol::Method;
use headgate_api::{AdmissionPolicySpec, Duration};
use headgate_controller::kubernetes::crd;
use headgate_core::config::{
    CostConfig, Discipline, HistogramWindow, ServiceAdmissionConfig, StageConfig, StrategyConfig,
};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::Workflow;

/// Fields of the spec that other parts of an explanation show.
const SHOWN_APART: [&str; 4] = ["targetRefs", "types", "classes", "exclude"];

/// A field of the spec.
#[derive(Debug, Serialize)]
pub(super) struct Setting {
    pub(super) field: String,
    /// The value, or null for a block of fields.
    pub(super) value: Value,
    /// The first sentence of the field's description in the CRD.
    pub(super) description: String,
}

/// Returns the settings in force. Of `workflows.named`, only the settings of `workflow` are
/// included.
///
/// # Errors
/// Returns an error for a spec that can't be serialized as JSON.
pub(super) fn settings(
    spec: &AdmissionPolicySpec,
    stage: &StageConfig,
    promises: Option<&ServiceAdmissionConfig>,
    workflow: Option<&Workflow>,
) -> anyhow::Result<Vec<Setting>> {
    let schema = &crd::spec();
    let mut spec = serde_json::to_value(spec)?;
    crd::prune(&mut spec, &schema["properties"]);
    if let Value::Object(fields) = &mut spec {
        fields.retain(|name, _| !SHOWN_APART.contains(&name.as_str()));
    }
    if let Some(Value::Array(named)) = spec.pointer_mut("/workflows/named") {
        named.retain(|named| workflow.is_some_and(|own| named["name"] == own.name));
    }
    complete(&mut spec, schema);
    add(&mut spec, dependent(stage, promises));
    let mut found = Vec::new();
    walk("", &spec, schema, &mut found);
    Ok(found)
}

/// Whether `name` is the block with the settings of another field's value, such as `maxQueueWait`
/// beside `type: MaxQueueWait`.
fn is_chosen(name: &str, fields: &Map<String, Value>) -> bool {
    let values = fields.values().filter_map(Value::as_str);
    { values }.any(|value| value.eq_ignore_ascii_case(name))
}

/// Adds the schema's defaults, as the API server does, and the defaults of chosen blocks.
fn complete(value: &mut Value, schema: &Value) {
    let (Value::Object(fields), Value::Object(properties)) = (value, &schema["properties"]) else {
        return;
    };
    for (name, schema) in properties {
        if !fields.contains_key(name) {
            let chosen = schema["type"] == "object" && is_chosen(name, fields);
            let default = schema.get("default").cloned();
            let default = default.or_else(|| chosen.then(|| json!({})));
            fields.extend(default.map(|default| (name.clone(), default)));
        }
        if let Some(value) = fields.get_mut(name) {
            complete(value, schema);
        }
    }
}

/// Returns the defaults that depend on other settings. A block without such defaults is null.
fn dependent(stage: &StageConfig, promises: Option<&ServiceAdmissionConfig>) -> Value {
    let time = |us| json!(Duration::of_micros(us));
    let is_slack = stage.queue.discipline == Discipline::Slack;
    let strategy = match (&stage.strategy, stage.service_times.window) {
        (StrategyConfig::Bouncer { .. }, HistogramWindow::Sliding { step_us }) => {
            json!({"bouncer": {"window": {"step": time(step_us)}}})
        }
        (StrategyConfig::ResponseTimeController(control), _) => {
            let mut settings = json!({
                "smoothing": control.smoothing,
                "requests": control.requests,
                "increaseBelow": control.increase_below,
                "maxRate": control.max_rate,
            });
            if !stage.classes.is_empty() {
                settings["lowerClassDecrease"] = json!(control.lower_class_decrease);
                settings["lowerClassPatience"] = json!(control.lower_class_patience);
            }
            json!({"responseTimeController": settings})
        }
        (StrategyConfig::BacklogControl(control), _) => match &control.cost {
            CostConfig::Header { header } => {
                json!({"backlogControl": {"cost": {"header": header}}})
            }
            _ => Value::Null,
        },
        _ => Value::Null,
    };
    let workflows = stage.workflows.as_ref();
    let central = promises.and_then(|promises| promises.central.as_ref());
    let central = central.map(|central| match central.method {
        Method::Misses { allowed, period_us } => json!({
            "misses": allowed, "period": time(period_us), "report": time(central.report_us),
        }),
        Method::Incast { smoothing } => json!({
            "smoothing": smoothing, "report": time(central.report_us),
        }),
    });
    json!({
        "queue": {"discipline": if is_slack { "Slack" } else { "FIFO" }},
        "parallelism": {"auto": stage.auto_parallelism},
        "strategy": strategy,
        "workflows": workflows.map(|w| json!({"rateTimeout": time(w.rate_ttl_us)})),
        "classAdmission": central.map(|central| json!({"centralized": central})),
    })
}

/// Adds the values of `defaults` that are missing.
fn add(value: &mut Value, defaults: Value) {
    let (Value::Object(fields), Value::Object(defaults)) = (value, defaults) else {
        return;
    };
    for (name, default) in defaults {
        match fields.get_mut(&name) {
            Some(value) => add(value, default),
            None if default.is_null() => {}
            None => fields.extend([(name, default)]),
        }
    }
}

/// Adds the fields of `value` to `found`, first values and then blocks. `at` is the prefix of the
/// fields' names.
fn walk(at: &str, value: &Value, schema: &Value, found: &mut Vec<Setting>) {
    let Value::Object(fields) = value else { return };
    let properties = &schema["properties"];
    let is_block = |name: &str| properties[name]["properties"].is_object();
    let (blocks, values): (Vec<_>, Vec<_>) = fields.iter().partition(|(name, _)| is_block(name));
    for (name, value) in values {
        found.push(Setting {
            field: format!("{at}{name}"),
            value: whole(value),
            description: description(&properties[name], value),
        });
    }
    for (name, value) in blocks {
        if !is_chosen(name, fields) {
            found.push(Setting {
                field: format!("{at}{name}"),
                value: Value::Null,
                description: description(&properties[name], value),
            });
        }
        walk(&format!("{at}{name}."), value, &properties[name], found);
    }
}

/// Returns `value` with whole numbers without decimals, such as `8` for `8.0`.
fn whole(value: &Value) -> Value {
    match value {
        Value::Number(number) => match number.as_f64() {
            // The conversion of a whole number below 1e15 is exact.
            Some(n) if n.fract() == 0.0 && n.abs() < 1e15 => json!(n as i64),
            _ => value.clone(),
        },
        Value::Array(list) => list.iter().map(whole).collect(),
        Value::Object(fields) => {
            let fields = fields.iter().map(|(name, v)| (name.clone(), whole(v)));
            Value::Object(fields.collect())
        }
        other => other.clone(),
    }
}

/// Returns the first sentence of a field's description, and the description of its value if the
/// field is an enumeration.
fn description(schema: &Value, value: &Value) -> String {
    let text = schema["description"].as_str().unwrap_or_default();
    let mut paragraphs = text.split("\n\n");
    let field = paragraphs.next().and_then(|field| field.split(". ").next());
    let field = field.unwrap_or_default().trim_end_matches('.');
    let value = value.as_str().map(|value| format!("{value}: "));
    match value.and_then(|value| paragraphs.find(|p| p.starts_with(&value))) {
        Some(value) => format!("{field}. {value}"),
        None => format!("{field}."),
    }
}
