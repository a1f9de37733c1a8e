//! Draws a grid. Without colours, what matters is told by other means: bold, reversed, words.

use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};

use super::grid::{Grid, Tone};
use super::screen::{HELP, ORDERS, Screen, TABS};
use super::text::summary;
use super::view::{State, View};

/// Between two columns.
const GAP: u16 = 2;
/// Proxies that don't answer are named, this many.
const NAMED: usize = 3;

/// How tones look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Palette {
    /// Whether there are colours: not where `NO_COLOR` is set.
    pub colours: bool,
}

impl Palette {
    /// As the environment wants it: <https://no-color.org>, and `TERM=dumb`.
    #[must_use]
    pub fn of_environment() -> Self {
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|v| v == "dumb");
        Self {
            colours: !no_color && !dumb,
        }
    }

    fn style(self, tone: Tone) -> Style {
        let plain = Style::new();
        let coloured = |colour| match self.colours {
            true => plain.fg(colour),
            false => plain,
        };
        match tone {
            Tone::Plain => plain,
            Tone::Faint => plain.add_modifier(Modifier::DIM),
            Tone::Strong => plain.add_modifier(Modifier::BOLD),
            Tone::Good => coloured(Color::Green),
            Tone::Warning => coloured(Color::Yellow).add_modifier(Modifier::BOLD),
            Tone::Bad => match self.colours {
                true => coloured(Color::Red).add_modifier(Modifier::BOLD),
                false => plain.add_modifier(Modifier::BOLD | Modifier::REVERSED),
            },
        }
    }
}

/// Draws everything.
pub fn draw(
    frame: &mut Frame<'_>,
    view: &View,
    grid: &Grid,
    screen: &mut Screen,
    palette: Palette,
) {
    let area = frame.area();
    let buffer = frame.buffer_mut();
    let mut pen = Pen {
        buffer,
        area,
        palette,
    };
    let mut y = pen.heads(view, screen);
    if screen.help {
        pen.help(y + 1);
    } else {
        y = pen.unreachable(view, y);
        pen.table(grid, screen, y);
    }
    pen.foot(screen);
}

/// Writes into a buffer, within an area.
struct Pen<'a> {
    buffer: &'a mut Buffer,
    area: Rect,
    palette: Palette,
}

