//! Atomic replacement of files that other processes may be reading.

use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;
use std::{fs, process};

/// Replaces or creates a file with permissions `mode`. Readers see either the old content or the
/// new content.
///
/// # Errors
/// The folder isn't writable.
pub fn replace(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let partial = path.with_file_name(format!(".{name}.{}", process::id()));
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(mode)
        .open(&partial)?;
    // The permissions are set explicitly, because `open` applies the umask.
    file.set_permissions(fs::Permissions::from_mode(mode))?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(partial, path)
}
