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
const POLL: Duration = Duration::from_millis(100);
/// The longest pause between two readings of the folder. A reading may take minutes, because a file
/// server didn't answer.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// The pause after a reading, in multiples of the time that it took. The constants above bound it.
const REST: u32 = 20;
/// The number of unused readings, each different from the one before, after which the next reading
/// is used in any case.
const MOST_CHANGES: u32 = 5;

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
    // The last unused reading, and the number of unused readings in a row.
    let (mut before, mut changes) = (None, 0);
    let mut first = true;
    loop {
        let (path, begun) = (dir.clone(), Instant::now());
        let scan = tokio::task::spawn_blocking(move || read_dir(&path))
            .await
            .with_context(|| format!("reading {} failed", dir.display()))?;
        let pause = (begun.elapsed() * REST).clamp(POLL, LONGEST_PAUSE);
        let begun = Instant::now();
        // Editors and `kubectl cp` write in steps, so a reading is used once it equals the one
        // before. A file that changes all the time must not hold back changes of the others.
        let plan = if first || changes == MOST_CHANGES || before.as_ref() == Some(&scan) {
            (before, changes) = (None, 0);
            folder.update(&dir, scan)
        } else {
            (before, changes) = (Some(scan), changes + 1);
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

#[cfg(test)]
mod tests {
    use std::fs;

    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn a_file_that_always_changes_does_not_withhold_the_others() {
        let dir = tempfile::tempdir().unwrap();
        let always = dir.path().join("always.yaml");
        fs::write(&always, "").unwrap();
        let (plans, mut plan) = watch::channel(Arc::default());
        let (_stop, shutdown) = watch::channel(false);
        let path = dir.path().to_owned();
        let watched = watch(path, plans, shutdown, Metrics::new());
        let changes = async {
            for n in 0.. {
                fs::write(&always, format!("# {n}\n")).unwrap();
                sleep(Duration::from_millis(20)).await;
            }
        };
        let others = async {
            plan.changed().await.unwrap();
            fs::write(dir.path().join("other.yaml"), "{").unwrap();
            let has = |plan: &Arc<Plan>| plan.problems.iter().any(|p| p.source.contains("other"));
            plan.wait_for(has).await.unwrap();
        };
        tokio::select! {
            ended = watched => panic!("{ended:?}"),
            () = changes => panic!("all numbers are written"),
            taken = timeout(Duration::from_secs(60), others) => taken.unwrap(),
        }
    }
}
