//! An explanation as text for a terminal.

use std::fmt::Write as _;

use super::{Explanation, Part, Rule};

/// Column of the values.
const INDENT: usize = 13;
/// Longest line.
const WIDTH: usize = 100;

pub(super) fn text(explanation: &Explanation) -> String {
    let objectives = match explanation.objectives.as_slice() {
        [] => "none".to_owned(),
        some => some.join(", "),
    };
    let mut text = String::new();
    match &explanation.kind {
        Some(kind) => {
            line(&mut text, "type", kind);
            line(&mut text, "matched", &explanation.matched);
            line(&mut text, "objectives", &objectives);
        }
        None => {
            line(&mut text, "type", "none: the request bypasses admission");
            line(&mut text, "matched", &explanation.matched);
        }
    }
    if let Some(class) = &explanation.class {
        line(&mut text, "class", &class.matched);
        bullet(&mut text, class.matters);
        for sentence in &class.admission {
            bullet(&mut text, sentence);
        }
    }
    let policy = format!("{} ({})", explanation.policy, explanation.file);
    line(&mut text, "policy", &policy);
    line(&mut text, "workload", &explanation.workload.to_string());
    line(&mut text, "mode", &explanation.mode);
    line(
        &mut text,
        "parallelism",
        &explanation.parallelism.to_string(),
    );
    if let Some(measure) = explanation.measure {
        line(&mut text, "measure", measure);
    }
    if let Some(errors) = &explanation.errors {
        line(&mut text, "errors", errors);
    }
    if let Some(retries) = &explanation.retries {
        line(&mut text, "retries", retries);
    }
    if let Some(workflow) = &explanation.workflow {
        line(&mut text, "workflow", &workflow.name);
        workflow
            .sentences()
            .for_each(|sentence| bullet(&mut text, sentence));
    }
    part(&mut text, "strategy", &explanation.strategy);
    if let Some(avoidance) = &explanation.starvation_avoidance {
        part(&mut text, "starvation", avoidance);
    }
    part(&mut text, "queue", &explanation.queue);
    if let Some(calls) = &explanation.calls {
        part(&mut text, "calls", calls);
    }
    let order = "Rules are tried in this order, exclusions first; the first match wins:";
    rules(&mut text, order, &explanation.tried);
    if !explanation.tried_for_class.is_empty() {
        rules(
            &mut text,
            "The same for classes:",
            &explanation.tried_for_class,
        );
    }
    text
}

fn line(text: &mut String, label: &str, value: &str) {
    // Writing to a String does not fail, here and below.
    let _ = writeln!(text, "{label:<INDENT$}{value}");
}

fn part(text: &mut String, label: &str, part: &Part) {
    line(text, label, &part.name);
    for sentence in &part.does {
        bullet(text, sentence);
    }
}

/// Writes a sentence, wrapped.
fn bullet(text: &mut String, sentence: &str) {
    let mut row = "-".to_owned();
    for word in sentence.split(' ') {
        if INDENT + row.chars().count() + 1 + word.chars().count() > WIDTH {
            line(text, "", &row);
            row = " ".to_owned();
        }
        row.push(' ');
        row.push_str(word);
    }
    line(text, "", &row);
}

fn rules(text: &mut String, title: &str, rules: &[Rule]) {
    let _ = writeln!(text, "\n{title}");
    let widths = rules.iter().map(|r| r.rule.chars().count());
    let widest = widths.max().unwrap_or(0);
    for Rule {
        rule,
        condition,
        matches,
        because,
    } in rules
    {
        let answer = if *matches { "yes" } else { "no " };
        let because = because.as_ref().map(|b| format!(" ({b})"));
        let because = because.unwrap_or_default();
        let _ = writeln!(text, "  {answer} {rule:<widest$} {condition}{because}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_sentences_are_wrapped_and_lose_nothing() {
        let sentence = "some words ".repeat(40) + &"x".repeat(200);
        let mut text = String::new();
        bullet(&mut text, &sentence);
        let lines: Vec<&str> = text.lines().collect();
        let (last, others) = lines.split_last().unwrap();
        assert!(others.iter().all(|l| l.len() <= WIDTH), "{text}");
        assert!(last.ends_with(&"x".repeat(200)));
        let words: Vec<&str> = text.split_whitespace().skip(1).collect();
        assert_eq!(words, sentence.split(' ').collect::<Vec<_>>());
    }
}
