//! Reads a [`Node`] tree into the API's types, with all mistakes and not only the first.
//!
//! serde stops at the first mistake. So the tree is repaired at this mistake and decoded again,
//! until decoding succeeds. A misspelt name is replaced by the closest known name, and an unusable
//! value by [`Value::Anything`], which decodes as any type. Each round reports one problem. The
//! resulting policy is used only to find further mistakes, outside the repaired fields
//! ([`Decoded::repaired`]).

mod reader;

use serde::de::DeserializeOwned;

use super::node::{Member, Node, Value};
use super::path::{Path, Segment};
use super::problem::{Position, Problem};
use super::suggest::{closest, instead_of};
use reader::Fault;

/// The largest number of mistakes reported for one document. Each mistake costs one more round of
/// decoding.
const MAX_PROBLEMS: usize = 100;

/// The result of reading a document.
#[derive(Debug)]
pub(crate) struct Decoded<T> {
    /// The value, unless there are too many mistakes.
    pub(crate) value: Option<T>,
    /// All mistakes, each with its field, its position and the message.
    pub(crate) problems: Vec<(Path, Position, String)>,
    /// Fields whose values were replaced by the repair.
    pub(crate) repaired: Vec<Path>,
}

impl<T> Decoded<T> {
    /// Adds the mistakes that rules have found in the value, each with its field and the message.
    /// Leaves out mistakes that result from a replaced value, because the user didn't make these
    /// mistakes, and the original mistake has been reported.
    pub(crate) fn add(
        &mut self,
        document: &Node,
        found: impl IntoIterator<Item = (Path, String)>,
        follows: impl Fn(&Path, &Path) -> bool,
    ) {
        for (path, message) in found {
            if !self.repaired.iter().any(|field| follows(&path, field)) {
                let at = document.position(&path);
                self.problems.push((path, at, message));
            }
        }
    }

    /// Returns all mistakes, in the order of the file.
    pub(crate) fn into_problems(self, file: &str) -> Vec<Problem> {
        let problem = |(path, at, message): (Path, Position, String)| {
            Problem::at(file, Some(at), &path.to_string(), &message)
        };
        let mut problems: Vec<Problem> = self.problems.into_iter().map(problem).collect();
        problems.sort_by_key(|p| (p.line, p.column));
        problems
    }
}

/// Reads `document`, and repairs it if necessary. `example` returns a hint about a missing field,
/// such as an example of its value, by the path and the name of the field.
pub(crate) fn decode<T: DeserializeOwned>(
    document: &mut Node,
    example: impl Fn(&Path, &str) -> &'static str,
) -> Decoded<T> {
    let mut decoded = Decoded {
        value: None,
        problems: Vec::new(),
        repaired: Vec::new(),
    };
    let Decoded {
        problems, repaired, ..
    } = &mut decoded;
    while problems.len() < MAX_PROBLEMS {
        let error = match serde_path_to_error::deserialize::<_, T>(&*document) {
            Ok(value) => {
                decoded.value = Some(value);
                break;
            }
            Err(error) => error,
        };
        let path = path_of(&error);
        let fault = error.into_inner();
        let place = document.position(&path);
        let Some(node) = document.find_mut(path.segments()) else {
            problems.push((path, document.at, "not readable".to_owned()));
            break;
        };
        let is_repaired = |field: &Path| repaired.iter().any(|m| field.is_within(m));
        let mut at = path.clone();
        // The position is determined before the repair, which may remove the field.
        let mut position = place;
        let message = match fault {
            Fault::UnknownField { field, expected } => {
                at = path.key(&field);
                position = node.position(&Path::default().key(&field));
                rename_or_remove(node, &field, expected);
                format!(
                    "unknown field; {}",
                    instead_of(&field, expected.iter().copied())
                )
            }
            Fault::UnknownVariant { variant, expected } => {
                let meant = closest(&variant, expected.iter().copied());
                node.value = meant.map_or(Value::Anything, |name| Value::Text(name.to_owned()));
                let message = format!(
                    "{variant:?}; {}",
                    instead_of(&variant, expected.iter().copied())
                );
                if meant.is_none() && !is_repaired(&at) {
                    repaired.push(at.clone());
                }
                message
            }
            Fault::Missing { field } => {
                at = path.key(field);
                let known = is_repaired(&at);
                insert_anything(node, field);
                if known {
                    continue;
                }
                repaired.push(at.clone());
                format!("missing; {}", example(&at, field))
            }
            Fault::Wrong(expected) => {
                let quote = matches!(node.value, Value::Bool(_) | Value::Int(_) | Value::Float(_))
                    && expected == "a string";
                let quote = if quote { " (put it in quotes)" } else { "" };
                let message = format!("{}; {expected}{quote}", node.describe());
                node.value = Value::Anything;
                repaired.push(at.clone());
                message
            }
        };
        problems.push((at, position, message));
    }
    decoded
}

