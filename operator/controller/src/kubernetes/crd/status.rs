//! The bounds of `status`, equal to those of Gateway API.

use serde_json::{Value, json};

/// The largest number of ancestors (Gateway API's `PolicyStatus`).
const MAX_ANCESTORS: usize = 16;
/// The largest number of conditions in one list (Gateway API's `PolicyStatus`).
const MAX_CONDITIONS: usize = 8;

/// Adds the bounds to the structural schema of the status.
pub(super) fn constrain(status: &mut Value) {
    conditions(&mut status["properties"]["conditions"]);
    let ancestors = &mut status["properties"]["ancestors"];
    ancestors["maxItems"] = json!(MAX_ANCESTORS);
    ancestors["x-kubernetes-list-type"] = json!("atomic");
    let ancestor = &mut ancestors["items"]["properties"];
    conditions(&mut ancestor["conditions"]);
    ancestor["controllerName"]["maxLength"] = json!(253);
    // A name may also be the labels of Pods. These are up to 16 times `PREFIX/KEY=VALUE`, each
    // longer than an object's name.
    let of_ancestor = &mut ancestor["ancestorRef"]["properties"];
    for (field, most) in [
        ("group", 253),
        ("kind", 63),
        ("namespace", 63),
        ("name", 8192),
        ("sectionName", 253),
    ] {
        of_ancestor[field]["maxLength"] = json!(most);
    }
}

/// Adds the bounds of Kubernetes' own `Condition` type to a list of conditions.
fn conditions(list: &mut Value) {
    list["maxItems"] = json!(MAX_CONDITIONS);
    list["x-kubernetes-list-type"] = json!("map");
    list["x-kubernetes-list-map-keys"] = json!(["type"]);
    let fields = &mut list["items"]["properties"];
    fields["type"]["maxLength"] = json!(316);
    fields["status"]["enum"] = json!(["True", "False", "Unknown"]);
    fields["reason"]["maxLength"] = json!(1024);
    fields["reason"]["minLength"] = json!(1);
    fields["reason"]["pattern"] = json!("^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$");
    fields["message"]["maxLength"] = json!(32768);
}
