//! Checks that each statement in SECURITY.md names tests, and that these tests exist.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use regex_lite::Regex;

use crate::kube::programs::repository;

/// The folders with tests.
const FOLDERS: [&str; 3] = ["filter", "operator", "tests"];

/// Adds the names of the tests in the Rust files of `folder`.
fn tests_in(folder: &Path, attribute: &Regex, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            tests_in(&path, attribute, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            found.extend(attribute.captures_iter(&text).map(|c| c[1].to_owned()));
        }
    }
}

#[test]
fn the_tests_that_security_names_exist() {
    // Other attributes and comments may be between `#[test]` and the function.
    let test = r"#\[(?:tokio::)?test[^\n]*\n(?:\s*(?:#\[|//)[^\n]*\n)*\s*(?:async )?fn (\w+)";
    let test = Regex::new(test).unwrap();
    let mut tests = BTreeSet::new();
    for folder in FOLDERS {
        tests_in(&repository().join(folder), &test, &mut tests);
    }
    let text = fs::read_to_string(repository().join("SECURITY.md")).unwrap();
    let name = Regex::new(r"`([a-z0-9]+(?:_[a-z0-9]+){2,})`").unwrap();
    let missing = { name.captures_iter(&text) }.map(|c| c[1].to_owned());
    let missing: Vec<String> = missing.filter(|name| !tests.contains(name)).collect();
    assert!(missing.is_empty(), "no such tests: {missing:?}");
    // A row must name tests if it forbids something, and only then.
    for row in text.lines().filter(|line| line.starts_with("| ")).skip(1) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [who, _, may_not, proof] = cells[..] else {
            panic!("{} cells: {row}", cells.len());
        };
        assert_eq!(may_not.is_empty(), !name.is_match(proof), "{who}");
    }
}
