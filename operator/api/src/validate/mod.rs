//! Parses texts into valid policies, or lists all their mistakes.
//!
//! The messages about an invalid policy must refer to the file that the user wrote: line, field,
//! value found, and a correct value. All mistakes must be listed at once, because users abandon a
//! tool that reports one mistake per run. A file goes through three steps: YAML to a tree with line
//! numbers (`node`), the tree to the API's types (`decode`), and the API's types to types that
//! can't be wrong (`rules`).

mod decode;
mod node;
mod parsed;
mod path;
mod policy;
mod problem;
mod rules;
mod suggest;

use std::collections::HashMap;

use headgate_core::config::FilterConfig;

use crate::target::TargetRef;
use crate::{API_VERSION, AdmissionPolicy, AdmissionPolicySpec, DEFAULT_NAMESPACE, KIND};
use node::{Node, Value};
use path::{Path, Segment};
use rules::{At, Problems};
use suggest::closest;

pub use crate::slots::Slots;
pub use parsed::Parsed;
pub use policy::ValidPolicy;
pub use problem::Problem;
pub use rules::{MAX_PATH, METHODS, NAME, constrain, is_label, is_name};
pub use suggest::instead_of;

/// The largest file, in bytes. The API server has the same limit.
pub const MAX_FILE: usize = 1 << 20;

/// The result of checking one file.
#[derive(Debug, Clone, PartialEq)]
pub struct FileReport {
    /// The file, as the caller named it.
    pub file: String,
    /// The documents of the file, in order; empty if the file isn't YAML.
    pub documents: Vec<Document>,
    /// Mistakes that don't belong to a single document.
    pub problems: Vec<Problem>,
    /// Whether the file contains only objects of other APIs. Each object counts as a mistake.
    pub of_other_apis: bool,
}

/// One document of a file.
#[derive(Debug, Clone, PartialEq)]
pub struct Document {
    /// `namespace/name`, if both can be read.
    pub name: Option<String>,
    /// `metadata.generation`, 0 when not given.
    pub generation: i64,
    /// `metadata.creationTimestamp`.
    pub created: Option<String>,
    /// The valid targets, even of an invalid policy.
    pub targets: Vec<TargetRef>,
    /// The line, from 1, on which the document starts.
    pub line: u64,
    /// The `spec` as read, with replacements for mistakes; `None` with too many mistakes.
    pub spec: Option<AdmissionPolicySpec>,
    /// The policy or its mistakes, of which there is at least one.
    pub policy: Result<ValidPolicy, Vec<Problem>>,
}

impl FileReport {
    /// Returns all mistakes, in the order of the file.
    pub fn all_problems(&self) -> impl Iterator<Item = &Problem> {
        self.problems.iter().chain(
            self.documents
                .iter()
                .filter_map(|d| d.policy.as_ref().err())
                .flatten(),
        )
    }

    /// Returns all policies without mistakes.
    pub fn policies(&self) -> impl Iterator<Item = &ValidPolicy> {
        self.documents.iter().filter_map(|d| d.policy.as_ref().ok())
    }

    /// Returns the report of a file that can't be read.
    pub fn failed(file: &str, problem: Problem) -> Self {
        Self {
            file: file.to_owned(),
            documents: Vec::new(),
            problems: vec![problem],
            of_other_apis: false,
        }
    }
}

/// Checks `bytes`, the content of the file named `file`. Objects of other APIs, such as a Service,
/// are ignored if the file also has policies.
pub fn check_file(file: &str, bytes: &[u8]) -> FileReport {
    let mut documents: Vec<Node> = match parse(file, bytes) {
        Ok(documents) => documents.into_iter().flat_map(objects).collect(),
        Err(problem) => return FileReport::failed(file, problem),
    };
    if documents.is_empty() {
        let message = "empty; at least one AdmissionPolicy";
        return FileReport::failed(file, Problem::of_file(file, message));
    }
    let of_other_apis = documents.iter().all(is_of_another_api);
    if !of_other_apis {
        documents.retain(|document| !is_of_another_api(document));
    }
    let documents = documents
        .into_iter()
        .map(|document| check_document(file, document))
        .collect();
    let mut report = FileReport {
        file: file.to_owned(),
        documents,
        problems: Vec::new(),
        of_other_apis,
    };
    refuse_duplicates(std::slice::from_mut(&mut report));
    report
}

