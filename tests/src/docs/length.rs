//! Checks that pages which users read as a whole stay short: the README, and the page of each
//! concept, which has at most half a page of text.

use std::fs;

use super::folder;
use crate::kube::programs::repository;

/// The largest number of words in the README.
const README: usize = 1200;
/// The largest number of words in the page of a concept.
const CONCEPT: usize = 350;

/// The parts of the page of a concept, in their order.
const PARTS: [&str; 5] = [
    "**The problem.**",
    "**The obvious alternative",
    "**What Headgate does.**",
    "**Trade-offs.**",
    "**Watch**",
];

fn words(text: &str) -> usize {
    text.split_whitespace().count()
}

#[test]
fn the_readme_has_at_most_1200_words() {
    let text = fs::read_to_string(repository().join("README.md")).unwrap();
    assert!(words(&text) <= README, "{}", words(&text));
}

#[test]
fn a_concept_has_half_a_page_with_all_parts() {
    let mut wrong = Vec::new();
    for entry in fs::read_dir(folder().join("concepts")).unwrap() {
        let path = entry.unwrap().path();
        let text = fs::read_to_string(&path).unwrap();
        let at: Vec<Option<usize>> = PARTS.iter().map(|part| text.find(part)).collect();
        if words(&text) > CONCEPT || at.contains(&None) || !at.is_sorted() {
            wrong.push(format!(
                "{}: {} words, {at:?}",
                path.display(),
                words(&text)
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
