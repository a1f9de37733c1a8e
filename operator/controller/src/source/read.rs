//! Reads the policy files of a folder.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind, Read as _};
use std::path::{Path, PathBuf};

use headgate_api::validate::MAX_FILE;

/// The result of reading a folder. It has, for each policy file, by path, the content or the reason
/// why the file can't be read. `Err` is the reason why the folder itself can't be read.
pub type Scan = Result<BTreeMap<PathBuf, Result<Vec<u8>, String>>, String>;

/// Reads all `*.yaml`, `*.yml` and `*.json` files in `dir`, but not in its subfolders. Hidden files
/// are ignored, and so are the hidden folders of a mounted ConfigMap, to which its files are links.
///
/// # Errors
/// Returns the reason why the folder can't be read.
pub fn read_dir(dir: &Path) -> Scan {
    let failed = |e: &io::Error| match e.kind() {
        ErrorKind::NotFound => {
            "no such folder; create it and put AdmissionPolicy files in".to_owned()
        }
        ErrorKind::NotADirectory => "not a folder; name the folder that holds the files".to_owned(),
        _ => format!("can't be read: {e}"),
    };
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(dir).map_err(|e| failed(&e))? {
        let path = entry.map_err(|e| failed(&e))?.path();
        // Besides folders, a named pipe isn't read, because opening it waits for a writer.
        if !is_policy_file(&path) || path.metadata().is_ok_and(|of| !of.is_file()) {
            continue;
        }
        match read_file(&path) {
            Ok(content) => {
                files.insert(path, Ok(content));
            }
            // The file was deleted after the listing. A dangling link is an error.
            Err(e) if e.kind() == ErrorKind::NotFound && path.symlink_metadata().is_err() => {}
            Err(e) => {
                files.insert(path, Err(format!("can't be read: {e}")));
            }
        }
    }
    Ok(files)
}

/// Reads a file, up to one byte more than is allowed, so that the check detects a file that is too
/// large.
///
/// # Errors
/// Returns the errors of opening and reading.
pub fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    let file = fs::File::open(path)?;
    file.take(MAX_FILE as u64 + 1).read_to_end(&mut content)?;
    Ok(content)
}

/// Whether a path names a policy file.
pub fn is_policy_file(path: &Path) -> bool {
    let hidden = path
        .file_name()
        .is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
    let known = |ext: &std::ffi::OsStr| ext == "yaml" || ext == "yml" || ext == "json";
    !hidden && path.extension().is_some_and(known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_policy_files_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for name in [
            "a.yaml", "b.yml", "c.json", "d.txt", ".e.yaml", "f.yaml~", "yaml",
        ] {
            fs::write(at(name), name).unwrap();
        }
        fs::create_dir(at("g.yaml")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(at("i.yaml")).unwrap();
        std::os::unix::fs::symlink("nowhere", at("h.yaml")).unwrap();
        let scan = read_dir(dir.path()).unwrap();
        let names: Vec<_> = scan
            .keys()
            .map(|p| p.file_name().unwrap().to_str().unwrap())
            .collect();
        assert_eq!(names, ["a.yaml", "b.yml", "c.json", "h.yaml"]);
        assert_eq!(scan[&at("b.yml")].as_deref(), Ok(b"b.yml".as_slice()));
        assert!(
            scan[&at("h.yaml")]
                .as_ref()
                .unwrap_err()
                .starts_with("can't be read")
        );
        assert!(
            read_dir(&at("none"))
                .unwrap_err()
                .starts_with("no such folder")
        );
        assert!(
            read_dir(&at("a.yaml"))
                .unwrap_err()
                .starts_with("not a folder")
        );
    }

    #[test]
    fn reading_ends_behind_the_largest_file_allowed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.yaml");
        fs::write(&path, vec![b'#'; 2 * MAX_FILE]).unwrap();
        assert_eq!(read_file(&path).unwrap().len(), MAX_FILE + 1);
    }
}
