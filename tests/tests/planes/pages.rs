//! The commands of the pages about Istio and Envoy Gateway, one after the other as a newcomer types
//! them, and then those of *Uninstall*.

use std::fs;
use std::os::unix::fs::symlink;

use anyhow::{Context, Result, ensure};
use headgate_tests::docs::commands::{Page, pages};
use headgate_tests::headgate::full_path;
use headgate_tests::kube::programs;
use headgate_tests::wait::until_within;
use tempfile::TempDir;

use crate::cluster::{Cluster, PATIENCE};

/// Seconds that a command may take.
const LONGEST: &str = "240";

/// Replacements in commands, for what isn't published and for what needs a terminal.
const INSTEAD: [(&str, &str); 2] = [
    (
        "oci://ghcr.io/OWNER/headgate/charts/headgate",
        "charts/headgate --set image.tag=dev",
    ),
    ("headgate top ", "headgate top --once "),
];

/// Runs every command of a page about a control plane that the cluster has, and removes Headgate
/// again. `objects` is the kind of what the operator writes.
pub(crate) fn walk(cluster: &Cluster, page: &str, objects: &str) -> Result<()> {
    let newcomer = Newcomer::new(cluster)?;
    let page = read(page)?;
    let policy = page
        .blocks
        .iter()
        .find(|b| b.text.contains("kind: AdmissionPolicy"));
    let policy = &policy.context("a policy")?.text;
    let mut applied = 0;
    for command in page.blocks.iter().flat_map(|block| block.commands()) {
        let text = command.text.as_str();
        if text.starts_with("kubectl apply -f policy.yaml") {
            applied += 1;
            // As the page says before its second time.
            let mode = ["mode: DryRun", "mode: Enforce"][applied - 1];
            newcomer.write(&policy.replace("mode: DryRun", mode))?;
        }
        let place = format!("{}:{}: {text}", page.path, command.line);
        if text.contains("headgate top ") {
            until_within(PATIENCE, &place, || {
                let seen = newcomer.run(text).map_err(|error| format!("{error:#}"))?;
                let is_dry = seen.contains("(dry run)");
                let refuses = seen.contains(" value ") && !seen.contains(" 0 refused");
                match [is_dry, refuses] == [applied == 1, applied == 2] {
                    true => Ok(()),
                    false => Err(seen),
                }
            })?;
            continue;
        }
        let printed = newcomer.run(text).with_context(|| place.clone())?;
        if text.contains("headgate check") {
            let good = |line: &str| line.starts_with("ok ");
            ensure!(printed.lines().skip(1).all(good), "{place}\n{printed}");
        }
    }
    ensure!(applied == 2, "{}: the policy {applied} times", page.path);

    let get = ["get", objects, "--all-namespaces", "--output=name"];
    let written = || cluster.node.kubectl(&get);
    ensure!(!written()?.trim().is_empty(), "no {objects} of the policy");
    let uninstall = read("docs/src/tasks/uninstall.md")?;
    let commands = uninstall.blocks.iter().flat_map(|block| block.commands());
    let removes = |text: &str| {
        ["helm ", "kubectl delete "]
            .iter()
            .any(|b| text.starts_with(b))
    };
    for command in commands.filter(|command| removes(&command.text)) {
        newcomer.run(&command.text)?;
        let left = written()?;
        ensure!(left.trim().is_empty(), "{}: {left}", command.text);
    }
    Ok(())
}

fn read(path: &str) -> Result<Page> {
    let found = pages()?.into_iter().find(|page| page.path == path);
    found.with_context(|| format!("no page {path}"))
}

/// The machine of a newcomer: a clone, with the programs in the PATH, and a folder for files.
struct Newcomer<'a> {
    cluster: &'a Cluster,
    folder: TempDir,
}

impl<'a> Newcomer<'a> {
    fn new(cluster: &'a Cluster) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let program = full_path().canonicalize()?;
        for name in ["headgate", "kubectl-headgate"] {
            symlink(&program, folder.path().join(name))?;
        }
        Ok(Self { cluster, folder })
    }

    fn write(&self, policy: &str) -> Result<()> {
        fs::write(self.folder.path().join("policy.yaml"), policy).map_err(Into::into)
    }

    /// Runs a command in the clone.
    fn run(&self, text: &str) -> Result<String> {
        let folder = self.folder.path().display();
        let mut text = text.replace("policy.yaml", &format!("{folder}/policy.yaml"));
        for (from, to) in INSTEAD {
            text = text.replace(from, to);
        }
        let tools = programs::helm()?.display();
        let config = self.cluster.node.access().kubeconfig.display();
        let script = format!(
            "export PATH={folder}:{tools}:$PATH KUBECONFIG={config} HELM_CACHE_HOME={folder}/helm \
             HELM_CONFIG_HOME={folder}/helm HELM_DATA_HOME={folder}/helm\n{text}"
        );
        let bash = [
            "timeout", LONGEST, "bash", "-euo", "pipefail", "-c", &script,
        ];
        self.cluster.node.exec_in(&bash)
    }
}
