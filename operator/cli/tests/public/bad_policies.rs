//! The policies of `tests/bad-policies`. Some are in a table, and the others are files.
//!
//! Tests of `validate` and of the API server use the same policies.

// Helpers of tests fail a test by panicking, as tests do.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// The start of a document's first line, before the message.
const EXPECT: &str = "# expect: ";

/// A policy with a mistake.
pub(crate) struct BadPolicy {
    /// The message of `headgate validate`, which begins with the line number.
    pub(crate) message: String,
    /// The content, which begins with a line that contains the message.
    pub(crate) document: Vec<u8>,
}

/// Returns all bad policies, by name.
pub(crate) fn bad_policies() -> BTreeMap<String, BadPolicy> {
    // Two crates at different depths include this file.
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .map(|folder| folder.join("tests/bad-policies"))
        .find(|folder| folder.is_dir())
        .unwrap();
    let mut all = of_table(&fs::read_to_string(folder.join("table.txt")).unwrap());
    for entry in fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "yaml") {
            continue;
        }
        let document = fs::read(&path).unwrap();
        let first = document.split(|b| *b == b'\n').next().unwrap();
        let first = std::str::from_utf8(first).unwrap();
        let message = first.strip_prefix(EXPECT).expect("a message");
        let message = message.to_owned();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let other = all.insert(name.clone(), BadPolicy { message, document });
        assert!(other.is_none(), "{name} is in the table and a file");
    }
    all
}

fn of_table(table: &str) -> BTreeMap<String, BadPolicy> {
    let mut cases = table.split("\n== ").skip(1);
    let (_, base) = cases.next().unwrap().split_once('\n').unwrap();
    let base: Vec<&str> = base.lines().collect();
    let mut all = BTreeMap::new();
    for case in cases {
        let (head, script) = case.split_once('\n').expect("edits");
        let (name, message) = head.split_once(' ').expect("a message");
        let lines = edited(&base, script).join("\n");
        let policy = BadPolicy {
            message: message.to_owned(),
            document: format!("{EXPECT}{message}\n{lines}\n").into_bytes(),
        };
        let other = all.insert(name.to_owned(), policy);
        assert!(other.is_none(), "{name} is twice in the table");
    }
    all
}

/// Returns the lines of `base` after the edits of `script`. The script has commands `Na`, `N,Md` or
/// `N,Mc`, as in scripts for ed, and the new lines.
fn edited<'a>(base: &[&'a str], script: &'a str) -> Vec<&'a str> {
    let mut lines = base.to_vec();
    let mut at = None;
    for line in script.lines() {
        if let Some((first, last, action)) = command(line) {
            let start = if action == 'a' { last } else { first - 1 };
            lines.splice(start..last, []);
            at = (action != 'd').then_some(start);
        } else {
            let at = at.as_mut().expect("an edit that takes lines");
            lines.insert(*at, line);
            *at += 1;
        }
    }
    lines
}

fn command(line: &str) -> Option<(usize, usize, char)> {
    let action = line.chars().last().filter(|c| "acd".contains(*c))?;
    let lines = line.strip_suffix(action)?;
    let (first, last) = lines.split_once(',').unwrap_or((lines, lines));
    Some((first.parse().ok()?, last.parse().ok()?, action))
}
