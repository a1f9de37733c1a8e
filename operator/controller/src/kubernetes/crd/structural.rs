//! Conversion of a Rust type's schema to a structural schema, the form that Kubernetes accepts.
//!
//! A structural schema has no references, no alternatives and no `null`, because a field is either
//! present or absent. It has descriptions of fields only, so the description of a field also
//! describes the values of its enum.

use schemars::generate::SchemaSettings;
use schemars::transform::RecursiveTransform;
use schemars::{JsonSchema, Schema};
use serde_json::{Map, Value, json};

/// Returns the structural schema of `T`.
pub(super) fn schema<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::openapi3().with(|s| {
        s.inline_subschemas = true;
        s.meta_schema = None;
        s.transforms = vec![Box::new(RecursiveTransform(restructure))];
    });
    let schema = settings.into_generator().into_root_schema_for::<T>();
    schema.to_value()
}

fn restructure(schema: &mut Schema) {
    let Some(node) = schema.as_object_mut() else {
        return;
    };
    take_only_alternative(node);
    name_values(node);
    node.remove("title");
    if let Some(Value::Array(types)) = node.get("type") {
        let only = types.iter().find(|t| *t != "null").cloned();
        node.insert("type".to_owned(), only.unwrap_or(Value::Null));
    }
    // The schema doesn't refuse unknown fields. Strict field validation, kubectl's default, does.
    if node.get("additionalProperties") == Some(&Value::Bool(false)) {
        node.remove("additionalProperties");
    }
    if matches!(node.get("type"), Some(t) if t == "integer" || t == "number") {
        // `schemars` adds the bounds of the Rust type, which aren't those of the field.
        node.remove("minimum");
        node.remove("maximum");
    }
    if let Some(default) = node.remove("default")
        && let Some(default) = usable_default(node, default)
    {
        node.insert("default".to_owned(), default);
    }
    if let Some(Value::String(text)) = node.get_mut("description") {
        *text = unwrap_lines(text);
    }
}

/// Replaces `anyOf: [T, null]`, the schema of `Option<T>`, by the schema of `T`.
fn take_only_alternative(node: &mut Map<String, Value>) {
    let Some(Value::Array(alternatives)) = node.remove("anyOf") else {
        return;
    };
    let is_null = |s: &Value| {
        s.get("type").is_some_and(|t| t == "null") || s.get("const") == Some(&Value::Null)
    };
    for alternative in alternatives {
        if let (false, Value::Object(alternative)) = (is_null(&alternative), alternative) {
            for (key, value) in alternative {
                node.entry(key).or_insert(value);
            }
        }
    }
}

/// Replaces an enum's `oneOf: [{const, description}]` by `enum`, and adds the values' descriptions
/// to the field's.
fn name_values(node: &mut Map<String, Value>) {
    let Some(Value::Array(values)) = node.remove("oneOf") else {
        return;
    };
    let mut names = Vec::new();
    let mut description = node
        .get("description")
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned();
    for value in values {
        // `schemars` puts values without descriptions into one `enum` list.
        let several = value
            .get("enum")
            .and_then(Value::as_array)
            .cloned()
            .unwrap_or_default();
        let one = value.get("const").cloned();
        let about = value
            .get("description")
            .and_then(Value::as_str)
            .unwrap_or_default();
        for name in several.into_iter().chain(one) {
            let name_text = name.as_str().unwrap_or_default();
            description.push_str(&format!("\n\n{name_text}: {about}"));
            names.push(name);
        }
    }
    node.insert("type".to_owned(), json!("string"));
    node.insert("enum".to_owned(), Value::Array(names));
    node.insert("description".to_owned(), json!(description));
}

/// Returns the default without null and empty lists and maps, which mean the same as absent fields.
fn usable_default(node: &Map<String, Value>, mut default: Value) -> Option<Value> {
    match &default {
        Value::Null | Value::Array(_) => return None,
        Value::Object(_) => prune(&mut default, node.get("properties")?),
        _ => {}
    }
    Some(default)
}

/// Removes from `value`, whose fields have the schemas `properties`, all null fields and empty
/// lists and maps, which mean the same as absent ones.
pub fn prune(value: &mut Value, properties: &Value) {
    let Value::Object(fields) = value else { return };
    fields.retain(|name, value| match value {
        Value::Null => false,
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => !fields.is_empty() || properties[name]["properties"].is_object(),
        _ => true,
    });
    for (name, value) in fields {
        let schema = &properties[name];
        match value {
            Value::Array(items) => {
                let of_items = &schema["items"]["properties"];
                items.iter_mut().for_each(|item| prune(item, of_items));
            }
            value => prune(value, &schema["properties"]),
        }
    }
}

/// Joins the lines of each paragraph. They are wrapped like the comment in the source.
fn unwrap_lines(text: &str) -> String {
    let paragraphs: Vec<String> = text
        .split("\n\n")
        .map(|p| p.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    paragraphs.join("\n\n")
}