impl Pen<'_> {
    /// Writes at a place, and says where the text ends. What lies outside is left out.
    fn put(&mut self, x: u16, y: u16, text: &str, style: Style) -> u16 {
        let Rect { width, height, .. } = self.area;
        if y >= height || x >= width {
            return x;
        }
        let room = usize::from(width - x);
        let (left, top) = (self.area.x + x, self.area.y + y);
        let (end, _) = self.buffer.set_stringn(left, top, text, room, style);
        end - self.area.x
    }

    fn say(&mut self, x: u16, y: u16, text: &str, tone: Tone) -> u16 {
        let style = self.palette.style(tone);
        self.put(x, y, text, style)
    }

    fn reverse(&mut self, y: u16) {
        let row = Rect {
            y: self.area.y + y,
            height: 1,
            ..self.area
        };
        if y < self.area.height {
            let style = Style::new().add_modifier(Modifier::REVERSED);
            self.buffer.set_style(row, style);
        }
    }

    fn heads(&mut self, view: &View, screen: &Screen) -> u16 {
        let x = self.say(0, 0, "headgate top", Tone::Strong);
        let tone = match view.unreachable() {
            0 => Tone::Plain,
            _ => Tone::Bad,
        };
        let x = match (view.proxies.is_empty(), view.policies.is_empty()) {
            (true, _) => self.say(x + 2, 0, "no proxies", Tone::Warning),
            (false, true) if tone == Tone::Plain => {
                self.say(x + 2, 0, "no policy is in force", Tone::Plain)
            }
            _ => self.say(x + 2, 0, &summary(view), tone),
        };
        if screen.paused {
            self.say(x + 2, 0, &format!("PAUSED at {}", view.time), Tone::Warning);
        }
        let mut x = 0;
        for (at, (tab, name)) in TABS.iter().enumerate() {
            let style = match *tab == screen.choice.tab {
                true => Style::new().add_modifier(Modifier::BOLD | Modifier::UNDERLINED),
                false => Style::new(),
            };
            x = self.put(x, 1, &format!("{} {name}", at + 1), style) + 2;
        }
        let order = ORDERS.iter().find(|o| o.0 == screen.choice.order);
        let order = order.map_or("", |o| o.1);
        let last = if screen.choice.reversed {
            " last"
        } else {
            " first"
        };
        x = self.say(x + 1, 1, &format!("{order}{last}"), Tone::Faint) + 2;
        if let Some(only) = &screen.only {
            x = self.say(x, 1, &format!("only {only}"), Tone::Warning) + 2;
        }
        if !screen.choice.filter.is_empty() {
            self.say(x, 1, &format!("/{}", screen.choice.filter), Tone::Warning);
        }
        2
    }

    /// Proxies that don't answer are told on every tab: what is shown is without them.
    fn unreachable(&mut self, view: &View, mut y: u16) -> u16 {
        let silent: Vec<_> = view
            .proxies
            .iter()
            .filter(|p| p.state == State::Unreachable)
            .collect();
        for proxy in silent.iter().take(NAMED) {
            let why = proxy.problem.as_deref().unwrap_or_default();
            let text = format!(
                "! {}: {why} (for {:.0} s)",
                proxy.proxy,
                proxy.silent_seconds.unwrap_or(0.0)
            );
            self.say(0, y, &text, Tone::Bad);
            y += 1;
        }
        if silent.len() > NAMED {
            let text = format!("! and {} more; 3 shows all proxies", silent.len() - NAMED);
            self.say(0, y, &text, Tone::Bad);
            y += 1;
        }
        y
    }

    fn table(&mut self, grid: &Grid, screen: &mut Screen, head: u16) {
        let columns = grid.fit(usize::from(self.area.width), usize::from(GAP));
        let room = self.area.height.saturating_sub(head + 2);
        let first = screen.scroll(grid, usize::from(room));
        let marked = screen.marked_row(grid);
        let mut x = 0;
        for &(at, width) in &columns {
            let column = grid.columns[at];
            let width = u16::try_from(width).unwrap_or(u16::MAX);
            let start = match column.right {
                true => x + width.saturating_sub(column.head.len() as u16),
                false => x,
            };
            self.say(start, head, column.head, Tone::Strong);
            x = x.saturating_add(width).saturating_add(GAP);
        }
        self.reverse(head);
        if grid.rows.is_empty() {
            self.say(0, head + 1, "nothing to show", Tone::Faint);
        }
        let rows = grid.rows.iter().enumerate().skip(first);
        for (line, (number, row)) in rows.take(usize::from(room)).enumerate() {
            let y = head + 1 + u16::try_from(line).unwrap_or(u16::MAX);
            let mut x = 0;
            for &(at, width) in &columns {
                let cell = &row.cells[at];
                let length = cell.text.chars().count().min(width);
                let width = u16::try_from(width).unwrap_or(u16::MAX);
                let start = match grid.columns[at].right {
                    true => x + width.saturating_sub(length as u16),
                    false => x,
                };
                self.say(start, y, &cell.text, cell.tone);
                x = x.saturating_add(width).saturating_add(GAP);
            }
            if marked == Some(number) {
                self.reverse(y);
            }
        }
    }

    fn help(&mut self, y: u16) {
        for (line, (keys, what)) in (y..).zip(HELP) {
            self.say(2, line, keys, Tone::Strong);
            self.say(20, line, what, Tone::Plain);
        }
    }

    fn foot(&mut self, screen: &Screen) {
        let Some(y) = self.area.height.checked_sub(1).filter(|y| *y > 2) else {
            return;
        };
        if screen.typing.is_some() {
            let x = self.say(0, y, "names with: ", Tone::Strong);
            let x = self.say(x, y, &screen.choice.filter, Tone::Plain);
            self.put(x, y, " ", Style::new().add_modifier(Modifier::REVERSED));
            return;
        }
        let keys = match screen.help {
            true => "any key goes back",
            false => "q quit  ? help  1-3 view  s sort  r reverse  / filter  p pause",
        };
        self.say(0, y, keys, Tone::Faint);
    }
}

#[cfg(test)]
mod tests;
