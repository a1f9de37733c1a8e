//! Follows a folder of policy files.
//!
//! The folder is read again and again. The operating system could report changes, but its reports
//! miss some (a link whose target is edited elsewhere, a folder on a network file system, one that
//! is replaced) and arrive while a file is half written. A file that did not change costs a
//! comparison.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use tokio::sync::watch;
use tokio::time::timeout;

use super::folder::Folder;
use super::read::read_dir;
use super::report;
use crate::metrics::Metrics;
use headgate_api::plan::Plan;

/// Time between two readings of the folder.
const POLL: Duration = Duration::from_millis(250);

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
    let mut last = None;
    let mut first = true;
    loop {
        let path = dir.clone();
        let scan = tokio::task::spawn_blocking(move || read_dir(&path))
            .await
            .with_context(|| format!("reading {} failed", dir.display()))?;
        // Editors and `kubectl cp` write in several steps: a change is complete when two readings
        // agree.
        if first || last.as_ref() == Some(&scan) {
            let begun = Instant::now();
            let plan = folder
                .update(&dir, scan)
                .or_else(|| first.then(Plan::default));
            if let Some(plan) = plan {
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
                first = false;
            }
        } else {
            last = Some(scan);
        }
        if { timeout(POLL, shutdown.wait_for(|stop| *stop)).await }.is_ok() {
            return Ok(());
        }
    }
}
