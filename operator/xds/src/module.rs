//! The filter module on disk, stored under a content-addressed name.
//!
//! Envoy caches code by file name and ignores new content under an old name. So the module is
//! copied to `headgate-<hash>.wasm` (or `.so`), with the first 16 hex digits of its SHA-256, and
//! proxies get the new name when the source file is replaced. A copy is complete before its name
//! exists.
//!
//! Operators may share a folder. Each marks the copies that it serves as used, by their
//! modification time, and removes copies that no operator has served for a day. Until then, proxies
//! that are slow to follow can load them. `headgate bootstrap` removes none, because running Envoys
//! may still use the paths of earlier bootstraps.
//!
//! A ConfigMap can't name the module of each Pod that mounts it. Beside its copies, `headgate
//! bootstrap` makes a link of a fixed name, which in each Pod leads to the Pod's own module.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::anyhow;
use clap::ValueEnum;
use serde::Serialize;
use tokio::sync::watch;
use tracing::{info, warn};

use crate::digest::sha256;
use crate::files::replace;

/// The largest module accepted, in bytes.
const MAX_BYTES: u64 = 64 << 20;
/// The time for which a copy that is no longer served is kept.
const KEEP_OLD: Duration = Duration::from_secs(24 * 3_600);
/// The interval at which the copies that are served are marked as used, well below [`KEEP_OLD`].
const MARK_USED: Duration = Duration::from_secs(3_600);
/// The interval at which the source file is checked.
const POLL: Duration = Duration::from_millis(500);
/// The number of hex digits of the SHA-256 in a copy's name.
const HASH: usize = 16;
/// The prefix of every ELF file, such as a dynamic module of Envoy.
const ELF: [u8; 4] = *b"\x7fELF";
/// The prefix of every WebAssembly binary: magic number and version 1.
const PREAMBLE: [u8; 8] = *b"\0asm\x01\0\0\0";

/// The form of the filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A WebAssembly module: one engine for each worker thread of a proxy.
    #[default]
    Wasm,
    /// A dynamic module of Envoy (a shared object): one engine for all worker threads, with less
    /// overhead.
    Native,
}

impl Kind {
    /// Returns the kind of a module file, by its name.
    pub fn of(path: &Path) -> Self {
        match path.extension() {
            Some(extension) if extension == Self::Native.extension() => Self::Native,
            _ => Self::Wasm,
        }
    }

    /// Returns the kind's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Wasm => "wasm",
            Self::Native => "native",
        }
    }

    /// Returns the extension of the kind's files.
    #[must_use]
    pub fn extension(self) -> &'static str {
        match self {
            Self::Wasm => "wasm",
            Self::Native => "so",
        }
    }
}

/// A module that proxies can load.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Module {
    /// The absolute path of the content-addressed copy.
    pub path: PathBuf,
    /// The first 64 bits of the module's SHA-256, in hex.
    pub hash: String,
    /// The module's whole SHA-256, in hex.
    pub sha256: String,
    /// The size in bytes.
    pub bytes: u64,
    /// The processor architecture of a native module, as in [`std::env::consts::ARCH`]. `None` if
    /// the module runs on any architecture, or if the name of its architecture isn't known.
    pub architecture: Option<&'static str>,
}

/// The modules that proxies load.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Modules {
    /// The module of every proxy that doesn't request a native filter, or can't load one.
    pub wasm: Module,
    /// The module of proxies that request a native filter, if there is one.
    pub native: Option<Module>,
}

/// Returns the default folder of copies: `$XDG_STATE_HOME/headgate/modules`, usually
/// `~/.local/state/headgate/modules`, else a folder in the system's temporary one.
pub fn default_folder() -> PathBuf {
    let set = |name: &str| {
        std::env::var_os(name)
            .filter(|v| !v.is_empty())
            .map(PathBuf::from)
    };
    set("XDG_STATE_HOME")
        .or_else(|| set("HOME").map(|home| home.join(".local/state")))
        .unwrap_or_else(std::env::temp_dir)
        .join("headgate/modules")
}

impl From<Module> for Modules {
    fn from(wasm: Module) -> Self {
        Self { wasm, native: None }
    }
}

impl Modules {
    /// Returns an iterator over the modules.
    pub fn iter(&self) -> impl Iterator<Item = &Module> {
        [&self.wasm].into_iter().chain(&self.native)
    }

    /// Marks these copies as used at `now`, and removes copies in their folders that have been
    /// unused for a day. A failed removal has no effect except that the file stays.
    pub fn keep(&self, now: SystemTime) {
        for module in self.iter() {
            mark_used(&module.path, now);
        }
        let folders: BTreeSet<&Path> = self.iter().filter_map(|m| m.path.parent()).collect();
        for folder in folders {
            self.prune(folder, now);
        }
    }

