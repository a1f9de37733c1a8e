//! Follows a folder of policy files.
//!
//! The folder is read several times a second rather than watched: reading some files costs nothing,
//! and it also sees a link whose target is edited elsewhere, a folder on a network file system, and
//! a folder that is replaced. Editors and `kubectl cp` write in several steps, so a change counts
//! once two readings agree.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use tokio::sync::watch;
use tokio::time::sleep;

use super::folder::Folder;
use super::read::{Scan, read_dir};
use super::report;
use crate::metrics::Metrics;
use headgate_api::plan::Plan;

/// Time between two readings.
const POLL: Duration = Duration::from_millis(100);

/// Sends a plan after the first reading, and then one for each change that matters, until
/// `shutdown` holds `true` or its sender is dropped. A folder that can't be read is a problem of
/// the plan.
///
/// # Errors
/// Only when reading panics or the runtime ends.
pub async fn watch(
    dir: PathBuf,
    plans: watch::Sender<Arc<Plan>>,
    mut shutdown: watch::Receiver<bool>,
    metrics: Metrics,
) -> anyhow::Result<()> {
    let mut folder = Folder::default();
    let mut before: Option<Scan> = None;
    loop {
        let path = dir.clone();
        let scan = tokio::task::spawn_blocking(move || read_dir(&path))
            .await
            .with_context(|| format!("reading {} failed", dir.display()))?;
        let first = before.is_none();
        let begun = Instant::now();
        let plan = match first || before.as_ref() == Some(&scan) {
            true => folder.update(&dir, &scan),
            false => None,
        };
        before = Some(scan);
        if let Some(plan) = plan.or_else(|| first.then(Plan::default)) {
            report::log(&plans.borrow(), &plan);
            // An edit of a comment changes no plan and wakes no receiver.
            let changed = plans.send_if_modified(|current| {
                let changed = first || **current != plan;
                if changed {
                    *current = Arc::new(plan);
                }
                changed
            });
            metrics.plan.made(begun.elapsed(), changed);
        }
        tokio::select! {
            _ = shutdown.wait_for(|stop| *stop) => return Ok(()),
            () = sleep(POLL) => {}
        }
    }
}
