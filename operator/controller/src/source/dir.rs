//! Watches a folder of policy files.
//!
//! The folder is read several times a second. Notifications of the operating system would need such
//! readings too: they are lost if a link's target is edited elsewhere, if the queue overflows, if
//! the folder is on a network file system, or if the folder is replaced. An unchanged file costs
//! only a comparison.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use tokio::sync::watch;
use tokio::time::sleep;

use super::folder::Folder;
use super::read::read_dir;
use super::report;
use crate::metrics::Metrics;
use headgate_api::plan::Plan;

/// The shortest pause between two readings of the folder.
const POLL: Duration = Duration::from_millis(200);
/// The shortest pause after a reading, in multiples of the time that it took.
const REST: u32 = 20;

/// Sends a plan after the first reading and after each relevant change, until `shutdown` holds
/// `true` or its sender is dropped. If the folder can't be read, the plan reports that as a
/// problem.
///
/// # Errors
/// Returns an error only if reading panics or the runtime ends.
pub async fn watch(
    dir: PathBuf,
    plans: watch::Sender<Arc<Plan>>,
    mut shutdown: watch::Receiver<bool>,
    metrics: Metrics,
) -> anyhow::Result<()> {
    let mut folder = Folder::default();
    let mut before = None;
    let mut first = true;
    loop {
        let (path, begun) = (dir.clone(), Instant::now());
        let scan = tokio::task::spawn_blocking(move || read_dir(&path))
            .await
            .with_context(|| format!("reading {} failed", dir.display()))?;
        let pause = POLL.max(begun.elapsed() * REST);
        let begun = Instant::now();
        // Editors and `kubectl cp` write in steps, so a change counts once it is read again.
        let plan = if first || before.as_ref() == Some(&scan) {
            folder.update(&dir, scan)
        } else {
            before = Some(scan);
            None
        };
        let plan = plan.or_else(|| first.then(Plan::default));
        if let Some(plan) = plan {
            report::log(&plans.borrow(), &plan);
            // Receivers aren't notified of a change that leaves the plan equal, such as an edit of
            // a comment.
            let changed = plans.send_if_modified(|current| {
                let changed = first || **current != plan;
                if changed {
                    *current = Arc::new(plan);
                }
                changed
            });
            metrics.plan.made(begun.elapsed(), changed);
            first = false;
        }
        tokio::select! {
            _ = shutdown.wait_for(|stop| *stop) => return Ok(()),
            () = sleep(pause) => {}
        }
    }
}
