//! Checks that handwritten lists of strategies and of refusal reasons in pages are complete.

use std::fs;

use headgate_strategies::reason::Reason;

use super::folder;

/// Asserts that a page has each of `names` in code font.
fn has_all(page: &str, names: &[String]) {
    let text = fs::read_to_string(folder().join(page)).unwrap();
    let is_missing = |name: &&String| !text.contains(&format!("`{name}`"));
    let missing: Vec<&String> = names.iter().filter(is_missing).collect();
    assert!(missing.is_empty(), "docs/src/{page} lacks {missing:?}");
}

#[test]
fn the_page_about_refusals_has_each_reason() {
    let reasons: Vec<String> = Reason::FIXED.iter().map(ToString::to_string).collect();
    has_all("tasks/refusal.md", &reasons);
}

#[test]
fn the_pages_about_strategies_have_each_strategy() {
    let error = serde_json::from_str::<headgate_api::StrategyType>("\"\"").unwrap_err();
    let error = error.to_string();
    // The error has the form: unknown variant ``, expected one of `Bouncer`, …
    let names = error.split('`').skip(3).step_by(2);
    let strategies: Vec<String> = names.map(str::to_owned).collect();
    for page in ["tasks/strategies.md", "concepts/strategies.md"] {
        has_all(page, &strategies);
    }
}