/// Empties the reports of files with only objects of other APIs if other files have policies:
/// manifests of workloads are often stored beside their policies.
pub fn leave_out_other_apis(reports: &mut [FileReport]) {
    if reports.iter().any(|report| !report.of_other_apis) {
        let others = reports.iter_mut().filter(|report| report.of_other_apis);
        others.for_each(|report| report.documents.clear());
    }
}

/// Returns the objects of a document. kubectl puts several objects into the items of a kind such as
/// `List`.
fn objects(document: Node) -> Vec<Node> {
    let kind = document.get("kind").and_then(Node::text);
    if !kind.is_some_and(|kind| kind.ends_with("List")) {
        return vec![document];
    }
    match document.get("items").map(|items| &items.value) {
        Some(Value::List(items)) => items.clone(),
        _ => vec![document],
    }
}

/// Returns the documents of a file.
fn parse(file: &str, bytes: &[u8]) -> Result<Vec<Node>, Problem> {
    if bytes.len() > MAX_FILE {
        let message = format!("{} bytes; at most {MAX_FILE}, so split it", bytes.len());
        return Err(Problem::of_file(file, message));
    }
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let line = 1 + bytes[..error.valid_up_to()]
            .iter()
            .filter(|b| **b == b'\n')
            .count();
        let message = format!("not UTF-8 on line {line}; save it as UTF-8");
        Problem::of_file(file, message)
    })?;
    node::parse(file, text)
}

/// Refuses policies whose name an earlier document or file has. This function must be called only
/// once with the same `reports`.
pub fn refuse_duplicates(reports: &mut [FileReport]) {
    let mut first_of: HashMap<String, String> = HashMap::new();
    for report in reports {
        for document in &mut report.documents {
            let Ok(policy) = &document.policy else {
                continue;
            };
            let name = policy.full_name();
            let place = format!("{}:{}", report.file, document.line);
            if let Some(first) = first_of.get(&name) {
                document.policy = Err(vec![Problem {
                    file: report.file.clone(),
                    line: Some(document.line),
                    column: Some(1),
                    field: "metadata.name".to_owned(),
                    message: format!("{name} is also at {first}; rename one or delete it"),
                }]);
            } else {
                first_of.insert(name, place);
            }
        }
    }
}

fn check_document(file: &str, mut document: Node) -> Document {
    let line = document.at.line;
    let is_policy = is_policy(&document);
    let mut decoded = decode::decode::<AdmissionPolicy>(&mut document, example);
    let problems = Problems::default();
    let valid = decoded
        .value
        .as_ref()
        .map(|policy| interpret(policy, &problems.document(Some(&document))));
    decoded.add(&document, problems.into_inner(), follows_from);

    // In an object of another kind, all fields would be unknown. The problem with the kind
    // suffices.
    if !is_policy {
        let kind = Path::default().field("kind");
        decoded.problems.retain(|(path, ..)| *path == kind);
    }
    let value = decoded.value.take();
    let name = value.as_ref().filter(|p| !p.metadata.name.is_empty());
    let problems = decoded.into_problems(file);
    Document {
        name: name.map(|p| format!("{}/{}", namespace(p), p.metadata.name)),
        generation: name.and_then(|p| p.metadata.generation).unwrap_or(0),
        created: name.and_then(|p| p.metadata.creation_timestamp.clone()),
        targets: valid
            .as_ref()
            .map(|v| v.targets.clone())
            .unwrap_or_default(),
        line,
        spec: value.map(|policy| policy.spec),
        policy: match valid {
            Some(valid) if problems.is_empty() => Ok(valid),
            _ => Err(problems),
        },
    }
}

