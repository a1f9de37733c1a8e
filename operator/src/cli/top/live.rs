//! The terminal: keys, news of proxies and drawing, in turns.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use anyhow::Context as _;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use tokio::runtime::Handle;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::UnboundedReceiver;

use super::fleet::{Fleet, News};
use super::grid::{Choice, Grid};
use super::render::{self, Palette};
use super::screen::Screen;
use super::view::View;

/// Time between two looks at keys, and the shortest between two drawings.
const TURN: Duration = Duration::from_millis(100);

/// Shows what the news say, until somebody quits.
///
/// # Errors
/// The terminal can't be used, or is gone.
pub fn run(
    fleet: Fleet,
    news: UnboundedReceiver<News>,
    runtime: &Handle,
    choice: &Choice,
    interval: Duration,
) -> anyhow::Result<()> {
    // A signal must not leave the terminal in the state that we put it into.
    let ended = Arc::new(AtomicBool::new(false));
    runtime.spawn(wait_for_the_end(Arc::clone(&ended)));
    let mut terminal = ratatui::try_init().context("this terminal can't be used")?;
    let screen = Screen {
        choice: choice.clone(),
        ..Screen::default()
    };
    let mut live = Live {
        fleet,
        news,
        screen,
        view: View::default(),
        palette: Palette::of_environment(),
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
    fleet: Fleet,
    news: UnboundedReceiver<News>,
    screen: Screen,
    view: View,
    palette: Palette,
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
            let mut stale = self.listen();
            // How long a proxy has been silent changes by itself.
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

    /// Takes what has come.
    fn listen(&mut self) -> bool {
        let mut heard = false;
        while let Ok(news) = self.news.try_recv() {
            self.fleet.hear(news);
            heard = true;
        }
        heard
    }

    fn look(&mut self) {
        let only = self.screen.only.as_deref();
        self.view = View::new(&self.fleet, only, Instant::now(), SystemTime::now());
    }

    fn draw(&mut self, terminal: &mut DefaultTerminal, grid: &Grid) -> anyhow::Result<()> {
        let Self {
            view,
            screen,
            palette,
            ..
        } = self;
        terminal
            .draw(|frame| render::draw(frame, view, grid, screen, *palette))
            .context("drawing failed")?;
        Ok(())
    }

    /// Waits a turn for a key, and says whether there is something to draw. One at a time: the next one is about what
    /// this one makes of the screen.
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