    fn prune(&self, folder: &Path, now: SystemTime) {
        let Ok(entries) = fs::read_dir(folder) else {
            return;
        };
        for entry in entries.flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            let name = name.to_string_lossy();
            let is_copy = name.trim_start_matches('.').starts_with("headgate-");
            let is_old = entry
                .metadata()
                .and_then(|m| m.modified())
                .is_ok_and(|at| now.duration_since(at).unwrap_or_default() > KEEP_OLD);
            // Marking fails for a copy of another user.
            let is_served = self.iter().any(|module| module.path == path);
            if is_copy && is_old && !is_served {
                let _ = fs::remove_file(path);
            }
        }
    }

    /// Replaces the module of the same kind by `module`. Returns whether they differ.
    fn replace(&mut self, module: Module) -> bool {
        let known = match module.kind() {
            Kind::Wasm => &mut self.wasm,
            Kind::Native => self.native.get_or_insert_default(),
        };
        let is_new = *known != module;
        *known = module;
        is_new
    }
}

impl Module {
    /// Returns the kind of the module.
    pub fn kind(&self) -> Kind {
        Kind::of(&self.path)
    }

    /// Copies `source` into `folder` under its content's name, unless that copy exists already.
    ///
    /// # Errors
    /// Returns one line that names the file or the folder, and the remedy. A truncated module is
    /// refused, for example because the file is still being written.
    pub fn install(source: &Path, folder: &Path) -> anyhow::Result<Self> {
        let file = format!("filter module {}", source.display());
        let unreadable = |e: io::Error| match e.kind() {
            io::ErrorKind::NotFound => anyhow!(
                "{file} does not exist; build it with scripts/build, or name it with --wasm PATH"
            ),
            _ => anyhow!("{file}: {e}"),
        };
        let invalid = |why| {
            anyhow!(
                "{file} is neither a WebAssembly module nor a shared object: {why}; build it with \
                 scripts/build"
            )
        };
        if fs::metadata(source).map_err(unreadable)?.len() > MAX_BYTES {
            return Err(invalid("larger than 64 MiB"));
        }
        let code = fs::read(source).map_err(unreadable)?;
        check(&code).map_err(invalid)?;
        let sha256 = sha256(&code);
        let hash = sha256[..HASH].to_owned();
        let path = store(&code, &hash, folder).map_err(|e| {
            let folder = folder.display();
            anyhow!(
                "module folder {folder}: {e}; name a folder that can be written with --module-dir DIR"
            )
        })?;
        Ok(Self {
            path,
            hash,
            sha256,
            bytes: code.len() as u64,
            architecture: architecture(&code),
        })
    }

    /// Makes or replaces the link beside the copy, such as `headgate.wasm`. A file of that name
    /// stays, because it may be the source.
    ///
    /// # Errors
    /// The folder isn't writable.
    pub fn link(&self) -> io::Result<()> {
        let name = format!("headgate.{}", self.kind().extension());
        let link = self.path.with_file_name(&name);
        let copy = self.path.file_name().unwrap_or_default();
        match fs::read_link(&link) {
            Ok(linked) if linked == copy => return Ok(()),
            // Not a link.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => return Ok(()),
            _ => {}
        }
        let partial = self
            .path
            .with_file_name(format!(".{name}.{}", process::id()));
        // A process with the same id may have ended before the rename.
        let _ = fs::remove_file(&partial);
        symlink(copy, &partial)?;
        fs::rename(partial, link)
    }
}

/// Writes the copy, unless it exists, and returns its path. An existing copy is marked as used.
fn store(code: &[u8], hash: &str, folder: &Path) -> io::Result<PathBuf> {
    fs::create_dir_all(folder)?;
    let folder = folder.canonicalize()?;
    let kind = match code.starts_with(&ELF) {
        true => Kind::Native,
        false => Kind::Wasm,
    };
    let path = folder.join(format!("headgate-{hash}.{}", kind.extension()));
    if fs::read(&path).is_ok_and(|old| old == code) {
        mark_used(&path, SystemTime::now());
        return Ok(path);
    }
    // The copy is readable for all users, because Envoy often runs as another user.
    replace(&path, code, 0o644)?;
    Ok(path)
}

/// Sets the modification time of a copy. A failure means that other operators may remove the copy
/// earlier.
fn mark_used(copy: &Path, now: SystemTime) {
    let file = fs::File::options().append(true).open(copy);
    let _ = file.and_then(|file| file.set_modified(now));
}

/// Returns the processor architecture of a shared object (ELF, `e_machine`).
fn architecture(code: &[u8]) -> Option<&'static str> {
    match (code.starts_with(&ELF), code.get(18..20)?) {
        (true, [0x3e, 0]) => Some("x86_64"),
        (true, [0xb7, 0]) => Some("aarch64"),
        _ => None,
    }
}

