//! Tests of policies with mistakes. Each policy is refused with the message that its document
//! expects.

// Helpers of tests fail a test by panicking, as tests do.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::path::Path;

use headgate_api::validate::{MAX_FILE, check_file};

use crate::bad_policies::bad_policies;

#[test]
fn every_bad_policy_gets_the_message_it_expects() {
    let policies = bad_policies();
    assert!(policies.len() >= 363, "{} policies", policies.len());
    let mut differences = Vec::new();
    for (name, policy) in policies {
        let message = policy.message;
        // A message without line and column is about the whole file.
        let colon = if message.starts_with(|c: char| c.is_ascii_digit()) {
            ":"
        } else {
            ": "
        };
        let expected = format!("{name}.yaml{colon}{message}");

        let report = check_file(&format!("{name}.yaml"), &policy.document);
        let found: Vec<String> = report.all_problems().map(ToString::to_string).collect();
        assert!(found.iter().all(|line| !line.contains('\n')), "{found:?}");
        if found != [expected.clone()] {
            differences.push(format!(
                "expected {expected}\n   found {}",
                found.join("\n         ")
            ));
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[test]
fn a_file_that_is_too_large_is_not_even_read() {
    let report = check_file("policy.yaml", &vec![b'#'; MAX_FILE + 1]);
    let found: Vec<String> = report.all_problems().map(ToString::to_string).collect();
    assert_eq!(
        found,
        ["policy.yaml: 1048577 bytes; at most 1048576, so split it"]
    );
}

#[test]
fn all_mistakes_of_a_file_are_found_at_once() {
    let text = "\
apiVersion: headgate.dev/v1alpha1
kind: AdmissionPolicy
metadata: {name: a}
spec:
  targetRefs: [{kind: Srvice, name: a}]
  parallelism: {total: 0}
  mod: Enforce
  types:
  - {name: slow, slo: {p50: 1, p90: 20ms}}
---
apiVersion: headgate.dev/v1alpha1
kind: AdmissionPolicy
metadata: {name: B}
spec:
  targetRefs: [{kind: Service, name: a}]
  parallelism: {total: 1}
  queue: {timeout: 1x}
  types: [{name: default, slo: {p50: 1ms}}]
";
    let report = check_file("f.yaml", text.as_bytes());
    let found: Vec<String> = report.all_problems().map(ToString::to_string).collect();
    assert_eq!(
        found,
        [
            "f.yaml:5:17: spec.targetRefs[0].kind: \"Srvice\"; did you mean \"Service\"?",
            "f.yaml:6:17: spec.parallelism.total: 0; 1 to 1000000",
            "f.yaml:7:3: spec.mod: unknown field; did you mean \"mode\"?",
            "f.yaml:8:3: spec.types: no type is named default; one named default takes all other \
             requests",
            "f.yaml:9:5: spec.types[0].matches: none; at least one, such as {path: {type: \
             PathPrefix, value: /search}}",
            "f.yaml:9:24: spec.types[0].slo.p50: 1; a duration such as 18ms, 1s or 1m30s",
            "f.yaml:13:12: metadata.name: \"B\"; 1 to 253 of a-z, 0-9, - and ., with a letter or \
             digit first and last",
            "f.yaml:17:11: spec.queue.timeout: \"1x\"; unknown unit \"x\"; units are h, m, \
             s and ms",
        ]
    );
}

/// For any content of a file, the check returns policies or problems, and never panics.
#[test]
fn mutilated_files_never_panic() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/policies/everything.yaml");
    let good = fs::read(folder).unwrap();
    for cut in (0..good.len()).step_by(5) {
        let mut bytes = good.clone();
        let _ = check_file("cut.yaml", &bytes[..cut]);
        for odd in [b'\0', b'\n', b'{', b'&', 0xff] {
            bytes[cut] = odd;
            let report = check_file("odd.yaml", &bytes);
            assert!(report.policies().count() + report.all_problems().count() > 0);
        }
    }
}