/// Returns an example of a missing field of a policy.
fn example(at: &Path, field: &str) -> &'static str {
    match field {
        "apiVersion" => "headgate.dev/v1alpha1",
        "kind" if at.segments().len() > 1 => {
            "Service, Gateway, HTTPRoute, GRPCRoute, InferencePool or Pod"
        }
        "kind" => "AdmissionPolicy",
        "metadata" => "such as {name: search, namespace: default}",
        "name" if is_in(at, "named") => "the id of a workflow, as in requests",
        "name" if is_in(at, "services") => "the name of a service",
        "name" => "every object, type and header has a name",
        "spec" => "targetRefs and types",
        "targetRefs" => "such as [{group: \"\", kind: Service, name: search}]",
        "types" => {
            "at least one, named default, such as [{name: default, slo: {p50: 18ms, p90: 50ms}}]"
        }
        "value" if is_in(at, "set") => "the value of the header",
        "set" => "such as [{name: x-gateway-model-name, value: small}]",
        "value" => "the text to compare with",
        "type" if is_in(at, "identifyBy") => "Baggage, Header, Metadata or Type",
        "path" => "such as [envoy.filters.http.jwt_authn, claims, tenant]",
        "quantile" => "0 (the slowest process) to 1 (the fastest)",
        "cluster" => "the name of an Envoy cluster, exact or with * at its end",
        "capacity" => "its capacity per second",
        "least" => "the shortest delay, such as 100ms",
        "most" => "the longest delay, such as 300ms",
        "budget" => "the tokens that the server's cache holds, such as 65536",
        "otherwise" => "the tokens of a request without the header, such as 512",
        "metric" => "its name in the report",
        "type" => "AcceptanceAllowance or HelpingTheUnderserved",
        _ => "required",
    }
}

/// Whether a problem at `path` may result from the repair of `repaired`: `path` is a part of the
/// replaced value, or a field beside a replaced type.
fn follows_from(path: &Path, repaired: &Path) -> bool {
    let beside = match (path.segments(), repaired.segments()) {
        ([of @ .., _], [of_type @ .., Segment::Field(name)]) => name == "type" && of == of_type,
        _ => false,
    };
    beside || path.is_within(repaired)
}

/// Whether the field belongs to an item of the list `list`.
fn is_in(field: &Path, list: &str) -> bool {
    matches!(
        field.segments(),
        [.., Segment::Field(name), Segment::Item(_), _] if name == list
    )
}

/// Whether a document is meant to be a policy: its kind or API version is that of a policy,
/// possibly misspelt, or one of the two is missing.
fn is_policy(document: &Node) -> bool {
    match document.get("kind").map(|kind| &kind.value) {
        Some(Value::Text(kind)) => closest(kind, [KIND]).is_some(),
        Some(_) => true,
        None => document.get("apiVersion").is_some() || !matches!(document.value, Value::Map(_)),
    }
}

/// Whether a document is an object of another API: neither its kind nor its group resembles that of
/// a policy.
fn is_of_another_api(document: &Node) -> bool {
    let text = |field| document.get(field).and_then(Node::text);
    let (Some(version), Some(kind)) = (text("apiVersion"), text("kind")) else {
        return false;
    };
    let [group, own] = [version, API_VERSION].map(|of| of.split('/').next().unwrap_or_default());
    closest(kind, [KIND]).is_none() && closest(group, [own]).is_none()
}

fn namespace(policy: &AdmissionPolicy) -> &str {
    let namespace = policy.metadata.namespace.as_deref();
    namespace.unwrap_or(DEFAULT_NAMESPACE)
}

/// Converts a policy to the filter's types, and adds all problems to `document`.
fn interpret(policy: &AdmissionPolicy, document: &At<'_>) -> ValidPolicy {
    rules::identity(policy, document);
    let spec = document.field("spec");
    let mut valid = rules::policy(policy, namespace(policy), &spec);
    if document.found() == 0 {
        // The filter runs the same check: validation must refuse everything that the filter
        // refuses.
        let config = FilterConfig {
            stages: vec![valid.stage.clone()],
            ..FilterConfig::default()
        };
        if let Err(error) = config.check() {
            spec.add(format!("refused by the filter: {error}"));
        }
    }
    let noted = Problems::default();
    rules::warnings(&valid, &noted.document(None).field("spec"));
    valid.warnings = (noted.into_inner().into_iter())
        .map(|(path, message)| format!("{path}: {message}"))
        .collect();
    valid
}
