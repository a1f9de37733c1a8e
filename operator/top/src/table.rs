//! Turns a view into a table, in the chosen order and with the chosen filter, for the terminal and
//! for printing.

use std::cmp::Ordering;
use std::iter::once;

use clap::{Args, ValueEnum};
use ratatui::buffer::{self, Buffer};
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{self, Table, Widget as _};
use serde_json::Value;

use crate::cells::{self, Column, rate};
use crate::view::{UNREACHABLE, arrivals, each, field, refused_share, requests, traffic_of};

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
    /// Types in order of value per slot time, with the cut where the slots are used up
    Value,
}

/// The order of rows.
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

/// The chosen rows and their order.
#[derive(Debug, Clone, Default, Args)]
pub struct Choice {
    /// View to show first, or with --once to print [default: types, and workflows if some exist]
    #[arg(long, value_name = "VIEW")]
    pub view: Option<Tab>,
    /// Order of rows
    #[arg(long, value_name = "ORDER", default_value = "hurt")]
    pub sort: Order,
    /// Whether the order is reversed
    #[arg(skip)]
    pub reversed: bool,
    /// Show only policies, types, workflows and proxies whose names contain this text,
    /// case-insensitive
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub filter: String,
}

/// A row.
pub(crate) struct Row<'a> {
    /// The row's key: `policy`, `policy type`, `policy workflow`, or a proxy's address.
    pub(crate) key: String,
    head: String,
    pub(crate) values: &'a Value,
}

/// A policy's row with the rows of its types or workflows, or a proxy's row.
type Group<'a> = (Row<'a>, Vec<Row<'a>>);

/// The number of spaces between two columns of a printed table.
const GAP: u16 = 3;
const HEAD: Style = Style::new().add_modifier(Modifier::BOLD.union(Modifier::REVERSED));

impl Tab {
    /// Returns the heading of the column of names, and the other columns.
    fn columns(self) -> (&'static str, &'static [Column]) {
        match self {
            Self::Types => ("POLICY / TYPE", cells::TYPES),
            Self::Workflows => ("POLICY / WORKFLOW", cells::WORKFLOWS),
            Self::Proxies => ("PROXY", cells::PROXIES),
            Self::Value => ("POLICY / TYPE", cells::VALUE),
        }
    }

    /// Returns the text for a table without rows.
    pub(crate) fn empty(self, view: &Value) -> &'static str {
        match self {
            Self::Types if silent(view).next().is_some() => "No reachable proxy has a policy.",
            Self::Types => "No policy is in force.",
            Self::Workflows => "No policy has workflows.",
            Self::Proxies => "No proxies.",
            Self::Value => "No policy sheds by value.",
        }
    }
}

impl Choice {
    /// Returns the chosen view, or the first view by default.
    pub(crate) fn tab(&self) -> Tab {
        self.view.unwrap_or_default()
    }

    fn wants(&self, row: &Row<'_>) -> bool {
        // Only rows of proxies have policies.
        let policies = each(&row.values["policies"]).filter_map(Value::as_str);
        let mut names = [row.key.as_str(), field(row.values, "node")]
            .into_iter()
            .chain(policies);
        let filter = self.filter.to_lowercase();
        names.any(|name| name.to_lowercase().contains(&filter))
    }

    /// Returns the rank of a row. The highest rank comes first.
    fn rank(&self, row: &Row<'_>) -> f64 {
        let values = traffic_of(row.values);
        let rank = match self.sort {
            // The view of the value cut is always ordered by value.
            _ if self.tab() == Tab::Value => row.values["valueCut"]["perSlotSecond"].as_f64(),
            // A silent proxy may be worse off than any proxy that answers.
            Order::Hurt if values["state"] == UNREACHABLE => Some(f64::INFINITY),
            Order::Hurt => row.values["hurt"].as_f64(),
            Order::Rate => arrivals(values),
            Order::Refused => refused_share(values),
            Order::Wait => longest_wait(row.values),
            Order::Name => None,
        };
        rank.unwrap_or(0.0)
    }

    fn compare(&self, a: &Row<'_>, b: &Row<'_>) -> Ordering {
        let order = self.rank(b).total_cmp(&self.rank(a));
        let order = order.then_with(|| a.key.cmp(&b.key));
        if self.reversed {
            order.reverse()
        } else {
            order
        }
    }
}

/// Returns the 99th percentile of the wait. For a policy, returns the longest one of its types or
/// workflows.
fn longest_wait(values: &Value) -> Option<f64> {
    let parts = each(&values["types"]).chain(each(&values["rows"]));
    let own = ["queueWaitMs", "waitMs"].map(|wait| values[wait]["p99"].as_f64());
    let waits = own.into_iter().flatten();
    waits
        .chain(parts.filter_map(longest_wait))
        .max_by(f64::total_cmp)
}

/// Returns the rows of `view` that match the choice, in its order. If a policy's name matches the
/// filter, all its rows are included.
pub(crate) fn rows<'a>(view: &'a Value, choice: &Choice) -> Vec<Row<'a>> {
    let list = match choice.tab() {
        Tab::Proxies => &view["proxies"],
        _ => &view["policies"],
    };
    let groups = each(list).filter_map(|values| group(choice.tab(), values));
    let mut groups: Vec<Group<'_>> = groups.collect();
    groups.retain_mut(|(first, members)| {
        // The key of each member begins with the policy's name.
        members.retain(|row| choice.wants(row));
        members.sort_by(|a, b| choice.compare(a, b));
        choice.wants(first) || !members.is_empty()
    });
    groups.sort_by(|(a, _), (b, _)| choice.compare(a, b));
    let rows = groups.into_iter();
    rows.flat_map(|(first, members)| once(first).chain(members))
        .collect()
}

