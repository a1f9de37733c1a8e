//! The user's choices at the terminal, and the keys that change them.

use std::mem;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::widgets::TableState;

use super::grid::{Choice, Grid, Order, Tab};

/// The user's choices at the terminal.
#[derive(Debug, Clone, Default)]
pub struct Screen {
    /// The chosen rows and their order.
    pub choice: Choice,
    /// The only proxy to count, by place.
    pub only: Option<String>,
    /// Whether the view is frozen.
    pub paused: bool,
    /// The filter before the one that is being typed, to return to it.
    pub typing: Option<String>,
    /// Whether the help is shown.
    pub help: bool,
    /// The row that is marked, by key.
    pub marked: Option<String>,
    /// The number of rows that the last drawing had room for.
    pub room: usize,
    /// The state of the table's widget.
    pub table: TableState,
    /// Whether the user quits.
    pub done: bool,
}

/// All tabs, in order.
pub const TABS: [(Tab, &str); 3] = [
    (Tab::Types, "Types"),
    (Tab::Workflows, "Workflows"),
    (Tab::Proxies, "Proxies"),
];

/// All orders, with their names.
pub const ORDERS: [(Order, &str); 5] = [
    (Order::Hurt, "what hurts most"),
    (Order::Rate, "most requests"),
    (Order::Refused, "largest share refused"),
    (Order::Wait, "longest wait"),
    (Order::Name, "name"),
];

/// The keys and their effects.
pub const HELP: [(&str, &str); 11] = [
    ("1 2 3, Tab", "types, workflows, proxies"),
    ("s, S", "next order, the one before"),
    ("r", "last comes first"),
    (
        "/",
        "only names with a text in them; Enter keeps it, Esc drops it",
    ),
    ("p, Space", "pause, go on"),
    ("Up, Down, j, k", "mark a row"),
    ("PgUp, PgDn", "a page"),
    ("Home, End", "the first row, the last"),
    ("Enter", "at a proxy: count only that one"),
    ("Esc", "all proxies, all names"),
    ("q, Ctrl-C", "quit"),
];

impl Screen {
    /// Handles a key. `grid` is the one shown.
    pub fn key(&mut self, key: KeyEvent, grid: &Grid) {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            self.done |= matches!(key.code, KeyCode::Char('c' | 'd'));
            return;
        }
        if self.typing.is_some() {
            self.type_filter(key.code);
            return;
        }
        if mem::take(&mut self.help) {
            return;
        }
        match key.code {
            KeyCode::Char('q') => self.done = true,
            KeyCode::Char('?' | 'h') => self.help = true,
            KeyCode::Char(digit @ '1'..='3') => {
                let at = usize::from(digit as u8 - b'1');
                self.show(TABS[at].0);
            }
            KeyCode::Tab => self.show(step(&TABS.map(|t| t.0), self.choice.tab, 1)),
            KeyCode::BackTab => self.show(step(&TABS.map(|t| t.0), self.choice.tab, -1)),
            KeyCode::Char('s') => {
                self.choice.order = step(&ORDERS.map(|o| o.0), self.choice.order, 1);
            }
            KeyCode::Char('S') => {
                self.choice.order = step(&ORDERS.map(|o| o.0), self.choice.order, -1);
            }
            KeyCode::Char('r') => self.choice.reversed = !self.choice.reversed,
            KeyCode::Char('/') => self.typing = Some(self.choice.filter.clone()),
            KeyCode::Char('p' | ' ') => self.paused = !self.paused,
            KeyCode::Down | KeyCode::Char('j') => self.mark(grid, 1),
            KeyCode::Up | KeyCode::Char('k') => self.mark(grid, -1),
            KeyCode::PageDown => self.mark(grid, self.page()),
            KeyCode::PageUp => self.mark(grid, -self.page()),
            KeyCode::Home => self.mark(grid, isize::MIN),
            KeyCode::End => self.mark(grid, isize::MAX),
            KeyCode::Enter if self.choice.tab == Tab::Proxies => {
                self.only = self.marked_row(grid).map(|at| grid.rows[at].key.clone());
                if self.only.is_some() {
                    self.show(Tab::Types);
                }
            }
            KeyCode::Esc => {
                self.only = None;
                self.choice.filter.clear();
            }
            _ => {}
        }
    }

    fn type_filter(&mut self, code: KeyCode) {
        match code {
            KeyCode::Char(c) => self.choice.filter.push(c),
            KeyCode::Backspace => {
                self.choice.filter.pop();
            }
            KeyCode::Enter => self.typing = None,
            KeyCode::Esc => self.choice.filter = self.typing.take().unwrap_or_default(),
            _ => {}
        }
    }

    fn show(&mut self, tab: Tab) {
        if self.choice.tab != tab {
            self.choice.tab = tab;
            self.marked = None;
            self.table = TableState::new();
        }
    }

    fn page(&self) -> isize {
        isize::try_from(self.room).unwrap_or(1).max(1)
    }

    /// Returns the index of the marked row.
    #[must_use]
    pub fn marked_row(&self, grid: &Grid) -> Option<usize> {
        let marked = self.marked.as_ref()?;
        grid.rows.iter().position(|row| row.key == *marked)
    }

    fn mark(&mut self, grid: &Grid, by: isize) {
        let last = grid.rows.len().saturating_sub(1);
        let at = match self.marked_row(grid) {
            Some(at) => at.saturating_add_signed(by).min(last),
            None if by < 0 && by != isize::MIN => last,
            None if by == isize::MAX => last,
            None => 0,
        };
        self.marked = grid.rows.get(at).map(|row| row.key.clone());
    }

    /// Prepares the table for `room` rows: selects the marked row, and leaves no empty rows if it
    /// can.
    pub fn aim(&mut self, grid: &Grid, room: usize) {
        self.room = room;
        self.table.select(self.marked_row(grid));
        let offset = self.table.offset_mut();
        *offset = grid.rows.len().saturating_sub(room).min(*offset);
    }
}

