//! The screen: the user's choices, the keys that change them, and the drawing.

use std::time::{Instant, SystemTime};

use clap::ValueEnum;
use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize as _};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Paragraph, TableState, Tabs};
use serde_json::Value;

use super::cells::{BAD, WARNING, silence};
use super::fleet::Fleet;
use super::table::{self, Choice, Tab};
use super::view;

/// The number of spaces between two columns.
const GAP: u16 = 2;
/// The most silent proxies that are named; the view of proxies shows all.
const NAMED: usize = 3;

const HELP: &str = "
  1 2 3 4, Tab      types, workflows, proxies, the value cut
  s                 the next order
  r                 the reverse order
  /                 only names with a text in them; Enter keeps it, Esc drops it
  p, Space          pause, go on
  Up, Down, j, k    mark a row
  PgUp, PgDn        a page
  Home, End         the first row, the last
  Enter             at a proxy: count only that one
  Esc               all proxies, all names
  q, Ctrl-C         quit";

/// The state of the screen: the shown view, and the choices.
#[derive(Default)]
pub(super) struct Screen {
    view: Value,
    choice: Choice,
    /// The address of the only proxy to count; `None`: all proxies.
    only: Option<String>,
    paused: bool,
    /// Whether keys are added to the text of the filter.
    typing: bool,
    help: bool,
    /// The key of the marked row, whose position may change.
    marked: Option<String>,
    table: TableState,
    /// The number of rows that fit on the screen.
    room: u16,
    colours: bool,
}

