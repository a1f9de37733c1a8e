//! Tests of workloads with mistakes. Each workload is refused with the message that its first line
//! expects.

// Helpers of tests fail a test by panicking, as tests do.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::path::{Path, PathBuf};

use headgate::WorkloadDocument;
use headgate_api::compile::configuration;
use headgate_api::validate::check_file;
use headgate_core::config::StageConfig;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(name)
}

/// Returns the stage of the quick start's policy.
fn stage() -> StageConfig {
    let content = fs::read(folder("examples/quickstart/policy.yaml")).unwrap();
    let report = check_file("policy.yaml", &content);
    let mut config = configuration(report.policies().next().unwrap(), 1);
    config.stages.remove(0)
}

/// Returns all problems of a workload, each as one line.
fn problems(name: &str, content: &[u8]) -> Vec<String> {
    let planned = WorkloadDocument::read(name, content).and_then(|w| w.plan(&stage(), None));
    let problems = planned.err().unwrap_or_default();
    problems.iter().map(ToString::to_string).collect()
}

#[test]
fn every_bad_workload_gets_the_message_it_expects() {
    let mut files: Vec<PathBuf> = fs::read_dir(folder("tests/bad-workloads"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    assert!(files.len() >= 50, "{} files", files.len());
    let mut differences = Vec::new();
    for path in files {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let content = fs::read(&path).unwrap();
        let first = content.split(|b| *b == b'\n').next().unwrap();
        let message = std::str::from_utf8(first)
            .unwrap()
            .strip_prefix("# expect: ");
        let message = message.expect("the first line holds the message");
        // A message without line and column is about the whole file.
        let first_word = message.split(' ').next().unwrap_or_default();
        let has_place = first_word.matches(':').count() == 2;
        let expected = format!("{name}:{}{message}", if has_place { "" } else { " " });

        let found = problems(&name, &content);
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
fn all_mistakes_of_a_workload_are_found_at_once() {
    let text = "\
loads: 1.5
rate: fast
phases:
- {duration: 30, load: 2}
types:
- {name: slo, share: -1, serviceTime: {distribution: Lognormal, mean: 4ms, median: 1ms}}
- {name: fast, serviceTime: {distribution: Exponential, mean: 1d, p90: 3ms}}
";
    assert_eq!(
        problems("w.yaml", text.as_bytes()),
        [
            "w.yaml:1:1: loads: unknown field; did you mean \"load\"?",
            "w.yaml:1:1: load: given; phases determines the rate; keep one of the two",
            "w.yaml:2:1: rate: \"fast\"; a number or a list of numbers, such as [0.9, 1.2, 1.5]",
            "w.yaml:4:4: phases[0].duration: 30; a time such as 1.16ms, 2s or 1m30s",
            "w.yaml:6:4: types[0].name: \"slo\" is no type of the policy; did you mean \"slow\"? \
             (with a request, such as {path: /search}, any name is valid)",
            "w.yaml:6:15: types[0].share: -1; a number of at least 0",
            "w.yaml:6:40: types[0].serviceTime.distribution: \"Lognormal\"; \
             did you mean \"LogNormal\"?",
            "w.yaml:7:57: types[1].serviceTime.mean: \"1d\"; unknown unit \"d\"; units are h, m, \
             s, ms and us",
            "w.yaml:7:67: types[1].serviceTime.p90: given; leave it out; Exponential takes mean",
        ]
    );
}

#[test]
fn the_examples_are_workloads() {
    let examples = folder("examples/simulate");
    for file in ["workload.yaml", "burst.yaml", "clients.yaml"] {
        let content = fs::read(examples.join(file)).unwrap();
        assert_eq!(problems(file, &content), Vec::<String>::new());
    }
}

/// For any content of a file, the reader returns a plan or problems, and never panics.
#[test]
fn mutilated_workloads_never_panic() {
    let good = fs::read(folder("examples/simulate/burst.yaml")).unwrap();
    for cut in (0..good.len()).step_by(3) {
        let mut bytes = good.clone();
        let _ = problems("cut.yaml", &bytes[..cut]);
        for odd in [b'\0', b'\n', b'{', b'-', b'9', 0xff] {
            bytes[cut] = odd;
            let _ = problems("odd.yaml", &bytes);
        }
    }
}
