//! A view as rows and columns, in the order and with the filter that somebody chose. The terminal and the printed
//! tables show the same.

mod proxies;
mod types;
mod workflows;

use std::cmp::Reverse;

use clap::ValueEnum;

use super::format::{UNKNOWN, count, percent, rate};
use super::view::{PolicyRow, View};

/// What is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Tab {
    /// Policies and their types
    #[default]
    Types,
    /// Policies and their workflows
    Workflows,
    /// Proxies
    Proxies,
}

/// What comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Order {
    /// Most requests refused, or late beyond what objectives allow
    #[default]
    Hurt,
    /// Most requests
    Rate,
    /// Largest share refused
    Refused,
    /// Longest wait, 99th percentile
    Wait,
    /// By name
    Name,
}

/// How a cell is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Tone {
    /// As any other.
    #[default]
    Plain,
    /// Nothing to see.
    Faint,
    /// A heading.
    Strong,
    /// As it should be.
    Good,
    /// Worth a look.
    Warning,
    /// Not as it should be.
    Bad,
}

/// A cell.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Cell {
    /// One line.
    pub text: String,
    /// How it is meant.
    pub tone: Tone,
}

/// A column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Column {
    /// Its head.
    pub head: &'static str,
    /// Whether it holds numbers, which end at the same place.
    pub right: bool,
    /// Columns with the highest number go first where there is no room; 0 never goes.
    pub dispensable: u8,
}

/// A row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// A cell for each column.
    pub cells: Vec<Cell>,
    /// Whether rows below belong to it.
    pub group: bool,
    /// What it is about: `policy`, `policy type`, or a proxy's place.
    pub key: String,
}

/// Rows and columns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grid {
    /// Its columns.
    pub columns: Vec<Column>,
    /// Its rows.
    pub rows: Vec<Row>,
}

/// Which rows, in which order.
#[derive(Debug, Clone, Default)]
pub struct Choice {
    /// What is shown.
    pub tab: Tab,
    /// What comes first.
    pub order: Order,
    /// Last comes first.
    pub reversed: bool,
    /// Part of names, in any case; empty for all.
    pub filter: String,
}

const fn left(head: &'static str, dispensable: u8) -> Column {
    Column {
        head,
        right: false,
        dispensable,
    }
}

const fn right(head: &'static str, dispensable: u8) -> Column {
    Column {
        head,
        right: true,
        dispensable,
    }
}

impl Grid {
    /// The rows of `view` that `choice` asks for.
    #[must_use]
    pub fn new(view: &View, choice: &Choice) -> Self {
        match choice.tab {
            Tab::Types => grouped(view, choice, types::COLUMNS, types::rows),
            Tab::Workflows => grouped(view, choice, workflows::COLUMNS, workflows::rows),
            Tab::Proxies => proxies::rows(view, choice),
        }
    }
}

/// What rows are ordered by.
struct Rank {
    hurt: f64,
    rate: f64,
    refused: f64,
    wait: f64,
    name: String,
}

/// A row and what it is ordered by.
struct Ranked {
    rank: Rank,
    cells: Vec<Cell>,
}

/// A row, and those below that belong to it.
type Group = (Ranked, Vec<Ranked>);

impl Choice {
    fn sort<T>(&self, rows: &mut [T], rank: impl Fn(&T) -> &Rank) {
        rows.sort_by(|a, b| {
            let (a, b) = (rank(a), rank(b));
            let by = |key: fn(&Rank) -> f64| key(b).total_cmp(&key(a));
            let order = match self.order {
                Order::Hurt => by(|r| r.hurt),
                Order::Rate => by(|r| r.rate),
                Order::Refused => by(|r| r.refused),
                Order::Wait => by(|r| r.wait),
                Order::Name => std::cmp::Ordering::Equal,
            };
            order.then_with(|| a.name.cmp(&b.name))
        });
        if self.reversed {
            rows.reverse();
        }
    }

    fn wants(&self, name: &str) -> bool {
        name.to_lowercase().contains(&self.filter.to_lowercase())
    }
}

