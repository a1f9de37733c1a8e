//! The terminal: keys, changes of the fleet and drawing, in turns.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use anyhow::Context as _;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use tokio::runtime::Handle;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch::Receiver;

use super::fleet::Fleet;
use super::grid::{Choice, Grid};
use super::render;
use super::screen::Screen;
use super::view::View;

/// Time between two checks for keys, and the shortest between two drawings.
const TURN: Duration = Duration::from_millis(100);

/// Shows the fleet until the user quits.
///
/// # Errors
/// Returns an error if the terminal can't be used, or is closed.
pub fn run(
    fleet: Receiver<Fleet>,
    runtime: &Handle,
    choice: &Choice,
    interval: Duration,
) -> anyhow::Result<()> {
    // A signal must not leave the terminal in raw mode.
    let ended = Arc::new(AtomicBool::new(false));
    runtime.spawn(wait_for_the_end(Arc::clone(&ended)));
    let mut terminal = ratatui::try_init().context("this terminal can't be used")?;
    let screen = Screen {
        choice: choice.clone(),
        ..Screen::default()
    };
    let mut live = Live {
        fleet,
        screen,
        view: View::default(),
        colours: render::colours_of_environment(),
    };
    let shown = live.turn(&mut terminal, &ended, interval.min(Duration::from_secs(1)));
    let restored = ratatui::try_restore().context("the terminal could not be put back");
    shown.and(restored)
}

async fn wait_for_the_end(ended: Arc<AtomicBool>) {
    let (Ok(mut terminate), Ok(mut hang_up)) = (
        signal(SignalKind::terminate()),
        signal(SignalKind::hangup()),
    ) else {
        return;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = hang_up.recv() => {}
    }
    ended.store(true, Ordering::Relaxed);
}

struct Live {
    fleet: Receiver<Fleet>,
    screen: Screen,
    view: View,
    colours: bool,
}

impl Live {
    fn turn(
        &mut self,
        terminal: &mut DefaultTerminal,
        ended: &AtomicBool,
        longest: Duration,
    ) -> anyhow::Result<()> {
        let mut drawn: Option<Instant> = None;
        while !self.screen.done && !ended.load(Ordering::Relaxed) {
            let mut stale = self.fleet.has_changed().unwrap_or(false);
            self.fleet.mark_unchanged();
            // The time of silence grows without responses.
            stale |= drawn.is_none_or(|at| at.elapsed() >= longest);
            if stale && !self.screen.paused {
                self.look();
            }
            let grid = Grid::new(&self.view, &self.screen.choice);
            if stale {
                self.draw(terminal, &grid)?;
                drawn = Some(Instant::now());
            }
            if self.keys(&grid)? {
                drawn = None;
            }
        }
        Ok(())
    }

    fn look(&mut self) {
        let only = self.screen.only.as_deref();
        let fleet = self.fleet.borrow();
        self.view = View::new(&fleet, only, Instant::now(), SystemTime::now());
    }

    fn draw(&mut self, terminal: &mut DefaultTerminal, grid: &Grid) -> anyhow::Result<()> {
        let (view, screen, colours) = (&self.view, &mut self.screen, self.colours);
        terminal
            .draw(|frame| render::draw(frame, view, grid, screen, colours))
            .context("drawing failed")?;
        Ok(())
    }

    /// Waits a turn for a key; whether the screen has to be drawn. One key at a time, as the next
    /// one applies to the screen that this one leaves.
    fn keys(&mut self, grid: &Grid) -> anyhow::Result<bool> {
        if !event::poll(TURN).context("the terminal is gone")? {
            return Ok(false);
        }
        match event::read().context("the terminal is gone")? {
            Event::Key(key) if key.kind != KeyEventKind::Release => {
                let only = self.screen.only.clone();
                self.screen.key(key, grid);
                if only != self.screen.only && self.screen.paused {
                    self.look();
                }
                Ok(true)
            }
            Event::Resize(..) => Ok(true),
            _ => Ok(false),
        }
    }
}
