//! The CustomResourceDefinition of `AdmissionPolicy`, generated from the API's types.
//!
//! A handwritten schema drifts from the types. An error that only the operator detects is reported
//! too late, because the object is already stored, and its author may not look at it again. So the
//! schema contains the rules of [`headgate_api::validate`]. Descriptions and structure come from
//! the types ([`structural`]). Defaults, bounds and rules, with the same messages, come from
//! [`validate::constrain`].

mod status;
mod structural;

use anyhow::anyhow;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::{Value, json};

pub use structural::prune;

use super::resource::{AdmissionPolicyStatus, GROUP, PLURAL, VERSION};
use headgate_api::validate;
use headgate_api::{AdmissionPolicySpec, KIND};

/// `metadata.name` of the definition.
pub const NAME: &str = "admissionpolicies.headgate.dev";
/// The command that regenerates the definition's files, from the top of the repository.
pub const RENEW: &str = "cargo run -p headgate -- crd | tee \
                         {,charts/headgate/files/}crds/admissionpolicies.headgate.dev.yaml";

/// JSON pointers, into `spec`, to the fields that 0.1 lacks. Their defaults are not in the
/// definition, because the API server adds defaults to stored policies too. An operator of the
/// previous version, which may still run with the new definition, would refuse all policies for an
/// unknown field. The operator assumes these defaults, and the descriptions state them.
const NEWER: [&str; 5] = [
    "/properties/errors",
    "/properties/releaseSlot",
    "/properties/classes/items/properties/value",
    "/properties/types/items/properties/value",
    "/properties/strategy/properties/bouncer/properties/shedByValue",
];

/// Returns the schema of `spec`, with all defaults.
pub fn spec() -> Value {
    let mut spec = structural::schema::<AdmissionPolicySpec>();
    validate::constrain(&mut spec);
    spec
}

/// Returns the definition.
///
/// # Errors
/// The schema doesn't fit Kubernetes' types. A test ensures that this doesn't happen.
pub fn definition() -> anyhow::Result<CustomResourceDefinition> {
    let mut spec = spec();
    for field in NEWER {
        let schema = spec.pointer_mut(field).and_then(Value::as_object_mut);
        let default = schema.and_then(|schema| schema.remove("default"));
        default.ok_or_else(|| anyhow!("no default at {field}"))?;
    }
    let mut status = structural::schema::<AdmissionPolicyStatus>();
    status::constrain(&mut status);
    let definition = json!({
        "metadata": {
            "name": NAME,
            "labels": {
                "app.kubernetes.io/name": "headgate",
                // GEP-713 calls a policy `Direct` if it affects only the objects that it targets.
                "gateway.networking.k8s.io/policy": "Direct",
            },
        },
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": format!("{KIND}List"),
                "plural": PLURAL,
                "singular": "admissionpolicy",
                "shortNames": ["admp"],
                "categories": ["headgate", "gateway-api"],
            },
            "versions": [{
                "name": VERSION,
                "served": true,
                "storage": true,
                "subresources": {"status": {}},
                "additionalPrinterColumns": columns(),
                "schema": {"openAPIV3Schema": {
                    "description": "Keeps a backend inside its latency objectives: turns away at \
                                    once, in the proxy, what could not meet them, and queues the \
                                    rest.",
                    "type": "object",
                    "required": ["spec"],
                    "properties": {
                        "apiVersion": {
                            "type": "string",
                            "description": "Version of this kind's schema: headgate.dev/v1alpha1.",
                        },
                        "kind": {"type": "string", "description": "The kind: AdmissionPolicy."},
                        "metadata": {"type": "object"},
                        "spec": spec,
                        "status": status,
                    },
                }},
            }],
        },
    });
    Ok(serde_json::from_value(definition)?)
}

