//! The documentation: its reference pages, which are generated from the code and the chart, and
//! checks of all Markdown files.
//!
//! A handwritten page becomes wrong within months, and no compiler reports that. So the facts that
//! the code defines are generated ([`reference`]). Tests check
//! - the targets of links ([`links`]),
//! - that pictures are legible ([`pictures`]),
//! - that pages stay short (`length`),
//! - that the files and tests in the table of papers exist (`papers`),
//! - that the page of headers matches the sources (`headers`),
//! - that pages list all strategies and reasons (`lists`),
//! - that the program accepts the commands and policies in pages ([`examples`]),
//! - that commands run ([`commands`], with the tests `pages` of the programs `k8s`, `node` and
//!   `planes`),
//! - that the tests that SECURITY.md names exist (`security`).

pub mod checkout;
pub mod commands;
#[cfg(test)]
mod examples;
#[cfg(test)]
mod headers;
#[cfg(test)]
mod length;
#[cfg(test)]
mod links;
#[cfg(test)]
mod lists;
#[cfg(test)]
mod papers;
#[cfg(test)]
mod pictures;
pub mod reference;
#[cfg(test)]
mod security;
mod stats;
pub mod walk;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::kube::programs::repository;

/// Returns the folder of the sources of the book's pages.
pub fn folder() -> PathBuf {
    repository().join("docs/src")
}

/// Returns the Markdown files of the repository, in order.
///
/// # Errors
/// If a folder can't be read.
pub fn markdown() -> Result<Vec<PathBuf>> {
    files("md")
}

/// Returns the files of the repository with this extension, in order.
fn files(extension: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    collect(&repository(), extension, &mut found)?;
    found.sort();
    Ok(found)
}

/// Returns the path of a file relative to the repository, for messages.
fn shown(file: &Path) -> String {
    let file = file.strip_prefix(repository()).unwrap_or(file);
    file.display().to_string()
}

/// Returns the texts that a text with alternatives in braces means. `a/{b,c}.rs` means `a/b.rs` and
/// `a/c.rs`.
fn expanded(text: &str) -> Vec<String> {
    let parts = text
        .split_once('{')
        .and_then(|(before, rest)| Some((before, rest.split_once('}')?)));
    match parts {
        Some((before, (choices, after))) => choices
            .split(',')
            .flat_map(|choice| expanded(&format!("{before}{choice}{after}")))
            .collect(),
        None => vec![text.to_owned()],
    }
}

fn collect(folder: &Path, extension: &str, found: &mut Vec<PathBuf>) -> Result<()> {
    let listed = std::fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    for entry in listed {
        let path = entry?.path();
        let name = path.file_name().and_then(|n| n.to_str());
        let name = name.unwrap_or_default();
        if path.is_dir() {
            if !name.starts_with('.') && !["target", "dist", "node_modules"].contains(&name) {
                collect(&path, extension, found)?;
            }
        } else if path.extension().is_some_and(|e| e == extension) {
            found.push(path);
        }
    }
    Ok(())
}

/// A block of code in a Markdown file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// The number of the line with the opening fence.
    pub line: usize,
    /// The language that the opening fence names.
    pub language: String,
    /// The lines between the fences.
    pub text: String,
}

/// Returns the blocks of code of a Markdown text, and the text without them.
pub fn blocks(markdown: &str) -> (Vec<Block>, String) {
    let (mut blocks, mut rest) = (Vec::new(), String::new());
    let mut open: Option<Block> = None;
    // The indentation of the opening fence, because a block in a list is indented as a whole.
    let mut indent = "";
    for (number, line) in markdown.lines().enumerate() {
        let fence = line.trim_start().strip_prefix("```");
        match (fence, open.take()) {
            (Some(_), Some(block)) => blocks.push(block),
            (Some(language), None) => {
                indent = &line[..line.len() - line.trim_start().len()];
                open = Some(Block {
                    line: number + 1,
                    language: language.trim().to_owned(),
                    text: String::new(),
                });
            }
            (None, Some(mut block)) => {
                block
                    .text
                    .push_str(line.strip_prefix(indent).unwrap_or(line));
                block.text.push('\n');
                open = Some(block);
            }
            (None, None) => {
                rest.push_str(line);
                rest.push('\n');
            }
        }
    }
    (blocks, rest)
}
