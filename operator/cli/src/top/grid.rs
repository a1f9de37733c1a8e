//! A view as rows and columns, in the chosen order and with the chosen filter. The terminal and the
//! printed tables draw the same [`Table`].

mod proxies;
mod types;
mod workflows;

use std::cmp::{Ordering, Reverse};

use clap::ValueEnum;
use ratatui::layout::Constraint;
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{self, Table};

use super::format::{UNKNOWN, count, percent, rate};
use super::view::{PolicyRow, View};

/// A view of the proxies' stats.
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

/// The order of rows. All but the name are also indices of [`Row::ranks`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Order {
    /// Most requests refused, or late beyond the share that objectives allow
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

/// Nothing of interest.
pub(super) const FAINT: Style = Style::new().add_modifier(Modifier::DIM);
/// A heading.
pub(super) const STRONG: Style = Style::new().add_modifier(Modifier::BOLD);
/// In order.
pub(super) const GOOD: Style = Style::new().fg(Color::Green);
/// Worth a look.
pub(super) const WARNING: Style = STRONG.fg(Color::Yellow);
/// A problem.
pub(super) const BAD: Style = STRONG.fg(Color::Red);
/// The marked row, and the heads of columns.
pub(super) const REVERSED: Style = Style::new().add_modifier(Modifier::REVERSED);

/// A cell: one line.
pub type Cell = Span<'static>;

/// A column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Column {
    /// Its head.
    pub head: &'static str,
    /// Whether it holds numbers, which are aligned at the right.
    right: bool,
    /// Columns with the highest number are dropped first to save width; 0 is never dropped.
    dispensable: u8,
}

/// A row.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Row {
    /// A cell for each column.
    pub cells: Vec<Cell>,
    /// `policy`, `policy type`, or a proxy's place.
    pub key: String,
    /// The name that it is sorted and filtered by.
    pub name: String,
    /// By [`Order`]; the highest comes first.
    pub ranks: [f64; 4],
}

/// A policy's row, and the rows of its members.
type Group = (Row, Vec<Row>);

/// Rows and columns.
#[derive(Debug, Clone, PartialEq)]
pub struct Grid {
    /// Its columns.
    pub columns: &'static [Column],
    /// Its rows.
    pub rows: Vec<Row>,
}

