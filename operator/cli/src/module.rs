//! The modules of the filter that arguments name.

use std::path::{Path, PathBuf};

use anyhow::bail;
use headgate_xds::module::{Kind, Module};

/// Returns the path of the module of this kind. Without a named file, it is the first existing file
/// at the default paths.
pub(crate) fn module_file(kind: Kind, named: Option<&Path>) -> PathBuf {
    let name = match kind {
        Kind::Wasm => "headgate.wasm",
        Kind::Native => "libheadgate.so",
    };
    let built = Path::new("dist").join(name);
    if let Some(named) = named {
        return named.to_owned();
    }
    let beside = std::env::current_exe()
        .ok()
        .and_then(|exe| Some(exe.parent()?.join(name)));
    match beside {
        Some(beside) if !built.exists() && beside.exists() => beside,
        _ => built,
    }
}

/// Copies a module of this kind into `folder`.
pub(crate) fn install(kind: Kind, file: &Path, folder: &Path) -> anyhow::Result<Module> {
    let module = Module::install(file, folder)?;
    check_kind(kind, file, &module.path)?;
    Ok(module)
}

/// Checks that `module` is of the kind that the option takes. `module` is `file` or its copy, and
/// the error names `file`.
pub(crate) fn check_kind(kind: Kind, file: &Path, module: &Path) -> anyhow::Result<()> {
    let file = file.display();
    match (kind, Kind::of(module)) {
        (Kind::Wasm, Kind::Native) => {
            bail!("--wasm {file}: a native module; name it with --native")
        }
        (Kind::Native, Kind::Wasm) => bail!(
            "--native {file}: no native module, which is a shared object (.so); scripts/build \
             makes dist/libheadgate.so"
        ),
        _ => Ok(()),
    }
}
