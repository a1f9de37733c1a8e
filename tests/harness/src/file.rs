//! Files that another process reads while a test runs.

use std::path::Path;

use anyhow::{Context as _, Result};

/// Replaces a file atomically: writes another file beside it and renames that file. So no reader
/// sees a part of the contents, and Envoy, which watches for renames, reads the file again.
///
/// # Errors
/// If the file can't be written.
pub fn replace(path: &Path, contents: impl AsRef<[u8]>) -> Result<()> {
    let next = path.with_extension("next");
    std::fs::write(&next, contents)
        .and_then(|()| std::fs::rename(&next, path))
        .with_context(|| format!("cannot write {}", path.display()))
}