/// Returns the element `by` places after `now`, in a circle.
fn step<T: Copy + PartialEq>(all: &[T], now: T, by: isize) -> T {
    let at = all.iter().position(|t| *t == now).unwrap_or(0);
    let count = all.len() as isize;
    all[(at as isize + by).rem_euclid(count) as usize]
}

#[cfg(test)]
mod tests {
    use ratatui::buffer::Buffer;
    use ratatui::layout::Rect;
    use ratatui::widgets::StatefulWidget as _;

    use super::*;
    use crate::top::grid::Row;

    fn grid(rows: usize) -> Grid {
        let row = |at| Row {
            key: format!("row {at}"),
            ..Row::default()
        };
        Grid {
            columns: &[],
            rows: (0..rows).map(row).collect(),
        }
    }

    /// The first row that is shown when there is room for `room`.
    fn first(screen: &mut Screen, grid: &Grid, room: u16) -> usize {
        let mut buffer = Buffer::empty(Rect::new(0, 0, 10, room + 1));
        screen.aim(grid, usize::from(room));
        let table = grid.table(10, 1);
        table.render(buffer.area, &mut buffer, &mut screen.table);
        screen.table.offset()
    }

    fn press(screen: &mut Screen, grid: &Grid, keys: &[KeyCode]) {
        for key in keys {
            screen.key(KeyEvent::from(*key), grid);
        }
    }

    #[test]
    fn keys_choose_what_is_shown() {
        let (mut screen, grid) = (Screen::default(), grid(0));
        press(
            &mut screen,
            &grid,
            &[KeyCode::Char('2'), KeyCode::Char('s')],
        );
        assert_eq!(screen.choice.tab, Tab::Workflows);
        assert_eq!(screen.choice.order, Order::Rate);
        press(&mut screen, &grid, &[KeyCode::Tab, KeyCode::Tab]);
        assert_eq!(screen.choice.tab, Tab::Types);
        press(&mut screen, &grid, &[KeyCode::BackTab, KeyCode::Char('S')]);
        assert_eq!(screen.choice.tab, Tab::Proxies);
        assert_eq!(screen.choice.order, Order::Hurt);
        press(
            &mut screen,
            &grid,
            &[KeyCode::Char('S'), KeyCode::Char('r')],
        );
        assert_eq!(screen.choice.order, Order::Name);
        assert!(screen.choice.reversed);
        press(&mut screen, &grid, &[KeyCode::Char('p')]);
        assert!(screen.paused);
        press(
            &mut screen,
            &grid,
            &[KeyCode::Char('?'), KeyCode::Char('q')],
        );
        assert!(!screen.help && !screen.done, "any key ends the help");
        press(&mut screen, &grid, &[KeyCode::Char('q')]);
        assert!(screen.done);
    }

    #[test]
    fn a_filter_is_typed() {
        let (mut screen, grid) = (Screen::default(), grid(0));
        let typed = [KeyCode::Char('/'), KeyCode::Char('q'), KeyCode::Char('2')];
        press(&mut screen, &grid, &typed);
        assert_eq!(screen.choice.filter, "q2");
        assert!(!screen.done);
        press(&mut screen, &grid, &[KeyCode::Backspace, KeyCode::Enter]);
        assert_eq!(screen.choice.filter, "q");
        press(
            &mut screen,
            &grid,
            &[KeyCode::Char('/'), KeyCode::Char('x'), KeyCode::Esc],
        );
        assert_eq!(screen.choice.filter, "q", "as it was");
        press(&mut screen, &grid, &[KeyCode::Esc]);
        assert_eq!(screen.choice.filter, "");
        screen.key(
            KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL),
            &grid,
        );
        assert!(screen.done);
    }

    #[test]
    fn the_marked_row_stays_in_sight() {
        let (mut screen, grid) = (Screen::default(), grid(10));
        assert_eq!(first(&mut screen, &grid, 4), 0);
        press(&mut screen, &grid, &[KeyCode::End]);
        assert_eq!(first(&mut screen, &grid, 4), 6);
        press(&mut screen, &grid, &[KeyCode::PageUp]);
        assert_eq!(screen.marked.as_deref(), Some("row 5"));
        assert_eq!(first(&mut screen, &grid, 4), 5);
        press(&mut screen, &grid, &[KeyCode::Home, KeyCode::Up]);
        assert_eq!(screen.marked.as_deref(), Some("row 0"));
        assert_eq!(first(&mut screen, &grid, 4), 0);
        // A larger window shows more, and a shorter list is not shown from its middle.
        press(&mut screen, &grid, &[KeyCode::End]);
        first(&mut screen, &grid, 4);
        assert_eq!(first(&mut screen, &grid, 20), 0);
    }

    #[test]
    fn one_proxy_is_chosen_in_their_list() {
        let (mut screen, grid) = (Screen::default(), grid(3));
        press(&mut screen, &grid, &[KeyCode::Enter]);
        assert_eq!(screen.only, None);
        press(&mut screen, &grid, &[KeyCode::Char('3'), KeyCode::Enter]);
        assert_eq!(screen.only, None, "none is marked");
        press(
            &mut screen,
            &grid,
            &[KeyCode::Down, KeyCode::Down, KeyCode::Enter],
        );
        assert_eq!(screen.only.as_deref(), Some("row 1"));
        assert_eq!(screen.choice.tab, Tab::Types);
        press(&mut screen, &grid, &[KeyCode::Esc]);
        assert_eq!(screen.only, None);
    }
}
