//! Checks of examples in pages: the program accepts the command lines and the policies.

use std::process;

use clap::Parser as _;
use headgate::Cli;
use headgate_api::validate::{FileReport, check_file};
use serde_json::Value;

use super::commands::{Command, Page, pages};
use super::{Block, blocks};
use crate::kube::programs::repository;

/// Returns the arguments of each `headgate` in a command, without redirections and pipes.
fn arguments(command: &Command) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for part in command.text.split('|').map(str::trim) {
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
        found.push(
            std::iter::once("headgate".to_owned())
                .chain(words)
                .collect(),
        );
    }
    found
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

/// Returns the policy in a block. If the block has only a part of a `spec`, the policy is
/// completed.
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
    for Page { path, blocks } in pages().unwrap() {
        for block in blocks {
            for command in block.commands() {
                for mut arguments in arguments(&command) {
                    seen.0 += 1;
                    if arguments[1] == "inject" && !arguments.iter().any(|word| word == "--image") {
                        // A release contains the name of its image, but this build doesn't.
                        arguments.push("--image=release".to_owned());
                    }
                    if let Err(error) = Cli::try_parse_from(&arguments)
                        && error.use_stderr()
                    {
                        wrong.push(format!("{path}:{}: {error}", command.line));
                    }
                }
            }
            if let Some(text) = policy(&block) {
                seen.1 += 1;
                let report: FileReport = check_file(&path, text.as_bytes());
                wrong.extend(report.all_problems().map(|p| format!("{p}\n{text}")));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(seen.0 > 50 && seen.1 > 5, "{seen:?}");
}

#[test]
fn arguments_end_at_a_pipe_a_redirection_or_a_comment() {
    let text = "```sh\nkubectl headgate top -n 'a b' -o json > x   # why\n\
                headgate crd | kubectl apply -f -\n```\n";
    let commands = blocks(text)
        .0
        .iter()
        .flat_map(Block::commands)
        .collect::<Vec<_>>();
    let found: Vec<Vec<String>> = commands.iter().flat_map(arguments).collect();
    let top = ["headgate", "top", "-n", "a b", "-o", "json"];
    assert_eq!(found, [&top[..], &["headgate", "crd"][..]]);
}

/// Returns the value of an option of a command.
fn named<'a>(words: &'a [String], option: &str) -> Option<&'a str> {
    let at = words.iter().position(|word| word == option)?;
    words.get(at + 1).map(String::as_str)
}

#[test]
fn cargo_has_the_programs_that_pages_run() {
    let mut cargo = process::Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    cargo
        .args(["metadata", "--no-deps", "--offline", "--format-version=1"])
        .current_dir(repository());
    let metadata: Value = serde_json::from_slice(&cargo.output().unwrap().stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let (mut wrong, mut seen) = (Vec::new(), 0);
    for Page { path, blocks } in pages().unwrap() {
        for command in blocks.iter().flat_map(Block::commands) {
            let words = words(&command.text);
            if words[0] != "cargo" {
                continue;
            }
            seen += 1;
            let package = named(&words, "-p");
            let package = packages.iter().find(|p| p["name"].as_str() == package);
            let has = |kind: &str, name: &str| {
                let targets = package.and_then(|p| p["targets"].as_array());
                let mut targets = targets.into_iter().flatten();
                targets.any(|t| t["name"] == name && t["kind"][0] == kind)
            };
            let is_right =
                |kind: &str| named(&words, &format!("--{kind}")).is_none_or(|name| has(kind, name));
            if package.is_none() || !["bin", "test"].into_iter().all(is_right) {
                wrong.push(format!("{path}:{}: {}", command.line, command.text));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "not in the workspace:\n{}",
        wrong.join("\n")
    );
    assert!(seen > 3, "{seen}");
}
