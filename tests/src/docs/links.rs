//! Checks the links between Markdown files: each link must lead to an existing file and, if it
//! names a heading, to a heading of this file.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use regex_lite::Regex;

use super::{blocks, folder, markdown, shown};
use crate::kube::programs::repository;

/// Returns the anchors of a page's headings, as GitHub and mdBook make them.
fn anchors(markdown: &str) -> BTreeSet<String> {
    let (_, prose) = blocks(markdown);
    let mut anchors = BTreeSet::new();
    let mut seen: BTreeMap<String, u32> = BTreeMap::new();
    let headings = prose
        .lines()
        .filter_map(|l| l.strip_prefix('#'))
        .filter_map(|l| l.trim_start_matches('#').strip_prefix(' '));
    for heading in headings {
        let text = Regex::new(r"\[([^\]]*)\]\([^)]*\)")
            .unwrap()
            .replace_all(heading, "$1");
        let anchor: String = text
            .trim()
            .chars()
            .filter_map(|c| match c {
                ' ' => Some('-'),
                c if c.is_alphanumeric() || c == '_' || c == '-' => Some(c.to_ascii_lowercase()),
                _ => None,
            })
            .collect();
        let times = seen.entry(anchor.clone()).or_default();
        anchors.insert(match *times {
            0 => anchor,
            n => format!("{anchor}-{n}"),
        });
        *times += 1;
    }
    anchors
}

/// Returns the targets of the links and pictures in a Markdown text, without those in code.
fn targets(markdown: &str) -> Vec<String> {
    let (_, prose) = blocks(markdown);
    let prose = Regex::new("`[^`\n]*`").unwrap().replace_all(&prose, "``");
    let link = Regex::new(r"\]\(([^()\s]+)(?: [^()]*)?\)").unwrap();
    link.captures_iter(&prose)
        .map(|c| c[1].to_owned())
        .collect()
}

/// Returns the problem of a link of `file`, or `None` if its target exists.
fn problem(file: &Path, target: &str, text_of: &dyn Fn(&Path) -> Option<String>) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    let to = match path {
        "" => file.to_path_buf(),
        path => file.parent()?.join(path),
    };
    if !to.exists() {
        return Some(format!("{path}: no such file"));
    }
    if anchor.is_empty() || to.extension().is_none_or(|e| e != "md") {
        return None;
    }
    let headings = anchors(&text_of(&to)?);
    (!headings.contains(anchor)).then(|| format!("{target}: no such heading"))
}

#[test]
fn every_link_leads_somewhere() {
    let text_of = |path: &Path| fs::read_to_string(path).ok();
    let mut wrong = Vec::new();
    for file in markdown().unwrap() {
        let shown = shown(&file);
        for target in targets(&text_of(&file).unwrap()) {
            wrong.extend(problem(&file, &target, &text_of).map(|p| format!("{shown}: {p}")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_summary_has_every_page_once() {
    let summary = folder().join("SUMMARY.md");
    let mut listed = targets(&fs::read_to_string(&summary).unwrap());
    listed.sort();
    let pages = markdown().unwrap().into_iter();
    let pages = pages.filter_map(|p| p.strip_prefix(folder()).map(Path::to_path_buf).ok());
    let pages: Vec<PathBuf> = pages.filter(|p| p != Path::new("SUMMARY.md")).collect();
    let listed: Vec<PathBuf> = listed.iter().map(PathBuf::from).collect();
    assert_eq!(listed, pages);
}

#[test]
fn anchors_are_those_of_github() {
    let text =
        "# `a.b[]`: One, two\n```sh\n# no heading\n```\n## Again\n## Again\n## [A](b.md) c\n";
    let found: Vec<String> = anchors(text).into_iter().collect();
    assert_eq!(found, ["a-c", "ab-one-two", "again", "again-1"]);
}

#[test]
fn a_broken_link_is_found() {
    let file = repository().join("README.md");
    let heading = |_: &Path| Some("# There\n".to_owned());
    let all = targets("[a](LICENSE) ![b](none.svg) `[c](d)` [e](#there) [f](#gone) [g](x://y)\n");
    let wrong: Vec<String> = all
        .iter()
        .filter_map(|t| problem(&file, t, &heading))
        .collect();
    assert_eq!(wrong, ["none.svg: no such file", "#gone: no such heading"]);
}
