//! Watches a folder of policy files.
//!
//! The operating system reports changes, and the folder is read after each report. The watch starts
//! before the first reading, so no change is missed. Events may be lost if a link's target is
//! edited elsewhere, if the queue overflows, if the folder is on a network file system, or if the
//! folder is replaced. So the folder is also read every few seconds. An unchanged file costs only a
//! comparison.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use notify::event::{AccessKind, AccessMode};
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::{Notify, watch};
use tokio::time::timeout;
use tracing::warn;

use super::folder::Folder;
use super::read::read_dir;
use super::report;
use crate::metrics::Metrics;
use headgate_api::plan::Plan;

/// The longest time between two readings of the folder.
const REREAD: Duration = Duration::from_secs(2);
/// The time without an event after which a change counts as complete. Editors and `kubectl cp`
/// write in several steps.
const QUIET: Duration = Duration::from_millis(5);
/// The longest wait for a change to complete, in multiples of [`QUIET`].
const MAX_STEPS: usize = 20;

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
    let mut changes = Changes::new(dir.clone());
    let mut first = true;
    loop {
        changes.arm();
        let path = dir.clone();
        let scan = tokio::task::spawn_blocking(move || read_dir(&path))
            .await
            .with_context(|| format!("reading {} failed", dir.display()))?;
        let begun = Instant::now();
        let plan = folder
            .update(&dir, scan)
            .or_else(|| first.then(Plan::default));
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
            _ = timeout(REREAD, changes.next()) => {}
        }
    }
}

/// Waits for changes of the folder.
struct Changes {
    dir: PathBuf,
    happened: Arc<Notify>,
    /// The watcher, and the folder that existed when it was set.
    watcher: Option<(RecommendedWatcher, Option<FolderId>)>,
    /// Whether the watch is failing, so that a failure is logged once.
    failed: bool,
}

/// Device and inode. They differ for a folder that was replaced.
type FolderId = (u64, u64);

impl Changes {
    fn new(dir: PathBuf) -> Self {
        // The watcher reports absolute paths.
        let dir = std::path::absolute(&dir).unwrap_or(dir);
        Self {
            dir,
            happened: Arc::new(Notify::new()),
            watcher: None,
            failed: false,
        }
    }

    /// Starts to watch the folder, unless it is already watched. While the folder doesn't exist,
    /// watches only its parent.
    fn arm(&mut self) {
        let id = fs::metadata(&self.dir).map(|m| (m.dev(), m.ino())).ok();
        if self
            .watcher
            .as_ref()
            .is_some_and(|(_, watched)| *watched == id)
        {
            return;
        }
        self.watcher = None;
        match self.start(id.is_some()) {
            Ok(watcher) => {
                self.watcher = Some((watcher, id));
                self.failed = false;
            }
            Err(error) if !self.failed => {
                let seconds = REREAD.as_secs();
                let dir = self.dir.display();
                warn!("can't watch {dir}: {error}; reading it every {seconds} s");
                self.failed = true;
            }
            Err(_) => {}
        }
    }

    fn start(&self, exists: bool) -> notify::Result<RecommendedWatcher> {
        let (happened, dir) = (Arc::clone(&self.happened), self.dir.clone());
        let mut watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
            if event.is_ok_and(|event| concerns(&event, &dir)) {
                happened.notify_one();
            }
        })?;
        if exists {
            watcher.watch(&self.dir, RecursiveMode::NonRecursive)?;
        }
        // The parent is watched to detect immediately that the folder was created, deleted or
        // replaced. The parent may be missing or unreadable.
        if let Some(parent) = self.dir.parent() {
            let _ = watcher.watch(parent, RecursiveMode::NonRecursive);
        }
        Ok(watcher)
    }

    /// Waits until a change is complete.
    async fn next(&self) {
        self.happened.notified().await;
        for _ in 0..MAX_STEPS {
            if timeout(QUIET, self.happened.notified()).await.is_err() {
                return;
            }
        }
    }
}

/// Whether `event` is a change of the folder or of a file directly in it. Reading files causes
/// events too, which must not trigger another reading.
fn concerns(event: &Event, dir: &Path) -> bool {
    let changes = match event.kind {
        EventKind::Access(kind) => kind == AccessKind::Close(AccessMode::Write),
        _ => true,
    };
    let here = |path: &PathBuf| path == dir || path.parent() == Some(dir);
    changes && (event.paths.is_empty() || event.paths.iter().any(here))
}
