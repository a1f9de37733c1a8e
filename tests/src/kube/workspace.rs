//! The folder of a running Kubernetes, with its keys, data and logs.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::Result;
use tempfile::TempDir;

/// The prefix of the names of the folders of a running Kubernetes.
pub(super) const PREFIX: &str = "headgate-kubernetes-";

/// The name of a file that the process that uses the folder has locked. A process id wouldn't
/// identify this process, because ids differ between PID namespaces.
const LOCK: &str = "lock";

/// A folder that is removed with its owner, unless a test has failed. Its logs are then needed.
#[derive(Debug)]
pub(super) struct Workspace {
    dir: Option<TempDir>,
    path: PathBuf,
    _lock: File,
}

impl Workspace {
    /// Creates a folder with a short path, because the path of a Unix socket has at most 107 bytes.
    pub(super) fn create() -> Result<Self> {
        remove_left_behind();
        let dir = tempfile::Builder::new().prefix(PREFIX).tempdir()?;
        let path = dir.path().canonicalize()?;
        // The file is locked before it gets the name that other processes look for.
        let unnamed = path.join("new-lock");
        let lock = File::create(&unnamed)?;
        lock.lock()?;
        fs::rename(unnamed, path.join(LOCK))?;
        Ok(Self {
            dir: Some(dir),
            path,
            _lock: lock,
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Workspace {
    fn drop(&mut self) {
        let Some(dir) = self.dir.take() else { return };
        if std::thread::panicking() {
            eprintln!("logs and keys are kept in {}", dir.keep().display());
        }
    }
}

/// Removes the folders of earlier processes. A server in a static is never dropped, and a killed
/// test drops nothing. Folders kept for a failed test are removed by the next run, too.
fn remove_left_behind() {
    let Ok(entries) = fs::read_dir(std::env::temp_dir()) else {
        return;
    };
    for entry in entries.flatten() {
        let ours = entry
            .file_name()
            .to_str()
            .is_some_and(|name| name.starts_with(PREFIX));
        if ours
            && let Ok(lock) = File::open(entry.path().join(LOCK))
            && lock.try_lock().is_ok()
        {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}
