//! An explanation as text for a terminal.

use serde_json::Value;

use super::{Explanation, Rule};

/// The longest line, in characters.
const WIDTH: usize = 100;

pub(super) fn text(explanation: &Explanation) -> String {
    let mut text = String::new();
    let mut line = |label: &str, value: &str| text += &format!("{label:<13}{value}\n");
    match &explanation.kind {
        Some(kind) => line("type", kind),
        None => line("type", "none: the request bypasses admission"),
    }
    line("matched", &explanation.matched);
    match explanation.objectives.as_slice() {
        [] if explanation.kind.is_none() => {}
        [] => line("objectives", "none"),
        some => line("objectives", &some.join(", ")),
    }
    if let Some(class) = &explanation.class {
        line("class", &class.matched);
    }
    if let Some(workflow) = &explanation.workflow {
        line(
            "workflow",
            &format!("{} ({})", workflow.name, workflow.found_by),
        );
    }
    line(
        "policy",
        &format!("{} ({})", explanation.policy, explanation.file),
    );
    line("workload", &explanation.workload);
    let order = "Rules are tried in this order, exclusions first; the first match wins:";
    rules(&mut text, order, &explanation.tried);
    rules(
        &mut text,
        "The same for classes:",
        &explanation.tried_for_class,
    );
    if !explanation.computed.is_empty() {
        text.push_str("\nComputed for this request:\n");
    }
    for value in &explanation.computed {
        wrapped(&mut text, "  ", value);
    }
    if !explanation.settings.is_empty() {
        text.push_str("\nSettings:\n");
    }
    for setting in &explanation.settings {
        let value = match &setting.value {
            Value::Null => String::new(),
            Value::String(value) => format!(" = {value}"),
            other => format!(" = {other}"),
        };
        text += &format!("  {}{value}\n", setting.field);
        wrapped(&mut text, "      ", &setting.description);
    }
    text
}

/// Appends a sentence to `text`, wrapped and indented.
fn wrapped(text: &mut String, indent: &str, sentence: &str) {
    let mut row = indent.to_owned();
    for word in sentence.split(' ') {
        if row.len() > indent.len() && row.chars().count() + word.chars().count() > WIDTH {
            *text += &format!("{}\n", row.trim_end());
            row = indent.to_owned();
        }
        row += word;
        row.push(' ');
    }
    *text += &format!("{}\n", row.trim_end());
}

fn rules(text: &mut String, title: &str, rules: &[Rule]) {
    if !rules.is_empty() {
        *text += &format!("\n{title}\n");
    }
    let widths = rules.iter().map(|r| r.rule.chars().count());
    let widest = widths.max().unwrap_or(0);
    for rule in rules {
        let answer = if rule.matches { "yes" } else { "no " };
        let because = rule.because.as_ref().map(|b| format!(" ({b})"));
        let because = because.unwrap_or_default();
        let (rule, condition) = (&rule.rule, &rule.condition);
        *text += &format!(
            "  {answer} {rule:<widest$} {condition}{because}
"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_sentences_are_wrapped_and_lose_nothing() {
        let sentence = "some words ".repeat(40) + &"x".repeat(200);
        let mut text = String::new();
        wrapped(&mut text, "  ", &sentence);
        let lines: Vec<&str> = text.lines().collect();
        let (last, others) = lines.split_last().unwrap();
        assert!(others.iter().all(|l| l.len() <= WIDTH), "{text}");
        assert!(last.ends_with(&"x".repeat(200)));
        let words: Vec<&str> = text.split_whitespace().collect();
        assert_eq!(words, sentence.split(' ').collect::<Vec<_>>());
    }
}