/// Policies with what they consist of. A policy whose name matches the filter is shown whole.
fn grouped(
    view: &View,
    choice: &Choice,
    columns: &[Column],
    rows: fn(&PolicyRow) -> Option<Group>,
) -> Grid {
    let mut groups: Vec<Group> = view.policies.iter().filter_map(rows).collect();
    groups.retain_mut(|(policy, members)| {
        let whole = choice.wants(&policy.rank.name);
        members.retain(|m| whole || choice.wants(&m.rank.name));
        whole || !members.is_empty()
    });
    choice.sort(&mut groups, |(policy, _)| &policy.rank);
    let mut all = Vec::new();
    for (policy, mut members) in groups {
        choice.sort(&mut members, |m| &m.rank);
        let name = policy.rank.name;
        all.push(Row {
            cells: policy.cells,
            group: true,
            key: name.clone(),
        });
        all.extend(members.into_iter().map(|m| Row {
            cells: m.cells,
            group: false,
            key: format!("{name} {}", m.rank.name),
        }));
    }
    Grid {
        columns: columns.to_vec(),
        rows: all,
    }
}

fn plain(text: impl Into<String>) -> Cell {
    toned(text, Tone::Plain)
}

fn toned(text: impl Into<String>, tone: Tone) -> Cell {
    let text: String = text.into();
    match text == UNKNOWN {
        true => Cell {
            text,
            tone: Tone::Faint,
        },
        false => Cell { text, tone },
    }
}

/// Something that had better be zero.
fn unwanted(value: Option<f64>, whole: Option<f64>) -> [Cell; 2] {
    let tone = match value {
        None | Some(0.0) => Tone::Faint,
        Some(v) if v > 0.2 * whole.unwrap_or(0.0) => Tone::Bad,
        Some(_) => Tone::Warning,
    };
    [toned(rate(value), tone), toned(percent(value, whole), tone)]
}

/// `reasons` of what is rejected, which a dry run doesn't refuse.
fn rejected_for(reasons: String, refused: Option<f64>, would_refuse: Option<f64>) -> Cell {
    let only_counted = would_refuse.is_some_and(|v| v > 0.0) && refused == Some(0.0);
    plain(if only_counted {
        format!("(dry run) {reasons}")
    } else {
        reasons
    })
}

fn refused_share(refused: Option<f64>, all: Option<f64>) -> f64 {
    match (refused, all) {
        (Some(refused), Some(all)) if all > 0.0 => refused / all,
        _ => 0.0,
    }
}

fn slots(in_use: Option<u64>, slots: Option<u64>) -> Cell {
    let tone = match (in_use, slots) {
        (Some(used), Some(all)) if all > 0 && used >= all => Tone::Warning,
        _ => Tone::Plain,
    };
    toned(format!("{}/{}", count(in_use), count(slots)), tone)
}

fn group_name(policy: &PolicyRow) -> Cell {
    match policy.proxies {
        1 => toned(policy.policy.clone(), Tone::Strong),
        many => toned(format!("{} ({many} proxies)", policy.policy), Tone::Strong),
    }
}

impl Grid {
    /// Which columns fit into `width`, with `gap` between them, and how wide each is. Where even those that never go are
    /// too wide, they are cut at the right.
    #[must_use]
    pub fn fit(&self, width: usize, gap: usize) -> Vec<(usize, usize)> {
        let wide = |at: usize| {
            let cells = self.rows.iter().map(|r| r.cells[at].text.chars().count());
            cells.max().unwrap_or(0).max(self.columns[at].head.len())
        };
        let mut kept: Vec<(usize, usize)> =
            (0..self.columns.len()).map(|at| (at, wide(at))).collect();
        let total = |kept: &[(usize, usize)]| {
            let texts: usize = kept.iter().map(|c| c.1).sum();
            texts + gap * kept.len().saturating_sub(1)
        };
        while total(&kept) > width {
            let goes = kept.iter().map(|c| self.columns[c.0].dispensable);
            let most = goes.enumerate().max_by_key(|(at, d)| (*d, Reverse(*at)));
            match most {
                Some((at, dispensable)) if dispensable > 0 => {
                    kept.remove(at);
                }
                _ => break,
            }
        }
        kept
    }
}

#[cfg(test)]
mod tests;