impl Screen {
    /// Returns an empty screen, with colours if the environment allows them:
    /// <https://no-color.org>, and `TERM=dumb`.
    pub(super) fn new(choice: Choice) -> Self {
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|v| v == "dumb");
        Self {
            choice,
            colours: !no_color && !dumb,
            ..Self::default()
        }
    }

    /// Updates the view to the present values, unless it is paused.
    pub(super) fn look(&mut self, fleet: &Fleet) {
        if !self.paused {
            let only = self.only.as_deref();
            self.view = view::view(fleet, only, Instant::now(), SystemTime::now());
        }
    }

    /// Handles a key; returns false if the user quits.
    pub(super) fn key(&mut self, key: KeyEvent) -> bool {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return !matches!(key.code, KeyCode::Char('c' | 'd'));
        }
        if std::mem::take(&mut self.help) {
            return true;
        }
        let room = self.room;
        match key.code {
            KeyCode::Esc => {
                self.typing = false;
                self.choice.filter.clear();
                self.count(None);
            }
            KeyCode::Enter if self.typing => self.typing = false,
            KeyCode::Char(c) if self.typing => self.choice.filter.push(c),
            KeyCode::Backspace if self.typing => {
                self.choice.filter.pop();
            }
            _ if self.typing => {}
            KeyCode::Char('q') => return false,
            KeyCode::Char('?' | 'h') => self.help = true,
            KeyCode::Char('1') => self.show(Tab::Types),
            KeyCode::Char('2') => self.show(Tab::Workflows),
            KeyCode::Char('3') => self.show(Tab::Proxies),
            KeyCode::Char('4') => self.show(Tab::Value),
            KeyCode::Tab => self.show(next(self.choice.tab())),
            KeyCode::Char('s') => self.choice.sort = next(self.choice.sort),
            KeyCode::Char('r') => self.choice.reversed = !self.choice.reversed,
            KeyCode::Char('/') => self.typing = true,
            KeyCode::Char('p' | ' ') => self.paused = !self.paused,
            KeyCode::Down | KeyCode::Char('j') => self.mark(TableState::select_next),
            KeyCode::Up | KeyCode::Char('k') => self.mark(TableState::select_previous),
            KeyCode::PageDown => self.mark(|table| table.scroll_down_by(room)),
            KeyCode::PageUp => self.mark(|table| table.scroll_up_by(room)),
            KeyCode::Home => self.mark(TableState::select_first),
            KeyCode::End => self.mark(TableState::select_last),
            // A marked row that the filter hides is not selected.
            KeyCode::Enter
                if self.choice.tab() == Tab::Proxies && self.table.selected().is_some() =>
            {
                self.count(self.marked.clone());
                self.show(Tab::Types);
            }
            _ => {}
        }
        true
    }

    fn show(&mut self, tab: Tab) {
        self.choice.view = Some(tab);
        self.marked = None;
        self.table = TableState::new();
    }

    /// Counts one proxy, or all. Ends a pause, because the paused values are of other proxies.
    fn count(&mut self, only: Option<String>) {
        self.paused &= self.only == only;
        self.only = only;
    }

    fn mark(&mut self, step: impl FnOnce(&mut TableState)) {
        step(&mut self.table);
        let rows = table::rows(&self.view, &self.choice);
        let last = rows.len().saturating_sub(1);
        let at = self.table.selected().unwrap_or(0).min(last);
        self.marked = rows.get(at).map(|row| row.key.clone());
    }

    /// Draws everything.
    pub(super) fn draw(&mut self, frame: &mut Frame<'_>) {
        // Their stats are missing in every view.
        let silent = table::silent(&self.view).take(NAMED).filter_map(|proxy| {
            let why = silence(proxy)?;
            Some(format!("! {}: {why}", proxy["proxy"].as_str()?))
        });
        let silent: Vec<String> = silent.collect();
        let [title, tabs, problems, body, foot] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Length(1),
            Constraint::Length(silent.len() as u16),
            Constraint::Fill(1),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        frame.render_widget(self.title(), title);
        let [tabs, order] =
            Layout::horizontal([Constraint::Length(50), Constraint::Fill(1)]).areas(tabs);
        let names = Tab::value_variants().iter().enumerate();
        let names = names.map(|(at, tab)| format!("{} {}", at + 1, name(tab)));
        let chosen = self.choice.tab() as usize;
        frame.render_widget(Tabs::new(names).select(chosen), tabs);
        frame.render_widget(self.order(), order);
        frame.render_widget(Text::from_iter(silent).style(BAD), problems);
        match self.help {
            true => frame.render_widget(Paragraph::new(HELP), body),
            false => self.draw_table(frame, body),
        }
        frame.render_widget(self.foot(), foot);
        if !self.colours {
            discolour(frame.buffer_mut());
        }
    }

    fn draw_table(&mut self, frame: &mut Frame<'_>, body: Rect) {
        let rows = table::rows(&self.view, &self.choice);
        let marked = self.marked.as_ref();
        self.table
            .select(marked.and_then(|key| rows.iter().position(|row| row.key == *key)));
        if rows.is_empty() {
            return frame
                .render_widget(Line::from(self.choice.tab().empty(&self.view).dim()), body);
        }
        self.room = body.height.saturating_sub(1);
        // The offset is limited, so that a long table has no empty lines below its last row.
        let most = rows.len().saturating_sub(usize::from(self.room));
        *self.table.offset_mut() = self.table.offset().min(most);
        let (table, _) = table::table(self.choice.tab(), &rows, body.width, GAP);
        frame.render_stateful_widget(table, body, &mut self.table);
    }

    fn title(&self) -> Line<'static> {
        let silent = table::silent(&self.view).next().is_some();
        let style = if silent { BAD } else { Style::new() };
        let summary = Span::styled(table::summary(&self.view), style);
        let mut line = Line::from(vec!["headgate top".bold(), "  ".into(), summary]);
        if self.paused {
            let time = self.view["time"].as_str().unwrap_or_default();
            line.push_span(Span::styled(format!("  PAUSED at {time}"), WARNING));
        }
        line
    }

    fn order(&self) -> Line<'static> {
        let reversed = match self.choice.reversed {
            true => ", reversed",
            false => "",
        };
        let order = match self.choice.tab() {
            Tab::Value => name(&Tab::Value),
            _ => name(&self.choice.sort),
        };
        let mut line = Line::from(format!("sorted by {order}{reversed}").dim());
        if let Some(only) = &self.only {
            line.push_span(Span::styled(format!("  only {only}"), WARNING));
        }
        if !self.choice.filter.is_empty() {
            line.push_span(Span::styled(format!("  /{}", self.choice.filter), WARNING));
        }
        line
    }

    fn foot(&self) -> Line<'static> {
        match (self.typing, self.help) {
            (true, _) => {
                let typed = self.choice.filter.clone();
                vec!["names with: ".bold(), typed.into(), " ".reversed()].into()
            }
            (_, true) => "any key goes back".dim().into(),
            _ => "q quit  ? help  1-4 view  s sort  r reverse  / filter  p pause"
                .dim()
                .into(),
        }
    }
}

/// Returns the name of an option of the command line.
fn name(value: &impl ValueEnum) -> String {
    let value = value.to_possible_value();
    value.map_or_else(String::new, |value| value.get_name().to_owned())
}

/// Returns the value after `now`; the first one follows the last.
fn next<T: ValueEnum + Copy + PartialEq>(now: T) -> T {
    let mut all = T::value_variants().iter().cycle();
    all.find(|value| **value == now);
    all.next().copied().unwrap_or(now)
}

/// Replaces the colour of bad values by a style without colours: bold and reversed.
fn discolour(buffer: &mut Buffer) {
    for cell in &mut buffer.content {
        if cell.fg == Color::Red {
            cell.modifier |= Modifier::REVERSED;
        }
        cell.set_fg(Color::Reset);
    }
}

#[cfg(test)]
mod tests;