/// Returns the rows of a policy or a proxy, or `None` if the view doesn't show it.
fn group(tab: Tab, of: &Value) -> Option<Group<'_>> {
    let (key, values, members, kind) = match tab {
        Tab::Value if of["valueCut"].is_null() => return None,
        Tab::Types | Tab::Value => ("policy", of, "types", "type"),
        Tab::Workflows => ("policy", &of["workflows"], "rows", "workflow"),
        Tab::Proxies => ("proxy", of, "", ""),
    };
    let first = field(of, key);
    let member = |values| {
        let name = field(values, kind);
        let (key, head) = (format!("{first} {name}"), format!("  {name}"));
        Row { key, head, values }
    };
    let head = match of["proxies"].as_u64() {
        Some(many @ 2..) => format!("{first} ({many} proxies)"),
        _ => first.to_owned(),
    };
    let members = each(&values[members]).map(member).collect();
    let key = first.to_owned();
    (!values.is_null()).then_some((Row { key, head, values }, members))
}

/// Returns a table with the columns that fit into the width `room`, with `gap` spaces between them,
/// and the table's width.
pub(crate) fn table(tab: Tab, rows: &[Row<'_>], room: u16, gap: u16) -> (Table<'static>, u16) {
    let (head, columns) = tab.columns();
    let heads = columns
        .iter()
        .map(|(head, side, _)| Line::from(*head).alignment(*side));
    let heads: Vec<Line<'static>> = once(head.into()).chain(heads).collect();
    let line = |row: &Row<'_>| {
        let cells = columns.iter();
        let cells = cells.map(|(_, side, cell)| Line::from(cell(row.values)).alignment(*side));
        once(row.head.clone().into()).chain(cells).collect()
    };
    let lines: Vec<Vec<Line<'static>>> = rows.iter().map(line).collect();
    let mut widths: Vec<u16> = Vec::new();
    let mut left = room;
    for (at, head) in heads.iter().enumerate() {
        // A column whose heading doesn't fit is left out, along with all columns to its right.
        if at > 0 && usize::from(left) < head.width() {
            break;
        }
        let cells = lines.iter().map(|line| line[at].width());
        let widest = cells.fold(head.width(), usize::max) as u16;
        widths.push(left.min(widest));
        left = left.saturating_sub(widest + gap);
    }
    let width = widths.iter().sum::<u16>() + gap * (widths.len() as u16 - 1);
    // Cells of columns without a width aren't drawn.
    let table = Table::new(lines.into_iter().map(widgets::Row::new), widths)
        .header(widgets::Row::new(heads).style(HEAD))
        .column_spacing(gap)
        .row_highlight_style(Modifier::REVERSED);
    (table, width)
}

/// Returns the table of the chosen view and the totals. Without a choice, returns the table of
/// types and, if any policy has workflows, the table of workflows.
pub(crate) fn printed(view: &Value, choice: &Choice) -> String {
    let has_workflows = each(&view["policies"]).any(|p| !p["workflows"].is_null());
    let tabs = match choice.view {
        Some(tab) => vec![tab],
        None if has_workflows => vec![Tab::Types, Tab::Workflows],
        None => vec![Tab::Types],
    };
    let print = |tab: Tab| {
        let choice = Choice {
            view: Some(tab),
            ..choice.clone()
        };
        let rows = rows(view, &choice);
        if rows.is_empty() {
            return format!("{}\n", tab.empty(view));
        }
        let (table, width) = table(tab, &rows, u16::MAX, GAP);
        let height = u16::try_from(rows.len() + 1).unwrap_or(u16::MAX);
        let mut buffer = Buffer::empty(Rect::new(0, 0, width, height));
        table.render(buffer.area, &mut buffer);
        lines(&buffer).join("\n") + "\n"
    };
    let tables = tabs.into_iter().map(print).collect::<Vec<_>>();
    format!("{}\n{}\n", tables.join("\n"), summary(view))
}

/// Returns the lines of a buffer without trailing spaces.
pub(crate) fn lines(buffer: &Buffer) -> Vec<String> {
    let rows = buffer.content.chunks(usize::from(buffer.area.width));
    let text = |row: &[_]| row.iter().map(buffer::Cell::symbol).collect::<String>();
    rows.map(|row| text(row).trim_end().to_owned()).collect()
}

/// Returns the proxies that don't answer.
pub(crate) fn silent(view: &Value) -> impl Iterator<Item = &Value> {
    each(&view["proxies"]).filter(|proxy| proxy["state"] == UNREACHABLE)
}

/// Returns the totals of all policies and proxies, in one line.
pub(crate) fn summary(view: &Value) -> String {
    let proxies = match (each(&view["proxies"]).count(), silent(view).count()) {
        (1, 0) => "1 proxy".to_owned(),
        (n, 0) => format!("{n} proxies"),
        (n, silent) => format!("{silent} of {n} proxies unreachable"),
    };
    let [arrivals, refused] = requests(each(&view["policies"]))
        .map(|value| value.map_or("-".into(), |value| rate(&value.into())));
    let seconds = view["windowSeconds"].as_f64().unwrap_or(0.0);
    format!("{proxies}, {arrivals} requests/s decided, {refused} refused; over {seconds:.0} s")
}

#[cfg(test)]
mod tests;
