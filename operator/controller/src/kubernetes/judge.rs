//! Validation of a policy from the API server.
//!
//! The API server refuses most errors. However, an older schema may have accepted some errors, and
//! the schema's rules can't express others. So each object is validated here, by the same code and
//! with the same messages as a file.

use kube::ResourceExt as _;
use serde_json::json;

use super::resource::PolicyResource;
use headgate_api::validate::{Problem, check_file};
use headgate_api::{API_VERSION, KIND};
use headgate_deliver::cluster::PolicyObject;
use headgate_deliver::read::key;

/// Validates one policy. `before` is the known object with this name. Its last valid version is
/// kept if it has the same UID.
pub fn judge(policy: &PolicyResource, before: Option<&PolicyObject>) -> PolicyObject {
    let uid = policy.uid().unwrap_or_default();
    let generation = policy.metadata.generation.unwrap_or(0);
    let document = json!({
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {
            "name": policy.name_any(),
            "namespace": policy.namespace(),
            "generation": generation,
            "creationTimestamp": policy.metadata.creation_timestamp,
        },
        "spec": policy.spec,
    });
    let name = key(&policy.metadata).to_string();
    let mut report = check_file(&name, document.to_string().as_bytes());
    let (created, targets, checked) = match report.documents.pop() {
        Some(found) => (found.created, found.targets, found.policy),
        None => (None, Vec::new(), Err(report.problems)),
    };
    let (accepted, effective) = match checked {
        Ok(policy) => (Ok(()), Some(policy)),
        Err(problems) => {
            let lines: Vec<String> = problems.iter().map(Problem::text).collect();
            let before = before.filter(|before| before.uid == uid);
            (
                Err(lines.join("\n")),
                before.and_then(|before| before.effective.clone()),
            )
        }
    };
    PolicyObject {
        uid,
        generation,
        created,
        targets,
        accepted,
        effective,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(uid: &str, generation: i64, p50: &str) -> PolicyResource {
        serde_json::from_value(json!({
            "metadata": {
                "name": "p", "namespace": "a", "uid": uid, "generation": generation,
                "creationTimestamp": "2026-01-01T00:00:00Z",
            },
            "spec": {
                "targetRefs": [{"group": "", "kind": "Service", "name": "s"}],
                "parallelism": {"total": 4},
                "types": [{"name": "default", "slo": {"p50": p50}}],
            },
        }))
        .unwrap()
    }

    #[test]
    fn a_policy_is_judged_as_a_file_is() {
        let good = judge(&policy("1", 3, "10ms"), None);
        assert_eq!(good.accepted, Ok(()));
        let valid = good.effective.unwrap();
        assert_eq!((valid.full_name().as_str(), valid.generation), ("a/p", 3));
        assert_eq!(valid.created.as_deref(), Some("2026-01-01T00:00:00Z"));
        let bad = judge(&policy("1", 4, "10"), None);
        let problems = bad.accepted.unwrap_err();
        assert!(
            problems.lines().count() == 1 && problems.starts_with("spec.types[0].slo.p50: "),
            "{problems}"
        );
        assert_eq!(bad.targets.len(), 1, "its targets are still known");
        assert_eq!(bad.created.as_deref(), Some("2026-01-01T00:00:00Z"));
    }

    #[test]
    fn the_last_good_version_stays_with_its_object() {
        let good = judge(&policy("1", 1, "10ms"), None);
        let bad = judge(&policy("1", 2, "ten"), Some(&good));
        assert_eq!(bad.effective.as_ref().map(|p| p.generation), Some(1));
        let worse = judge(&policy("1", 3, "eleven"), Some(&bad));
        assert_eq!(worse.effective.as_ref().map(|p| p.generation), Some(1));
        let other = judge(&policy("2", 1, "ten"), Some(&worse));
        assert_eq!(
            other.effective, None,
            "an object of the same name, made anew"
        );
    }
}
