//! A folder in which the commands of a page run, like the clone of a newcomer.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use anyhow::{Context, Result};
use tempfile::TempDir;

use super::commands::Page;
use crate::headgate::full_path;
use crate::kube::programs;

/// A folder with links to the repository's folders, the tested program as `dist/headgate`, and the
/// files that a page assumes. `policy.yaml` and `app.yaml` are those that the page shows, or those
/// of the examples. `access.log` is always that of the examples.
#[derive(Debug)]
pub struct Checkout {
    dir: TempDir,
    /// The page's first policy.
    policy: String,
}

impl Checkout {
    /// Makes the folder for a page.
    ///
    /// # Errors
    /// If the program isn't built, or the folder can't be made.
    pub fn new(page: &Page) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let here = dir.path();
        // Only folders are linked, because a command may write a file with the same name as a file
        // of the developer.
        for entry in fs::read_dir(programs::repository())? {
            let entry = entry?;
            let (path, name) = (entry.path(), entry.file_name());
            if path.is_dir() && name != "dist" && name != "target" {
                symlink(path.canonicalize()?, here.join(name))?;
            }
        }
        let program = full_path()
            .canonicalize()
            .context("build it with scripts/build")?;
        fs::create_dir(here.join("dist"))?;
        for name in ["headgate", "kubectl-headgate"] {
            symlink(&program, here.join("dist").join(name))?;
        }
        let example =
            |name: &str| fs::read_to_string(programs::repository().join("examples").join(name));
        let shown = |kind: &str| {
            let mut texts = page.blocks.iter().map(|block| &block.text);
            texts.find(|text| text.contains(kind)).cloned()
        };
        let policy = match shown("kind: AdmissionPolicy") {
            Some(policy) => policy,
            None => example("quickstart/policy.yaml")?,
        };
        let app = match shown("kind: Deployment\n") {
            Some(app) => app,
            None => example("sidecar/search.yaml")?,
        };
        fs::write(here.join("policy.yaml"), &policy)?;
        fs::write(here.join("access.log"), example("simulate/access.log")?)?;
        fs::write(here.join("app.yaml"), app)?;
        Ok(Self { dir, policy })
    }

    /// Returns the folder.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Writes the page's policy to `policy.yaml`, with `mode` in place of the page's `mode:
    /// DryRun`.
    ///
    /// # Errors
    /// If the file can't be written.
    pub fn set_mode(&self, mode: &str) -> Result<()> {
        let policy = self.policy.replace("mode: DryRun", mode);
        fs::write(self.path().join("policy.yaml"), policy).map_err(Into::into)
    }

    /// Returns a command line that runs a script in the folder, with a timeout in seconds.
    ///
    /// # Errors
    /// If helm isn't available.
    pub fn bash(&self, kubeconfig: &Path, seconds: u32, script: &str) -> Result<Vec<String>> {
        let (here, helm) = (self.path().display(), programs::helm()?.display());
        let script = format!(
            "cd {here}\nexport PATH={here}/dist:{helm}:/usr/bin:/bin KUBECONFIG={} \
             HELM_CACHE_HOME={here}/helm HELM_CONFIG_HOME={here}/helm HELM_DATA_HOME={here}/helm\n\
             {script}",
            kubeconfig.display()
        );
        let seconds = seconds.to_string();
        let words = [
            "timeout", &seconds, "bash", "-euo", "pipefail", "-c", &script,
        ];
        Ok(words.map(str::to_owned).to_vec())
    }
}