/// Checks the outline of a WebAssembly binary, which is a preamble and sections whose sizes add up
/// to the end. Shared objects aren't checked, because their tables are at the end. So a proxy
/// refuses a truncated shared object and keeps its present module.
fn check(code: &[u8]) -> Result<(), &'static str> {
    if code.starts_with(&ELF) {
        return Ok(());
    }
    let Some(mut rest) = code.strip_prefix(&PREAMBLE) else {
        return Err("it does not start with the WebAssembly magic number and version 1");
    };
    while let Some((_, after_id)) = rest.split_first() {
        rest = leb128(after_id)
            .and_then(|(size, content)| content.get(size..))
            .ok_or("it is cut short")?;
    }
    Ok(())
}

/// Returns an unsigned LEB128 number of at most 32 bits, and the bytes that follow it.
fn leb128(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let mut value = 0_u64;
    for (i, byte) in bytes.iter().take(5).enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * i);
        if byte & 0x80 == 0 {
            return Some((usize::try_from(value).ok()?, &bytes[i + 1..]));
        }
    }
    None
}

/// Publishes new [`Modules`] whenever `source`, the module file of this kind, is replaced, until
/// all receivers are dropped.
///
/// The file is read once it is unchanged in two consecutive checks, because the size of a copy in
/// progress changes. A file that isn't a module of this kind is logged once and otherwise ignored.
pub async fn watch(
    kind: Kind,
    source: PathBuf,
    folder: PathBuf,
    modules: watch::Sender<Arc<Modules>>,
) {
    let mut settled = stamp(&source);
    let mut before = settled;
    let mut tick = tokio::time::interval(POLL);
    loop {
        tokio::select! {
            _ = tick.tick() => {}
            () = modules.closed() => return,
        }
        let now = stamp(&source);
        let changed = now != settled && now == before;
        before = now;
        if !changed || now.is_none() {
            continue;
        }
        settled = now;
        let (from, to) = (source.clone(), folder.clone());
        match tokio::task::spawn_blocking(move || Module::install(&from, &to)).await {
            Ok(Ok(module)) if module.kind() != kind => {
                let (source, kind) = (source.display(), kind.name());
                warn!("filter module {source}: not {kind}; proxies keep the module they have");
            }
            Ok(Ok(module)) => {
                let path = module.path.clone();
                if modules.send_if_modified(|known| Arc::make_mut(known).replace(module)) {
                    info!(
                        module = %path.display(),
                        "the filter module was replaced; proxies get the new one"
                    );
                }
            }
            Ok(Err(error)) => warn!("{error}; proxies keep the module they have"),
            Err(error) => warn!("reading the filter module failed: {error}"),
        }
    }
}

/// Calls [`Modules::keep`] now and every hour, until it is dropped.
pub async fn keep(modules: watch::Receiver<Arc<Modules>>) {
    let mut tick = tokio::time::interval(MARK_USED);
    loop {
        tick.tick().await;
        let served = Arc::clone(&modules.borrow());
        served.keep(SystemTime::now());
    }
}

