//! The control groups of a node's Pods. Namespaces don't isolate control groups. So they are in one
//! folder of the machine's tree, with the name of the node's own folder, and must be removed
//! explicitly.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::super::workspace;
use crate::wait;

const MOUNT: &str = "/sys/fs/cgroup";

/// A folder of control groups in every hierarchy.
#[derive(Debug)]
pub(super) struct Cgroups {
    pub(super) name: String,
}

impl Cgroups {
    /// Creates the folders, after removing those of killed nodes.
    pub(super) fn create(dir: &Path) -> Result<Self> {
        let name = dir
            .file_name()
            .context("the node's folder has no name")?
            .to_string_lossy()
            .into_owned();
        let hierarchies = hierarchies();
        for hierarchy in &hierarchies {
            remove_left_behind(hierarchy);
            let group = hierarchy.join(&name);
            fs::create_dir(&group).with_context(|| format!("cannot make {}", group.display()))?;
            // In version 1, a new group has no CPUs and no memory nodes until these settings are
            // written.
            for setting in ["cpuset.cpus", "cpuset.mems"] {
                if let Ok(value) = fs::read(hierarchy.join(setting)) {
                    let _ = fs::write(group.join(setting), value);
                }
            }
            // In version 2, controllers must be enabled from the top for the groups below.
            for folder in [hierarchy, &group] {
                if let Ok(controllers) = fs::read_to_string(folder.join("cgroup.controllers")) {
                    for controller in controllers.split_whitespace() {
                        let line = format!("+{controller}");
                        let _ = fs::write(folder.join("cgroup.subtree_control"), line);
                    }
                }
            }
        }
        Ok(Self { name })
    }

    /// Removes the folders. Groups stay busy for a moment after their last process has ended.
    pub(super) fn remove(&self) {
        for hierarchy in hierarchies() {
            let group = hierarchy.join(&self.name);
            let _ = wait::until("control groups to be removed", || {
                remove_tree(&group).map_err(|error| error.to_string())
            });
        }
    }
}

/// Returns the folder of each hierarchy. Version 2 has one hierarchy, and version 1 has one for
/// each controller.
fn hierarchies() -> Vec<PathBuf> {
    let mount = PathBuf::from(MOUNT);
    if mount.join("cgroup.controllers").exists() {
        return vec![mount];
    }
    let folders = fs::read_dir(&mount).into_iter().flatten().flatten();
    folders
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .filter(|path| path.join("cgroup.procs").exists())
        .collect()
}

/// Removes the groups of nodes whose folder no longer exists.
fn remove_left_behind(hierarchy: &Path) {
    let groups = fs::read_dir(hierarchy).into_iter().flatten().flatten();
    for group in groups {
        let name = group.file_name();
        let ours = name
            .to_str()
            .is_some_and(|name| name.starts_with(workspace::PREFIX));
        if ours && !std::env::temp_dir().join(&name).exists() {
            let _ = remove_tree(&group.path());
        }
    }
}

/// Removes `group` and all groups below it, the deepest first. The files of a group can't be
/// removed, and disappear with the group.
fn remove_tree(group: &Path) -> std::io::Result<()> {
    if !group.exists() {
        return Ok(());
    }
    for entry in fs::read_dir(group)?.flatten() {
        if entry.file_type()?.is_dir() {
            remove_tree(&entry.path())?;
        }
    }
    fs::remove_dir(group)
}
