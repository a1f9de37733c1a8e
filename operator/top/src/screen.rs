//! The screen: the user's choices, the keys that change them, the drawing code, and the loop of the
//! terminal.

use std::io;
use std::time::Duration;

use anyhow::Context as _;
use clap::ValueEnum;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Style, Stylize as _};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{TableState, Tabs};
use ratatui::{DefaultTerminal, Frame};
use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch::Receiver;
use tokio::task::spawn_blocking;

use crate::cells::{BAD, WARNING, silence};
use crate::fleet::Fleet;
use crate::table::{self, Choice, Tab};
use crate::view::{self, field};

/// The longest time between two redraws.
const TURN: Duration = Duration::from_millis(500);
/// The number of spaces between two columns.
const GAP: u16 = 2;
/// The largest number of silent proxies that are named. The view of proxies shows all.
const NAMED: usize = 3;

const KEYS: &str = "\
q quit  1-4 Tab view  s sort  r reverse  / filter  p pause
Up Down PgUp PgDn mark a row  Enter only this proxy  Esc all proxies, all names";

/// The state of the screen: the current view and the user's choices.
#[derive(Default)]
struct Screen {
    view: Value,
    choice: Choice,
    /// The address of the only proxy to show, or `None` for all proxies.
    only: Option<String>,
    paused: bool,
    /// Whether typed characters are added to the filter's text.
    typing: bool,
    table: TableState,
    /// The number of rows that fit on the screen.
    room: u16,
}

/// Shows the fleet until the user quits.
///
/// # Errors
/// Returns an error if the terminal can't be used or has been closed.
pub(crate) async fn run(fleet: Receiver<Fleet>, choice: Choice) -> anyhow::Result<()> {
    let screen = Screen {
        choice,
        ..Screen::default()
    };
    let mut terminal = ratatui::try_init().context("this terminal can't be used")?;
    let shown = show(&mut terminal, &fleet, screen).await;
    let restored = ratatui::try_restore().context("the terminal could not be restored");
    shown.and(restored)
}

async fn show(
    terminal: &mut DefaultTerminal,
    fleet: &Receiver<Fleet>,
    mut screen: Screen,
) -> anyhow::Result<()> {
    // A signal must not leave the terminal in raw mode.
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    loop {
        screen.look(&fleet.borrow());
        let drawn = terminal.draw(|frame| screen.draw(frame));
        drawn.context("drawing failed")?;
        let event = tokio::select! {
            _ = terminate.recv() => return Ok(()),
            _ = hang_up.recv() => return Ok(()),
            event = spawn_blocking(next_event) => event?,
        };
        if let Some(Event::Key(key)) = event.context("the terminal was closed")?
            && key.kind != KeyEventKind::Release
            && !screen.key(key)
        {
            return Ok(());
        }
    }
}

/// Returns the next event, or `None` if none arrives within [`TURN`].
fn next_event() -> io::Result<Option<Event>> {
    event::poll(TURN)?.then(event::read).transpose()
}

impl Screen {
    /// Updates the view to the current values, unless it is paused.
    fn look(&mut self, fleet: &Fleet) {
        if !self.paused {
            self.view = view::current(fleet, self.only.as_deref());
        }
    }