/// Returns the columns of `kubectl get`. Those of priority 1 appear only with `-o wide`.
fn columns() -> Value {
    let condition =
        |kind: &str, field: &str| format!(".status.conditions[?(@.type==\"{kind}\")].{field}");
    let column = |name: &str, path: &str, priority: i32, description: &str| {
        json!({
            "name": name,
            "type": "string",
            "jsonPath": path,
            "priority": priority,
            "description": description,
        })
    };
    json!([
        column("Target", ".spec.targetRefs[0]['name','matchLabels']", 0, "Its first target."),
        column("Mode", ".spec.mode", 0, "Whether decisions take effect."),
        column(
            "Accepted",
            &condition("Accepted", "status"),
            0,
            "Whether it is right and may apply to its targets.",
        ),
        column(
            "Programmed",
            &condition("Programmed", "status"),
            0,
            "Whether all proxies of its targets run it.",
        ),
        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
        column("Kind", ".spec.targetRefs[0].kind", 1, "Kind of its first target."),
        column(
            "Strategy",
            ".spec.strategy.type",
            1,
            "What decides which requests may enter the queue.",
        ),
        column("Reason", &condition("Programmed", "reason"), 1, "Why proxies run it or don't."),
        column("Message", &condition("Programmed", "message"), 1, "The same in a sentence."),
    ])
}

/// Returns the definition as the YAML file that `headgate crd` prints.
///
/// # Errors
/// Returns the errors of [`definition`].
pub fn file() -> anyhow::Result<String> {
    let yaml = serde_saphyr::to_string(&definition()?)?;
    Ok(format!(
        "# Made by `headgate crd` from the types in operator/api/src/types; don't edit.\n{yaml}"
    ))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    #[test]
    fn files_are_what_the_types_say() {
        let expected = file().unwrap();
        for path in [
            "crds/admissionpolicies.headgate.dev.yaml",
            "charts/headgate/files/crds/admissionpolicies.headgate.dev.yaml",
        ] {
            let file = Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("../..")
                .join(path);
            let found = fs::read_to_string(file).unwrap_or_default();
            assert!(
                found == expected,
                "{path} is not what the types say; run `{RENEW}`"
            );
        }
    }

    /// Collects each field at `at` and below, with its schema.
    fn fields(at: &str, schema: &Value, found: &mut Vec<(String, Value)>) {
        found.push((at.to_owned(), schema.clone()));
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            fields(&format!("{at}.{name}"), field, found);
        }
        for (part, mark) in [("items", "[]"), ("additionalProperties", "{}")] {
            if let Some(part) = schema.get(part) {
                fields(&format!("{at}{mark}"), part, found);
            }
        }
    }

    fn all_fields() -> Vec<(String, Value)> {
        let definition = serde_json::to_value(definition().unwrap()).unwrap();
        let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        let mut found = Vec::new();
        for part in ["spec", "status"] {
            fields(part, &schema["properties"][part], &mut found);
        }
        assert!(found.len() > 100, "{}", found.len());
        found
    }

    #[test]
    fn every_field_is_described_in_plain_words() {
        for (at, schema) in all_fields() {
            // Items and values are described by the field that holds them.
            if at.ends_with(['}', ']']) {
                continue;
            }
            let description = schema["description"].as_str().unwrap_or_default();
            assert!(description.len() > 10, "{at}: {description:?}");
            assert!(
                !description.contains("[`") && !description.contains("::"),
                "{at}: {description:?}"
            );
        }
    }

    /// The API server estimates the cost of rules from the largest object that the schema allows.
    #[test]
    fn every_list_mapping_and_text_is_bounded() {
        for (at, schema) in all_fields() {
            let is_free = schema.get("enum").is_none() && schema.get("format").is_none();
            let bound = match schema["type"].as_str() {
                Some("array") => "maxItems",
                Some("object") if schema.get("additionalProperties").is_some() => "maxProperties",
                Some("string") if is_free => "maxLength",
                _ => continue,
            };
            assert!(schema[bound].is_u64(), "{at} has no {bound}");
        }
    }

    #[test]
    fn every_rule_says_what_would_be_right() {
        let mut rules = 0;
        for (at, schema) in all_fields() {
            let of_field = schema["x-kubernetes-validations"].as_array();
            for rule in of_field.into_iter().flatten() {
                rules += 1;
                let message = rule["message"].as_str().unwrap_or_default();
                assert!(
                    !message.is_empty() && !message.contains('\n'),
                    "{at}: {rule}"
                );
            }
        }
        assert!(rules > 100, "{rules}");
    }
}