/// Returns the field with the mistake. For an unknown field, returns the mapping that contains the
/// field.
fn path_of(error: &serde_path_to_error::Error<Fault>) -> Path {
    use serde_path_to_error::Segment as Step;
    let segment = |step: &Step| match step {
        Step::Seq { index } => Some(Segment::Item(*index)),
        Step::Map { key } => Some(Segment::Field(key.clone())),
        // An enum's variant is a value, not a field.
        Step::Enum { .. } | Step::Unknown => None,
    };
    let mut path: Vec<Segment> = error.path().iter().filter_map(segment).collect();
    if let Fault::UnknownField { .. } = error.inner() {
        path.pop();
    }
    Path::new(path)
}

fn rename_or_remove(node: &mut Node, field: &str, expected: &[&str]) {
    let meant = closest(field, expected.iter().copied()).filter(|m| node.get(m).is_none());
    let Value::Map(entries) = &mut node.value else {
        return;
    };
    match (meant, entries.iter_mut().find(|e| e.key == field)) {
        (Some(meant), Some(entry)) => meant.clone_into(&mut entry.key),
        _ => entries.retain(|e| e.key != field),
    }
}

fn insert_anything(node: &mut Node, field: &str) {
    let at = node.at;
    let entry = Member {
        key: field.to_owned(),
        at,
        node: Node {
            at,
            value: Value::Anything,
        },
    };
    match &mut node.value {
        Value::Map(entries) => {
            entries.retain(|e| e.key != field);
            entries.push(entry);
        }
        other => *other = Value::Map(vec![entry]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::AdmissionPolicy;
    use crate::validate::{example, node};

    fn decoded(yaml: &str) -> Decoded<AdmissionPolicy> {
        decode(&mut node::parse("a.yaml", yaml).unwrap().remove(0), example)
    }

    fn problems(yaml: &str) -> Vec<String> {
        decoded(yaml)
            .problems
            .into_iter()
            .map(|(path, _, message)| format!("{path}: {message}"))
            .collect()
    }

    #[test]
    fn every_mistake_is_found_in_one_go() {
        let found = problems(
            "apiVersion: 1\nkind: AdmissionPolicy\nmetadata: {nam: x}\nspec:\n  mod: Enforc\n  \
             parallelism: many\n  extra: 1\n  types:\n  - {name: a, matches: {}}\n  - 7\n",
        );
        assert_eq!(
            found,
            [
                "apiVersion: 1; a string (put it in quotes)",
                "metadata.nam: unknown field; did you mean \"name\"?",
                "spec.mod: unknown field; did you mean \"mode\"?",
                "spec.mode: \"Enforc\"; did you mean \"Enforce\"?",
                "spec.parallelism: \"many\"; a mapping with the fields auto, total, perEndpoint, \
                 tokens",
                "spec.extra: unknown field; one of targetRefs, mode, parallelism, measure, \
                 releaseSlot, errors, retries, queue, strategy, types, classes, workflows, \
                 classAdmission, exclude",
                "spec.types[0].matches: a mapping; a list",
                "spec.types[1]: 7; a mapping with fields such as name, matches, slo, ttft, tpot, \
                 value",
                "spec.targetRefs: missing; such as [{group: \"\", kind: Service, name: search}]",
            ]
        );
    }

    /// Such as a log in place of a policy.
    #[test]
    fn the_beginning_of_a_long_text_is_shown() {
        let long = "ü".repeat(100);
        assert_eq!(
            problems(&format!("{long}\n{long}\n")),
            [format!(
                "document: \"{}\"…; a mapping with the fields apiVersion, kind, metadata, spec, \
                 status",
                "ü".repeat(80)
            )]
        );
    }

    #[test]
    fn null_is_as_good_as_absent() {
        let yaml = "apiVersion: v\nkind: k\nmetadata: {name: x, labels: null}\nspec: {targetRefs: \
                    [], mode: null, queue: ~, parallelism: {total: null}, types: []}\n";
        let decoded = decoded(yaml);
        assert_eq!(decoded.problems, []);
        assert_eq!(decoded.value.unwrap().spec.parallelism.total, None);
        assert_eq!(
            problems(&yaml.replace("types: []", "types: null")),
            [
                "spec.types: missing; at least one, named default, such as [{name: default, slo: \
                 {p50: 18ms, p90: 50ms}}]"
            ]
        );
    }

    #[test]
    fn any_wrong_document_has_problems() {
        for yaml in ["7", "[]", "a: {b: [c]}", "text", "{}", "? [a]\n: b"] {
            if let Ok(mut documents) = node::parse("a.yaml", yaml) {
                assert_ne!(
                    decode::<AdmissionPolicy>(&mut documents.remove(0), example).problems,
                    [],
                    "{yaml}"
                );
            }
        }
    }
}
