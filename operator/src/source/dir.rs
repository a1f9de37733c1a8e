//! Follows a folder of policy files.
//!
//! The operating system tells of changes; what counts is always what is read next. Reading starts after
//! the watch is set, so nothing falls between. Events may be lost (a link whose target is edited
//! elsewhere, an overflowing queue, a folder on a network file system, a folder that is replaced), so the
//! folder is also read every few seconds; files that did not change cost a hash.

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
use crate::plan::Plan;

/// How long the folder is left unread when no event comes.
const REREAD: Duration = Duration::from_secs(2);
/// A change is over when nothing happened for this long; editors and `kubectl cp` write in several steps.
const QUIET: Duration = Duration::from_millis(5);
/// Longest wait for a change to be over, in multiples of [`QUIET`].
const MAX_STEPS: usize = 20;

/// Sends a plan after the first reading, and then one for each change that matters, until `shutdown`
/// holds `true` or its sender is gone. A folder that can't be read is a problem of the plan.
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
            // An edit of a comment changes no plan and wakes nobody.
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

/// Tells when the folder may have changed.
struct Changes {
    dir: PathBuf,
    happened: Arc<Notify>,
    /// The watcher, and the folder that was there when it was set.
    watcher: Option<(RecommendedWatcher, Option<FolderId>)>,
    /// So that a failing watch is logged once.
    failed: bool,
}

/// Device and inode: a folder that was replaced has another one.
type FolderId = (u64, u64);

impl Changes {
    fn new(dir: PathBuf) -> Self {
        // The watcher names absolute paths.
        let dir = std::path::absolute(&dir).unwrap_or(dir);
        Self {
            dir,
            happened: Arc::new(Notify::new()),
            watcher: None,
            failed: false,
        }
    }

    /// Watches the folder, unless it is watched already; while there is none, its parent.
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
        // Of the parent only to learn at once that the folder came, went or was replaced; it may be
        // missing or unreadable.
        if let Some(parent) = self.dir.parent() {
            let _ = watcher.watch(parent, RecursiveMode::NonRecursive);
        }
        Ok(watcher)
    }

    /// Waits until something changed and the change is over.
    async fn next(&self) {
        self.happened.notified().await;
        for _ in 0..MAX_STEPS {
            if timeout(QUIET, self.happened.notified()).await.is_err() {
                return;
            }
        }
    }
}

/// Whether `event` tells of a change of the folder or of a file right in it. Reading files makes events,
/// too; those must not make us read again.
fn concerns(event: &Event, dir: &Path) -> bool {
    let changes = match event.kind {
        EventKind::Access(kind) => kind == AccessKind::Close(AccessMode::Write),
        _ => true,
    };
    let here = |path: &PathBuf| path == dir || path.parent() == Some(dir);
    changes && (event.paths.is_empty() || event.paths.iter().any(here))
}
