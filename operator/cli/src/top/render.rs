//! The screen, drawn with ratatui's widgets.

use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Style, Stylize as _};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Block, Padding, Row, Table};

use super::grid::{BAD, FAINT, Grid, REVERSED, WARNING};
use super::screen::{HELP, ORDERS, Screen, TABS};
use super::text::summary;
use super::view::{State, View};

/// Spaces between two columns.
const GAP: u16 = 2;
/// The number of silent proxies that are named.
const NAMED: usize = 3;

/// Whether the environment allows colours: <https://no-color.org>, and `TERM=dumb`.
#[must_use]
pub fn colours_of_environment() -> bool {
    let no_color = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
    let dumb = std::env::var_os("TERM").is_some_and(|v| v == "dumb");
    !no_color && !dumb
}

/// Draws everything.
pub fn draw(frame: &mut Frame<'_>, view: &View, grid: &Grid, screen: &mut Screen, colours: bool) {
    let problems = match screen.help {
        true => Text::default(),
        false => unreachable(view),
    };
    let [title, tabs, silent, body, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Length(problems.height() as u16),
        Constraint::Min(0),
        Constraint::Length(u16::from(frame.area().height > 3)),
    ])
    .areas(frame.area());
    frame.render_widget(title_line(view, screen), title);
    frame.render_widget(tab_line(screen), tabs);
    frame.render_widget(problems, silent);
    if screen.help {
        let rows = HELP.map(|(keys, does)| Row::new([keys.bold(), does.into()]));
        let table = Table::new(rows, [Constraint::Length(16), Constraint::Min(0)]);
        let table = table.column_spacing(GAP);
        frame.render_widget(
            table.block(Block::new().padding(Padding::new(2, 0, 1, 0))),
            body,
        );
    } else {
        screen.aim(grid, usize::from(body.height.saturating_sub(1)));
        frame.render_stateful_widget(grid.table(body.width, GAP), body, &mut screen.table);
        if grid.rows.is_empty() {
            let nothing = Text::from(vec![Line::default(), "nothing to show".dim().into()]);
            frame.render_widget(nothing, body);
        }
    }
    frame.render_widget(foot_line(screen), foot);
    if !colours {
        discolour(frame.buffer_mut());
    }
}

/// Shows without colours what is bad: bold and reversed.
fn discolour(buffer: &mut Buffer) {
    for cell in &mut buffer.content {
        if cell.fg == Color::Red {
            cell.set_style(REVERSED);
        }
        cell.set_fg(Color::Reset);
    }
}

fn title_line(view: &View, screen: &Screen) -> Line<'static> {
    let silent = view.unreachable() > 0;
    let text = match (view.proxies.is_empty(), view.policies.is_empty()) {
        (true, _) => Span::styled("no proxies", WARNING),
        (false, true) if !silent => "no policy is in force".into(),
        _ => Span::styled(summary(view), if silent { BAD } else { Style::new() }),
    };
    let mut line = Line::from(vec!["headgate top".bold(), "  ".into(), text]);
    if screen.paused {
        line.push_span(Span::styled(format!("  PAUSED at {}", view.time), WARNING));
    }
    line
}

fn tab_line(screen: &Screen) -> Line<'static> {
    let choice = &screen.choice;
    let mut line = Line::default();
    for (at, (tab, name)) in TABS.iter().enumerate() {
        let text = format!("{} {name}", at + 1);
        line.push_span(match *tab == choice.tab {
            true => text.bold().underlined(),
            false => text.into(),
        });
        line.push_span("  ");
    }
    let order = ORDERS.iter().find(|o| o.0 == choice.order);
    let order = order.map_or("", |o| o.1);
    let end = if choice.reversed { "last" } else { "first" };
    line.push_span(format!(" {order} {end}").dim());
    let only = screen.only.iter().map(|only| format!("  only {only}"));
    let filter = Some(&choice.filter).filter(|f| !f.is_empty());
    let chosen = only.chain(filter.map(|filter| format!("  /{filter}")));
    line.extend(chosen.map(|text| Span::styled(text, WARNING)));
    line
}

/// Names the proxies that don't answer, on every tab: their stats are missing there.
fn unreachable(view: &View) -> Text<'static> {
    let rows = view.proxies.iter();
    let silent = rows.filter(|p| p.state == State::Unreachable);
    let mut lines: Vec<String> = silent
        .map(|proxy| {
            let why = proxy.problem.as_deref().unwrap_or_default();
            let seconds = proxy.silent_seconds.unwrap_or(0.0);
            format!("! {}: {why} (for {seconds:.0} s)", proxy.proxy)
        })
        .collect();
    if let Some(more @ 1..) = lines.len().checked_sub(NAMED) {
        lines.truncate(NAMED);
        lines.push(format!("! and {more} more; 3 shows all proxies"));
    }
    Text::from_iter(lines).style(BAD)
}

fn foot_line(screen: &Screen) -> Line<'static> {
    if screen.typing.is_some() {
        let typed = screen.choice.filter.clone();
        return vec!["names with: ".bold(), typed.into(), " ".reversed()].into();
    }
    let keys = match screen.help {
        true => "any key goes back",
        false => "q quit  ? help  1-3 view  s sort  r reverse  / filter  p pause",
    };
    Span::styled(keys, FAINT).into()
}

#[cfg(test)]
mod tests;
