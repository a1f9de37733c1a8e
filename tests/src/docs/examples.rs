//! Examples in pages: command lines that the program accepts, and policies that it accepts.

use std::fs;

use clap::Parser as _;
use headgate::Cli;
use headgate_api::validate::{FileReport, check_file};

use super::{Block, blocks, markdown, shown};

/// The arguments of each `headgate` command in a block of shell, without its redirections and
/// pipes.
fn commands(block: &Block) -> Vec<Vec<String>> {
    if !["sh", "console", "bash"].contains(&block.language.as_str()) {
        return Vec::new();
    }
    let joined = block.text.replace("\\\n", " ");
    let mut commands = Vec::new();
    for line in joined.lines() {
        for part in line.split('|').map(str::trim) {
            let part = part.strip_prefix("$ ").unwrap_or(part);
            let part = part.strip_prefix("kubectl ").unwrap_or(part);
            let part = part.strip_prefix("dist/").unwrap_or(part);
            let Some(rest) = part.strip_prefix("headgate ") else {
                continue;
            };
            let end = [" #", " >", " &", " 2>"]
                .iter()
                .filter_map(|e| rest.find(e))
                .min();
            let rest = &rest[..end.unwrap_or(rest.len())];
            let words = words(rest);
            commands.push(
                std::iter::once("headgate".to_owned())
                    .chain(words)
                    .collect(),
            );
        }
    }
    commands
}

/// Splits a command line at blanks outside of quotes.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut quote) = (vec![String::new()], None);
    for c in line.chars() {
        match (c, quote) {
            ('\'' | '"', None) => quote = Some(c),
            (c, Some(q)) if c == q => quote = None,
            (' ', None) => words.push(String::new()),
            _ => words.last_mut().unwrap().push(c),
        }
    }
    words.retain(|w| !w.is_empty());
    words
}

/// A policy, or the part of its `spec` that a page shows, as a whole policy.
fn policy(block: &Block) -> Option<String> {
    const HEAD: &str =
        "apiVersion: headgate.dev/v1alpha1\nkind: AdmissionPolicy\nmetadata: {name: a}\n";
    if block.language != "yaml" {
        return None;
    }
    if block.text.contains("kind: AdmissionPolicy") {
        return Some(block.text.clone());
    }
    let mut text = format!(
        "{HEAD}{}",
        block.text.strip_prefix("spec:").map(|_| &block.text)?
    );
    if !text.contains("\n  targetRefs:") {
        text.push_str("  targetRefs: [{kind: Service, name: a}]\n");
    }
    if !text.contains("\n  types:") {
        text.push_str("  types: [{name: default, slo: {p50: 50ms, p90: 150ms}}]\n");
    }
    Some(text)
}

#[test]
fn commands_and_policies_in_pages_are_right() {
    let (mut wrong, mut seen) = (Vec::new(), (0, 0));
    for file in markdown().unwrap() {
        let shown = shown(&file);
        for block in blocks(&fs::read_to_string(&file).unwrap()).0 {
            for command in commands(&block) {
                seen.0 += 1;
                let mut command = command;
                if command[1] == "inject" && !command.iter().any(|word| word == "--image") {
                    // A release knows its own image; this build does not.
                    command.push("--image=release".to_owned());
                }
                if let Err(error) = Cli::try_parse_from(&command)
                    && error.use_stderr()
                {
                    wrong.push(format!("{shown}: {}: {error}", command.join(" ")));
                }
            }
            if let Some(text) = policy(&block) {
                seen.1 += 1;
                let report: FileReport = check_file(&shown, text.as_bytes());
                wrong.extend(report.all_problems().map(|p| format!("{p}\n{text}")));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(seen.0 > 50 && seen.1 > 5, "{seen:?}");
}

#[test]
fn commands_are_found_in_shell_only() {
    let text = "```sh\n$ kubectl headgate top -n 'a b' \\\n  -o json > x   # why\n\
                headgate crd | kubectl apply -f -\n```\n```text\nheadgate x\n```\n";
    let found: Vec<Vec<String>> = blocks(text).0.iter().flat_map(commands).collect();
    let top = ["headgate", "top", "-n", "a b", "-o", "json"];
    assert_eq!(found, [&top[..], &["headgate", "crd"][..]]);
}