/// The chosen rows and their order.
#[derive(Debug, Clone, Default)]
pub struct Choice {
    /// The view.
    pub tab: Tab,
    /// The order of rows.
    pub order: Order,
    /// Whether the order is reversed.
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

impl Choice {
    fn sort<T>(&self, rows: &mut [T], row: impl Fn(&T) -> &Row) {
        rows.sort_by(|a, b| {
            let (a, b) = (row(a), row(b));
            let at = self.order as usize;
            let ranked = a.ranks.get(at).zip(b.ranks.get(at));
            let order = ranked.map_or(Ordering::Equal, |(a, b)| b.total_cmp(a));
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

impl Grid {
    /// Returns the rows of `view` by `choice`.
    #[must_use]
    pub fn new(view: &View, choice: &Choice) -> Self {
        match choice.tab {
            Tab::Types => Self::grouped(view, choice, types::COLUMNS, types::rows),
            Tab::Workflows => Self::grouped(view, choice, workflows::COLUMNS, workflows::rows),
            Tab::Proxies => Self {
                columns: proxies::COLUMNS,
                rows: proxies::rows(view, choice),
            },
        }
    }

    /// Returns policies with their members. A policy whose name matches the filter is shown whole.
    fn grouped(
        view: &View,
        choice: &Choice,
        columns: &'static [Column],
        rows: fn(&PolicyRow) -> Option<Group>,
    ) -> Self {
        let mut groups: Vec<Group> = view.policies.iter().filter_map(rows).collect();
        groups.retain_mut(|(policy, members)| {
            let whole = choice.wants(&policy.name);
            members.retain(|m| whole || choice.wants(&m.name));
            whole || !members.is_empty()
        });
        choice.sort(&mut groups, |(policy, _)| policy);
        let mut all = Vec::new();
        for (policy, mut members) in groups {
            choice.sort(&mut members, |m| m);
            for member in &mut members {
                member.key = format!("{} {}", policy.key, member.name);
            }
            all.push(policy);
            all.append(&mut members);
        }
        Self { columns, rows: all }
    }

    /// Returns the indices of the columns that fit into `width` with `gap` between them, and their
    /// widths. Columns that are never dropped are cut at the right.
    #[must_use]
    pub fn fit(&self, width: u16, gap: u16) -> Vec<(usize, u16)> {
        let widest = |at: usize| {
            let cells = self.rows.iter().map(|r| r.cells[at].width());
            let widest = cells.max().unwrap_or(0).max(self.columns[at].head.len());
            u16::try_from(widest).unwrap_or(u16::MAX)
        };
        let mut kept: Vec<_> = (0..self.columns.len()).map(|at| (at, widest(at))).collect();
        let total = |kept: &[(usize, u16)]| {
            let widths = kept.iter().map(|c| usize::from(c.1) + usize::from(gap));
            widths.sum::<usize>().saturating_sub(usize::from(gap))
        };
        while total(&kept) > usize::from(width) {
            let dispensable = kept.iter().map(|c| self.columns[c.0].dispensable);
            match dispensable
                .enumerate()
                .max_by_key(|(at, d)| (*d, Reverse(*at)))
            {
                Some((at, 1..)) => kept.remove(at),
                _ => break,
            };
        }
        let mut room = width;
        for (_, width) in &mut kept {
            *width = room.min(*width);
            room = room.saturating_sub(width.saturating_add(gap));
        }
        kept
    }

    /// Returns a table of the columns that fit into `width`, with `gap` between them.
    #[must_use]
    pub fn table(&self, width: u16, gap: u16) -> Table<'_> {
        let fit = self.fit(width, gap);
        let cell = |at: usize, span: Span<'static>| match self.columns[at].right {
            true => Line::from(span).right_aligned(),
            false => Line::from(span),
        };
        let heads = fit
            .iter()
            .map(|&(at, _)| cell(at, self.columns[at].head.into()));
        let row = |row: &Row| -> widgets::Row<'_> {
            let cells = fit.iter().map(|&(at, _)| cell(at, row.cells[at].clone()));
            widgets::Row::new(cells)
        };
        let widths = fit.iter().map(|&(_, width)| Constraint::Length(width));
        Table::new(self.rows.iter().map(row), widths)
            .header(widgets::Row::new(heads).style(STRONG.patch(REVERSED)))
            .column_spacing(gap)
            .row_highlight_style(REVERSED)
    }
}

/// Returns a row whose key is its name.
fn row(name: &str, cells: Vec<Cell>, ranks: [f64; 4]) -> Row {
    Row {
        cells,
        key: name.to_owned(),
        name: name.to_owned(),
        ranks,
    }
}

fn plain(text: impl Into<String>) -> Cell {
    toned(text, Style::new())
}

fn toned(text: impl Into<String>, style: Style) -> Cell {
    let text: String = text.into();
    let style = if text == UNKNOWN { FAINT } else { style };
    Span::styled(text, style)
}

/// Returns the cells of a rate that is best 0, and of its share of `whole`.
fn unwanted(value: Option<f64>, whole: Option<f64>) -> [Cell; 2] {
    let style = match value {
        None | Some(0.0) => FAINT,
        Some(v) if v > 0.2 * whole.unwrap_or(0.0) => BAD,
        Some(_) => WARNING,
    };
    [
        toned(rate(value), style),
        toned(percent(value, whole), style),
    ]
}

/// Returns a cell of the `reasons` of rejections, which a dry run doesn't enforce.
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
    let style = match (in_use, slots) {
        (Some(used), Some(all)) if all > 0 && used >= all => WARNING,
        _ => Style::new(),
    };
    toned(format!("{}/{}", count(in_use), count(slots)), style)
}

fn group_name(policy: &PolicyRow) -> Cell {
    match policy.proxies {
        1 => toned(policy.policy.clone(), STRONG),
        many => toned(format!("{} ({many} proxies)", policy.policy), STRONG),
    }
}

/// Returns the longest wait of any row.
fn longest_wait(rows: &[Row]) -> f64 {
    let waits = rows.iter().map(|row| row.ranks[Order::Wait as usize]);
    waits.fold(0.0, f64::max)
}

#[cfg(test)]
mod tests;