    /// Handles a key. Returns `false` if the user quits.
    fn key(&mut self, key: KeyEvent) -> bool {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return !matches!(key.code, KeyCode::Char('c' | 'd'));
        }
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
            KeyCode::Char(key @ '1'..='4') => {
                self.show(Tab::value_variants()[key as usize - '1' as usize]);
            }
            KeyCode::Tab => self.show(next(self.choice.tab())),
            KeyCode::Char('s') => self.choice.sort = next(self.choice.sort),
            KeyCode::Char('r') => self.choice.reversed = !self.choice.reversed,
            KeyCode::Char('/') => self.typing = true,
            KeyCode::Char('p' | ' ') => self.paused = !self.paused,
            // Drawing the table corrects a position beyond the last row.
            KeyCode::Down | KeyCode::Char('j') => self.table.select_next(),
            KeyCode::Up | KeyCode::Char('k') => self.table.select_previous(),
            KeyCode::PageDown => self.table.scroll_down_by(self.room),
            KeyCode::PageUp => self.table.scroll_up_by(self.room),
            KeyCode::Home => self.table.select_first(),
            KeyCode::End => self.table.select_last(),
            KeyCode::Enter if self.choice.tab() == Tab::Proxies => {
                let rows = table::rows(&self.view, &self.choice);
                let marked = self.table.selected().and_then(|at| rows.get(at));
                if let Some(proxy) = marked.map(|row| row.key.clone()) {
                    self.count(Some(proxy));
                    self.show(Tab::Types);
                }
            }
            _ => {}
        }
        true
    }

    fn show(&mut self, tab: Tab) {
        self.choice.view = Some(tab);
        self.table = TableState::new();
    }

    /// Selects one proxy, or all. Ends a pause, because the paused values belong to other proxies.
    fn count(&mut self, only: Option<String>) {
        self.paused &= self.only == only;
        self.only = only;
    }

    /// Draws the screen.
    fn draw(&mut self, frame: &mut Frame<'_>) {
        // Silent proxies are named in every view, because the view lacks their stats.
        let silent = table::silent(&self.view).take(NAMED).map(|proxy| {
            let why = silence(proxy).unwrap_or_default();
            format!("! {}: {why}", field(proxy, "proxy"))
        });
        let silent = Text::from_iter(silent).style(BAD);
        let [title, tabs, problems, body, foot] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Length(1),
            Constraint::Length(silent.height() as u16),
            Constraint::Fill(1),
            Constraint::Length(2),
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
        frame.render_widget(silent, problems);
        self.draw_table(frame, body);
        let keys = match self.typing {
            true => Text::from(format!("names with: {}_", self.choice.filter)).bold(),
            false => Text::from(KEYS).dim(),
        };
        frame.render_widget(keys, foot);
    }

    fn draw_table(&mut self, frame: &mut Frame<'_>, body: Rect) {
        let tab = self.choice.tab();
        let rows = table::rows(&self.view, &self.choice);
        if rows.is_empty() {
            return frame.render_widget(tab.empty(&self.view).dim(), body);
        }
        self.room = body.height.saturating_sub(1);
        // The offset is limited, so that no empty lines follow the last row of a long table.
        let most = rows.len().saturating_sub(usize::from(self.room));
        *self.table.offset_mut() = self.table.offset().min(most);
        let (table, _) = table::table(tab, &rows, body.width, GAP);
        frame.render_stateful_widget(table, body, &mut self.table);
    }

    fn title(&self) -> Line<'static> {
        let silent = table::silent(&self.view).next().is_some();
        let style = if silent { BAD } else { Style::new() };
        let summary = Span::styled(table::summary(&self.view), style);
        let mut line = Line::from(vec!["headgate top".bold(), "  ".into(), summary]);
        if self.paused {
            let time = field(&self.view, "time");
            line.push_span(Span::styled(format!("  PAUSED at {time}"), WARNING));
        }
        line
    }

    fn order(&self) -> Line<'static> {
        let order = match self.choice.tab() {
            Tab::Value => name(&Tab::Value),
            _ => name(&self.choice.sort),
        };
        let reversed = if self.choice.reversed {
            ", reversed"
        } else {
            ""
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
}

/// Returns the name of a value on the command line.
fn name(value: &impl ValueEnum) -> String {
    let value = value.to_possible_value();
    value.map_or_else(String::new, |value| value.get_name().to_owned())
}

/// Returns the value after `now`. The first value follows the last.
fn next<T: ValueEnum + Copy + PartialEq>(now: T) -> T {
    let mut all = T::value_variants().iter().cycle();
    all.find(|value| **value == now);
    all.next().copied().unwrap_or(now)
}

#[cfg(test)]
mod tests;