/// Returns the modification time and the size, which change when a file is replaced.
fn stamp(path: &Path) -> Option<(SystemTime, u64)> {
    let metadata = fs::metadata(path).ok()?;
    Some((metadata.modified().ok()?, metadata.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a module of one custom section with this content.
    fn module(content: &[u8]) -> Vec<u8> {
        let mut code = PREAMBLE.to_vec();
        code.extend([0, u8::try_from(content.len() + 2).unwrap(), 1, b'x']);
        code.extend(content);
        code
    }

    #[test]
    fn the_link_follows_the_module_and_replaces_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let (source, folder) = (dir.path().join("headgate.wasm"), dir.path().join("modules"));
        for content in [b"one", b"two"] {
            fs::write(&source, module(content)).unwrap();
            let copy = Module::install(&source, &folder).unwrap();
            copy.link().unwrap();
            let target = fs::read_link(folder.join("headgate.wasm")).unwrap();
            assert_eq!(Some(target.as_os_str()), copy.path.file_name());
        }
        Module::install(&source, dir.path())
            .unwrap()
            .link()
            .unwrap();
        assert!(!source.is_symlink());
    }

    #[test]
    fn copies_are_named_by_content() {
        let dir = tempfile::tempdir().unwrap();
        let (source, folder) = (dir.path().join("f.wasm"), dir.path().join("modules"));
        fs::write(&source, module(b"one")).unwrap();
        let one = Module::install(&source, &folder).unwrap();
        assert_eq!(one, Module::install(&source, &folder).unwrap());
        fs::write(&source, module(b"two")).unwrap();
        let two = Module::install(&source, &folder).unwrap();
        assert_ne!(one.path, two.path);
        assert_eq!(
            fs::read(&one.path).unwrap(),
            module(b"one"),
            "the old copy stays for a while"
        );
        assert_eq!(fs::read(&two.path).unwrap(), module(b"two"));
        assert_eq!(
            fs::read_dir(&folder).unwrap().count(),
            2,
            "nothing partial is left"
        );
    }

    #[test]
    fn a_shared_object_keeps_its_kind_and_is_for_one_processor() {
        let dir = tempfile::tempdir().unwrap();
        let (source, folder) = (dir.path().join("libheadgate.so"), dir.path().join("m"));
        for (machine, architecture) in [
            (0x3e, Some("x86_64")),
            (0xb7, Some("aarch64")),
            (0xf3, None),
        ] {
            let code = [&ELF[..], &[0; 14], &[machine, 0], b"rest"].concat();
            fs::write(&source, &code).unwrap();
            let module = Module::install(&source, &folder).unwrap();
            assert_eq!(
                (module.kind(), module.architecture),
                (Kind::Native, architecture)
            );
            assert_eq!(fs::read(&module.path).unwrap(), code);
        }
    }

    #[test]
    fn a_copy_goes_a_day_after_it_was_last_served() {
        let dir = tempfile::tempdir().unwrap();
        let (source, folder) = (dir.path().join("f"), dir.path().join("modules"));
        let install = |code: &[u8]| {
            fs::write(&source, code).unwrap();
            Module::install(&source, &folder).unwrap()
        };
        let shared_object = |content: &[u8]| [&ELF[..], content].concat();
        let (hour, start) = (Duration::from_secs(3_600), SystemTime::now());
        let mut modules = Modules::from(install(&module(b"one")));
        modules.replace(install(&shared_object(b"one")));
        let one = modules.clone();
        let another = Modules::from(install(&module(b"of another operator")));
        let unused = install(&module(b"unused"));
        for hours in 1..=48 {
            for served in [&modules, &another] {
                served.keep(start + hours * hour);
            }
        }
        let exist = |modules: &Modules| modules.iter().all(|module| module.path.exists());
        assert!(exist(&modules) && exist(&another));
        assert!(!unused.path.exists());

        // Proxies still load the copies that are replaced.
        modules.replace(install(&module(b"two")));
        modules.keep(start + 49 * hour);
        modules.replace(install(&shared_object(b"two")));
        for hours in 50..=72 {
            modules.keep(start + hours * hour);
        }
        assert!(exist(&modules) && exist(&one) && exist(&another));
        modules.keep(start + 74 * hour);
        assert!(exist(&modules) && one.iter().all(|module| !module.path.exists()));
        assert!(!exist(&another), "its operator has stopped");
    }

    #[test]
    fn installing_a_module_removes_none() {
        let dir = tempfile::tempdir().unwrap();
        let (source, folder) = (dir.path().join("f.wasm"), dir.path().join("modules"));
        fs::write(&source, module(b"one")).unwrap();
        let one = Module::install(&source, &folder).unwrap();
        mark_used(&one.path, SystemTime::UNIX_EPOCH);
        fs::write(&source, module(b"two")).unwrap();
        Module::install(&source, &folder).unwrap();
        assert!(one.path.exists());
    }

    #[test]
    fn an_invalid_module_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (source, folder) = (dir.path().join("f.wasm"), dir.path().join("modules"));
        let refused = |content: &[u8]| {
            fs::write(&source, content).unwrap();
            Module::install(&source, &folder).unwrap_err().to_string()
        };
        assert!(refused(b"").contains("magic number"));
        assert!(refused(b"<html>").contains("scripts/build"));
        let whole = module(b"content");
        for cut in PREAMBLE.len() + 1..whole.len() {
            assert!(refused(&whole[..cut]).contains("cut short"), "{cut}");
        }
        fs::remove_file(&source).unwrap();
        let missing = Module::install(&source, &folder).unwrap_err().to_string();
        assert!(
            missing.contains("does not exist; build it with scripts/build"),
            "{missing}"
        );
    }

    #[tokio::test]
    async fn a_replaced_file_is_published_and_a_broken_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let (source, folder) = (dir.path().join("f.wasm"), dir.path().join("modules"));
        fs::write(&source, module(b"one")).unwrap();
        let one = Module::install(&source, &folder).unwrap();
        let (tx, mut rx) = watch::channel(Arc::new(Modules::from(one)));
        let task = tokio::spawn(super::watch(Kind::Wasm, source.clone(), folder, tx));
        tokio::task::yield_now().await;
        fs::write(&source, b"broken, and of another size").unwrap();
        fs::write(&source, module(b"three")).unwrap();
        rx.changed().await.unwrap();
        let path = rx.borrow().wasm.path.clone();
        assert_eq!(fs::read(path).unwrap(), module(b"three"));
        drop(rx);
        task.await.unwrap();
    }
}
