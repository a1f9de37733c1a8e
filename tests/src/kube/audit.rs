//! The API server's audit log, with one JSON event on each line. An event has a request and its
//! user.

use std::fs::File;
use std::io::{BufRead, BufReader, Seek, SeekFrom};
use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;

/// An answered request, or a watch. A watch is logged when it starts and again when it ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditEvent {
    /// The user of the request, such as `system:serviceaccount:headgate-system:headgate`.
    pub user: String,
    /// The verb: `get`, `list`, `watch`, `create`, `update`, `patch`, `delete` or
    /// `deletecollection`. For requests without an object, it is the HTTP method in lower case.
    pub verb: String,
    /// The API group. Empty for the core group.
    pub group: String,
    /// The plural of the resource with the subresource, such as `admissionpolicies/status`. Empty
    /// for requests without an object.
    pub resource: String,
    /// The namespace. Empty for requests across all namespaces or without a namespace.
    pub namespace: String,
    /// The name of the object. Empty for requests about collections.
    pub name: String,
    /// The path and query of the request.
    pub uri: String,
    /// The client program, such as `kubectl/v1.35.2 …`.
    pub user_agent: String,
    /// The HTTP status of the answer. 0 without an answer.
    pub code: u16,
    /// The stage: `ResponseStarted` for a watch that begins, `ResponseComplete` for a request or
    /// watch that ends.
    pub stage: String,
}

impl AuditEvent {
    /// Whether the request could change something.
    pub fn is_write(&self) -> bool {
        matches!(
            self.verb.as_str(),
            "create" | "update" | "patch" | "delete" | "deletecollection"
        )
    }
}

/// A position in the log, which separates earlier events from later ones.
#[derive(Debug, Clone, Copy, Default)]
pub struct AuditMark(u64);

/// Returns the current end of the log.
pub(super) fn mark(log: &Path) -> AuditMark {
    AuditMark(std::fs::metadata(log).map_or(0, |file| file.len()))
}

/// Returns all complete events after `mark`.
pub(super) fn read(log: &Path, mark: AuditMark) -> Result<Vec<AuditEvent>> {
    let mut file = File::open(log).with_context(|| format!("audit log {}", log.display()))?;
    file.seek(SeekFrom::Start(mark.0))?;
    let mut events = Vec::new();
    let (mut lines, mut line) = (BufReader::new(file), String::new());
    // The last line may be incomplete.
    while lines.read_line(&mut line)? > 0 && line.ends_with('\n') {
        let event: Event =
            serde_json::from_str(&line).with_context(|| format!("audit event {line}"))?;
        events.push(event.into());
        line.clear();
    }
    Ok(events)
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Event {
    stage: String,
    verb: String,
    #[serde(rename = "requestURI")]
    request_uri: String,
    user: User,
    #[serde(default)]
    user_agent: String,
    #[serde(default)]
    object_ref: ObjectRef,
    #[serde(default)]
    response_status: ResponseStatus,
}

#[derive(Deserialize)]
struct User {
    #[serde(default)]
    username: String,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ObjectRef {
    resource: String,
    subresource: String,
    namespace: String,
    name: String,
    api_group: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct ResponseStatus {
    code: u16,
}

impl From<Event> for AuditEvent {
    fn from(event: Event) -> Self {
        let object = event.object_ref;
        let resource = match object.subresource.as_str() {
            "" => object.resource,
            subresource => format!("{}/{subresource}", object.resource),
        };
        Self {
            user: event.user.username,
            verb: event.verb,
            group: object.api_group,
            resource,
            namespace: object.namespace,
            name: object.name,
            uri: event.request_uri,
            user_agent: event.user_agent,
            code: event.response_status.code,
            stage: event.stage,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn events_are_read_from_a_mark_and_an_unfinished_line_waits() {
        let mut log = tempfile::NamedTempFile::new().unwrap();
        let line = |verb: &str| {
            format!(
                r#"{{"stage":"ResponseComplete","requestURI":"/x","verb":"{verb}","user":{{"username":"me"}},"objectRef":{{"resource":"services","subresource":"status","namespace":"shop","name":"search","apiVersion":"v1"}},"responseStatus":{{"metadata":{{}},"code":200}}}}"#
            )
        };
        writeln!(log, "{}", line("get")).unwrap();
        let mark = mark(log.path());
        writeln!(log, "{}", line("patch")).unwrap();
        write!(log, "{}", &line("delete")[..40]).unwrap();
        let events = read(log.path(), mark).unwrap();
        let seen: Vec<_> = events
            .iter()
            .map(|e| (e.verb.as_str(), e.resource.as_str(), e.code, e.is_write()))
            .collect();
        assert_eq!(seen, [("patch", "services/status", 200, true)]);
        assert_eq!(read(log.path(), AuditMark::default()).unwrap().len(), 2);
    }
}
