//! Checks the table of papers, code and tests (`filter/simulator/PAPERS.md`). Its files, tests and
//! scenarios must exist.

use std::collections::BTreeSet;
use std::fs;

use regex_lite::Regex;

use super::{expanded, files, shown};
use crate::kube::programs::repository;

const TABLE: &str = "filter/simulator/PAPERS.md";
/// The words before paths in the table, each with the folder that it means.
const FOLDERS: [(&str, &str); 9] = [
    ("strategies", "filter/strategies/src"),
    ("core", "filter/core/src"),
    ("admission", "filter/admission/src"),
    ("mesh", "filter/mesh/src"),
    ("simulator", "filter/simulator/src"),
    ("scenarios", "filter/scenarios/src"),
    ("API", "operator/api/src"),
    ("xDS", "operator/xds/src"),
    ("CLI", "operator/cli/src"),
];

/// Returns the names of all functions in the repository's Rust files. Those of the end-to-end tests
/// are also in the form `e2e NAME`.
fn functions() -> BTreeSet<String> {
    let function = Regex::new(r"\bfn (\w+)").unwrap();
    let mut all = BTreeSet::new();
    for file in files("rs").unwrap() {
        let text = fs::read_to_string(&file).unwrap();
        let is_e2e = shown(&file).starts_with("tests/tests/e2e/");
        for found in function.captures_iter(&text) {
            if is_e2e {
                all.insert(format!("e2e {}", &found[1]));
            }
            all.insert(found[1].to_owned());
        }
    }
    all
}

/// Returns the names of all scenarios.
fn scenarios() -> BTreeSet<String> {
    let all = headgate_scenarios::all().unwrap();
    all.iter().map(|s| s.name().to_owned()).collect()
}

/// Returns the missing paths of a cell such as "core `a.rs`, `b`, mesh `c.rs`". A name without an
/// extension, such as `b`, is a folder or a module.
fn missing_files(cell: &str) -> Vec<String> {
    let path = Regex::new(r"(\w+ )?`([^`]+)`").unwrap();
    let mut folder = None;
    let mut missing = Vec::new();
    for found in path.captures_iter(cell) {
        let word = found.get(1).map_or("", |word| word.as_str().trim());
        if let Some((_, named)) = FOLDERS.iter().find(|(name, _)| *name == word) {
            folder = Some(*named);
        }
        for path in expanded(&found[2]) {
            let path = match folder {
                Some(folder) if !path.starts_with("filter/") => format!("{folder}/{path}"),
                _ => path,
            };
            let at = repository().join(&path);
            if !at.exists() && !at.with_extension("rs").exists() {
                missing.push(path);
            }
        }
    }
    missing
}

/// Returns the tests and scenarios in a cell that don't exist.
fn missing_tests(
    cell: &str,
    functions: &BTreeSet<String>,
    scenarios: &BTreeSet<String>,
) -> Vec<String> {
    let name = Regex::new(r"(e2e )?`([^`]+)`").unwrap();
    // A name that begins with a hyphen has the same paper as the name before, as in `wisp-fig8` …
    // `-fig10`.
    let mut paper = "";
    let mut missing = Vec::new();
    for found in name.captures_iter(cell) {
        let text = found.get(2).map_or("", |text| text.as_str());
        let is_function = text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        let known = if text.contains(' ') || text.contains('/') {
            true
        } else if is_function && text.contains('_') {
            let kind = found.get(1).map_or("", |kind| kind.as_str());
            functions.contains(&format!("{kind}{text}"))
        } else if let Some(end) = text.strip_prefix('-') {
            scenarios.contains(&format!("{paper}-{end}"))
        } else {
            paper = text.split('-').next().unwrap_or_default();
            scenarios.contains(text)
        };
        if !known {
            missing.push(text.to_owned());
        }
    }
    missing
}

#[test]
fn files_tests_and_scenarios_of_the_papers_table_exist() {
    let (functions, scenarios) = (functions(), scenarios());
    let table = fs::read_to_string(repository().join(TABLE)).unwrap();
    let (mut head, mut wrong) = (Vec::new(), Vec::new());
    for (n, line) in table.lines().enumerate() {
        let Some(row) = line
            .strip_prefix("| ")
            .and_then(|row| row.strip_suffix(" |"))
        else {
            continue;
        };
        // In a Markdown table, a | in code is written as \|.
        let row = row.replace("\\|", "");
        let cells: Vec<&str> = row.split(" | ").collect();
        if ["mechanism", "figure"].contains(&cells[0]) {
            head = cells.iter().map(|cell| (*cell).to_owned()).collect();
            continue;
        }
        let at = |name: &str| {
            let at = head.iter().position(|head| head == name);
            at.and_then(|at| cells.get(at)).copied().unwrap_or_default()
        };
        let missing = missing_files(at("file")).into_iter();
        let missing = missing.chain(missing_tests(at("test"), &functions, &scenarios));
        let missing = missing.chain(missing_tests(at("scenario"), &functions, &scenarios));
        wrong.extend(missing.map(|what| format!("{TABLE}:{}: {what}", n + 1)));
        if cells.len() != head.len() {
            wrong.push(format!("{TABLE}:{}: {} cells", n + 1, cells.len()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn wrong_names_in_the_papers_table_are_found() {
    let cell = "core `queue.rs`, `stage/{sight,gone}.rs`, `classify`, mesh `gone.rs`";
    let missing = ["filter/core/src/stage/gone.rs", "filter/mesh/src/gone.rs"];
    assert_eq!(missing_files(cell), missing);
    let (functions, scenarios) = (functions(), scenarios());
    let cell = "`equation_3_by_hand`, e2e `equation_3_by_hand`, `gone_from_here`, `wisp-fig7`, \
                `-fig8`, `-fig1`, `scripts/bench decision`";
    let missing = missing_tests(cell, &functions, &scenarios);
    assert_eq!(missing, ["equation_3_by_hand", "gone_from_here", "-fig1"]);
}
