//! The loop of the terminal, which handles input and draws.

use std::io;
use std::time::Duration;

use anyhow::Context as _;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::spawn_blocking;

use crate::fleet::Fleet;
use crate::screen::Screen;
use crate::table::Choice;

/// The longest time between two redraws.
const TURN: Duration = Duration::from_millis(500);

/// Shows the fleet until the user quits.
///
/// # Errors
/// Returns an error if the terminal can't be used or has been closed.
pub(crate) async fn run(fleet: watch::Receiver<Fleet>, choice: Choice) -> anyhow::Result<()> {
    let mut terminal = ratatui::try_init().context("this terminal can't be used")?;
    let shown = show(&mut terminal, &fleet, Screen::new(choice)).await;
    let restored = ratatui::try_restore().context("the terminal could not be restored");
    shown.and(restored)
}

async fn show(
    terminal: &mut DefaultTerminal,
    fleet: &watch::Receiver<Fleet>,
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
            event = spawn_blocking(next) => event?,
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
fn next() -> io::Result<Option<Event>> {
    event::poll(TURN)?.then(event::read).transpose()
}
