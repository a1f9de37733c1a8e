//! Writes to the API server, one object at a time.

use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, Preconditions};
use kube::core::{PartialObjectMeta, Status};
use kube::{Client, ResourceExt as _};
use serde_json::Value;

use crate::adapter::Adapter;
use crate::cluster::ObjectKey;
use crate::object::{FIELD_MANAGER, MANAGED_BY, OPERATOR_ANNOTATION, Object, other_operator};
use crate::readable::{Readable, list};
use crate::report::ObjectState;
use crate::watch::api_of;

/// Applies `object`. `version` is the resource version of Headgate's existing object, if any. A
/// newer version is never overwritten. So the write of a former leader that hasn't noticed the loss
/// of its Lease fails, because its version is old.
///
/// The apply is never forced, so a field that another field manager has set stays with that
/// manager. Returns the object as stored by the API server.
///
/// # Errors
/// [`ObjectState::Failed`], if another manager owns the fields or the object, or the API server
/// refuses the object, so that manual action is needed first. Else [`ObjectState::Pending`], for a
/// temporary failure, after which the write is retried.
pub async fn apply(
    client: &Client,
    object: &Object,
    version: Option<&str>,
) -> Result<Value, ObjectState> {
    let (resource, namespace) = (object.adapter.resource(), &object.key.namespace);
    let mut value = object.value.clone();
    if let Some(version) = version {
        value["metadata"]["resourceVersion"] = Value::String(version.to_owned());
    } else {
        // Server-side apply would take over a foreign object of the same name, and a later delete
        // would remove its owner's object.
        let same_name = ListParams::default().fields(&format!("metadata.name={}", object.key.name));
        let api =
            api_of::<Readable<PartialObjectMeta<DynamicObject>>>(&resource, client, namespace);
        let found = list(&api, &same_name).await.map_err(|e| failed(&e))?.items;
        let is_ours = |f: &PartialObjectMeta<DynamicObject>| {
            f.labels()
                .get(MANAGED_BY.0)
                .is_some_and(|m| m == MANAGED_BY.1)
        };
        if !found.iter().all(is_ours) {
            let why =
                "an object of this name exists that Headgate doesn't manage; rename or delete it";
            return Err(ObjectState::Failed(why.to_owned()));
        }
        let own = &value["metadata"]["annotations"][OPERATOR_ANNOTATION];
        let own = own.as_str().unwrap_or_default();
        let other = { found.iter() }.find_map(|f| other_operator(f.annotations(), own));
        if let Some(other) = other {
            return Err(ObjectState::Failed(format!(
                "the operator {other} delivers an object of this name; let only one operator watch \
                 each namespace or, if that operator was removed, remove the object's annotation \
                 {OPERATOR_ANNOTATION}"
            )));
        }
    }
    let parameters = PatchParams::apply(FIELD_MANAGER);
    let patch = Patch::Apply(&value);
    let api = api_of::<Readable<DynamicObject>>(&resource, client, namespace);
    let written = api.patch(&object.key.name, &parameters, &patch).await;
    let Readable(written) = written.map_err(|e| failed(&e))?;
    Ok(serde_json::to_value(written).unwrap_or_default())
}

/// Deletes the object `observed`, unless another object has replaced it.
///
/// # Errors
/// Returns the reason, in one line. The caller should retry.
pub async fn delete(
    client: &Client,
    adapter: Adapter,
    key: &ObjectKey,
    observed: &Value,
) -> Result<(), String> {
    let text = |name: &str| observed["metadata"][name].as_str().map(str::to_owned);
    let parameters = DeleteParams {
        preconditions: Some(Preconditions {
            uid: text("uid"),
            resource_version: text("resourceVersion"),
        }),
        ..DeleteParams::default()
    };
    let api = api_of::<Readable<DynamicObject>>(&adapter.resource(), client, &key.namespace);
    match api.delete(&key.name, &parameters).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(line(&error)),
    }
}

fn failed(error: &kube::Error) -> ObjectState {
    let why = line(error);
    match error {
        kube::Error::Api(status) if of_fields(status) => ObjectState::Failed(format!(
            "{why}; release these fields (kubectl apply --server-side without them, or delete the \
             object), and Headgate sets them"
        )),
        kube::Error::Api(status) if matches!(status.code, 400 | 403 | 413 | 422) => {
            ObjectState::Failed(why)
        }
        _ => ObjectState::Pending(why),
    }
}

/// Whether a conflict is about fields of another manager, rather than about the resource version.
fn of_fields(status: &Status) -> bool {
    let causes = status.details.iter().flat_map(|d| &d.causes);
    status.code == 409 && { causes }.any(|c| c.reason == "FieldManagerConflict")
}

/// Returns the API server's refusal, or the reason why it doesn't answer, in one line.
pub fn line(error: &kube::Error) -> String {
    let text = match error {
        kube::Error::Api(status) => status.message.clone(),
        other => {
            // The innermost cause is the useful part of hyper's message.
            let mut cause: &dyn std::error::Error = other;
            while let Some(deeper) = cause.source() {
                cause = deeper;
            }
            format!("the API server can't be reached: {cause}")
        }
    };
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
