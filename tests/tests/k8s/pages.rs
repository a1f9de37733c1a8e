//! Every command of every page: it succeeds here as it is written, or the table below says why not.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use anyhow::{Context, Result, bail};
use headgate_tests::chart;
use headgate_tests::docs::commands::{self, Page, pages};
use headgate_tests::headgate::full_path;
use headgate_tests::kube::{ApiServer, programs};
use headgate_tests::process;
use headgate_tests::wait;
use serde_json::Value;
use tempfile::TempDir;

use crate::cli;

/// Seconds that a command may take.
const LONGEST: &str = "120";

/// The beginnings of commands, each with the reason why such a command doesn't run here; `None`: it
/// runs. The first that fits a command counts.
const TABLE: [(&str, Option<&str>); 42] = [
    ("dist/headgate run ", Some(DEMO)),
    ("dist/headgate status --admin ", Some(DEMO)),
    ("dist/headgate top", Some(PROXIES)),
    ("headgate top", Some(PROXIES)),
    ("kubectl headgate top", Some(PROXIES)),
    ("headgate suggest --proxy ", Some(PROXIES)),
    ("headgate simulate --scenario list", None),
    ("dist/headgate simulate --scenario list", None),
    ("headgate simulate --scenario ", Some(MINUTES)),
    ("dist/headgate simulate --scenario ", Some(MINUTES)),
    ("headgate ", None),
    ("dist/headgate ", None),
    (
        "kubectl headgate check",
        Some("needs an operator's Pod; the module `check` plays it"),
    ),
    ("kubectl krew ", Some(RELEASE)),
    ("kubectl --namespace shop logs ", Some(PODS)),
    ("kubectl --namespace shop port-forward ", Some(PODS)),
    ("kubectl --namespace shop rollout status ", Some(PODS)),
    ("kubectl --namespace shop wait ", Some(PODS)),
    ("kubectl --namespace envoy-gateway-system logs ", Some(PODS)),
    ("kubectl --namespace envoy-gateway-system wait ", Some(PODS)),
    ("kubectl ", None),
    ("helm test ", Some(PODS)),
    ("helm ", None),
    ("curl -i 127.0.0.1:10000", Some(DEMO)),
    ("curl ", Some(PODS)),
    ("\"$(scripts/get-envoy)\" ", Some(DEMO)),
    ("cargo run ", Some(DEMO)),
    ("cargo test ", Some(DEVELOPERS)),
    ("scripts/test", Some(DEVELOPERS)),
    ("scripts/bench", Some(DEVELOPERS)),
    ("scripts/build", Some(DEVELOPERS)),
    ("scripts/demo", Some("scripts/test runs it")),
    ("examples/sidecar/kind.sh", Some(KIND)),
    ("kind ", Some(KIND)),
    ("ctr ", Some(KIND)),
    ("git clone ", Some("needs a public repository")),
    ("registry=", Some(RELEASE)),
    ("tar ", Some(RELEASE)),
    ("ln -s headgate ", Some(RELEASE)),
    ("by=(", Some(RELEASE)),
    ("cosign ", Some(RELEASE)),
    ("gh ", Some(RELEASE)),
];

const DEMO: &str = "does a part of the demo, which scripts/test runs";
const DEVELOPERS: &str = "builds or tests the repository, of which this is a part";
const KIND: &str = "needs nodes; the tests of `node` load and run the same images";
const MINUTES: &str = "takes minutes; `scripts/test scenarios` runs all at a smaller size";
const PODS: &str = "needs running Pods; the tests of `node` have them";
const PROXIES: &str = "needs a running Envoy; the tests of `e2e` have one";
const RELEASE: &str = "needs a release";

/// Replacements in commands: the beginning of the command, the old text, the new text.
const INSTEAD: [(&str, &str, &str); 7] = [
    // The chart of the repository for the published one.
    (
        "helm ",
        "oci://ghcr.io/OWNER/headgate/charts/headgate",
        "charts/headgate",
    ),
    (
        "helm ",
        "oci://$registry/charts/headgate",
        "charts/headgate",
    ),
    ("helm ", "<chart>", "charts/headgate"),
    // Without nodes no Pod becomes ready, and no Job ends.
    ("helm ", " --wait", ""),
    ("helm uninstall ", "headgate ", "headgate --no-hooks "),
    // A page installs from a release or from a clone.
    ("helm install ", "install ", "upgrade --install "),
    // A release knows its own image; this build does not.
    (
        "kubectl headgate inject ",
        "inject ",
        "inject --image=headgate:dev ",
    ),
];

/// The service that pages assume, unless they begin with its namespace.
const SERVICE: &str = "
kubectl get namespace shop || kubectl create namespace shop
headgate inject --image=headgate:dev examples/sidecar/search.yaml | kubectl apply -f -
kubectl apply -f examples/sidecar/policy.yaml
";

/// A folder in which the commands of a page run: the repository with the tested program, and the
/// files that pages assume.
struct Folder<'a> {
    dir: TempDir,
    server: &'a ApiServer,
}

impl<'a> Folder<'a> {
    fn new(server: &'a ApiServer, page: &Page) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let here = dir.path();
        // Folders only: a command may write a file of a name that a developer's has.
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
        let mut policies = page.blocks.iter().map(|block| &block.text);
        let shown = policies.find(|text| text.contains("kind: AdmissionPolicy"));
        let policy = match shown {
            Some(policy) => policy.clone(),
            None => example("quickstart/policy.yaml")?,
        };
        fs::write(here.join("policy.yaml"), policy)?;
        fs::write(here.join("access.log"), example("simulate/access.log")?)?;
        fs::write(here.join("app.yaml"), example("sidecar/search.yaml")?)?;
        Ok(Self { dir, server })
    }

    fn run(&self, script: &str) -> Result<String> {
        let here = self.dir.path();
        let mut path = OsString::from(here.join("dist"));
        for folder in [programs::helm()?.as_os_str(), "/usr/bin:/bin".as_ref()] {
            path.push(":");
            path.push(folder);
        }
        let mut command = Command::new("timeout");
        command
            .args([LONGEST, "bash", "-euo", "pipefail", "-c", script])
            .current_dir(here)
            .env("PATH", path)
            .env("KUBECONFIG", self.server.kubeconfig());
        programs::helm_home(&mut command, &here.join("helm"));
        process::run(&mut command, None)
    }

    /// Makes the cluster that the page assumes: the chart, unless it is `installed` with its
    /// defaults, and a service with a policy.
    fn prepare(&self, commands: &[commands::Command], installed: bool) -> Result<()> {
        if !installed {
            let chart = "helm upgrade --install headgate charts/headgate";
            let namespace = "--namespace headgate-system --create-namespace";
            self.run(&format!("{chart} {namespace}"))?;
            // The one of the chart: kubectl waits for each CRD in turn, and other projects have
            // many.
            wait::until("the CRD to be served", || {
                let served = "--for=condition=Established";
                let wait = ["wait", "crd/admissionpolicies.headgate.dev", served];
                self.server.kubectl(&wait).map_err(|e| format!("{e:#}"))
            })?;
        }
        let creates = |command: &commands::Command| {
            (command.text).starts_with("kubectl create namespace shop")
        };
        self.run(match commands.iter().any(creates) {
            true => "kubectl delete namespace shop --ignore-not-found",
            false => SERVICE,
        })?;
        Ok(())
    }

    /// Runs a command of a page, and compares what it prints with what the page shows, up to `...`.
    fn command(&self, command: &commands::Command) -> Result<()> {
        let mut text = command.text.clone();
        for (beginning, from, to) in INSTEAD {
            if command.text.starts_with(beginning) {
                text = text.replace(from, to);
            }
        }
        if text.contains("headgate status ") {
            program_all(self.server)?;
        }
        let printed = self.run(&text)?;
        let mut printed = printed.lines();
        for line in command.output.iter().take_while(|line| *line != "...") {
            let found = printed.next();
            if found.map(str::trim) != Some(line) {
                bail!("printed {found:?}, not {line:?}");
            }
        }
        Ok(())
    }
}

/// Sets every policy's status to programmed, as an operator does when proxies run it.
fn program_all(server: &ApiServer) -> Result<()> {
    let list = [
        "get",
        "admissionpolicies",
        "--all-namespaces",
        "--output=json",
    ];
    let list: Value = serde_json::from_str(&server.kubectl(&list)?)?;
    for policy in list["items"].as_array().into_iter().flatten() {
        let metadata = &policy["metadata"];
        let text = |key: &str| metadata[key].as_str().unwrap_or_default();
        let generation = metadata["generation"].as_i64().context("generation")?;
        cli::program(server, text("namespace"), text("name"), generation, true)?;
    }
    Ok(())
}

#[test]
fn every_command_succeeds() -> Result<()> {
    let server = ApiServer::shared();
    for project in ["gateway-api", "istio", "envoy-gateway"] {
        chart::install_crds(server, project)?;
    }
    // The namespace in which Envoy Gateway's chart installs it.
    server.kubectl(&["create", "namespace", "envoy-gateway-system"])?;
    let (mut wrong, mut used) = (Vec::new(), [false; TABLE.len()]);
    let mut installed = false;
    for page in pages()? {
        let commands: Vec<_> = page
            .blocks
            .iter()
            .flat_map(|block| block.commands())
            .collect();
        let folder = Folder::new(server, &page)?;
        let is_of_cluster = |text: &str| text.contains("kubectl ") || text.starts_with("helm ");
        if commands.iter().any(|command| is_of_cluster(&command.text)) {
            let prepared = folder.prepare(&commands, installed);
            prepared.with_context(|| page.path.clone())?;
            let changes = |command: &commands::Command| {
                ["helm ", "headgate-system", "crd"]
                    .iter()
                    .any(|part| command.text.contains(part))
            };
            installed = !commands.iter().any(changes);
        }
        for command in &commands {
            let place = format!("{}:{}: {}", page.path, command.line, command.text);
            let fits = |(beginning, _): &(&str, _)| command.text.starts_with(beginning);
            let Some(at) = TABLE.iter().position(fits) else {
                wrong.push(format!(
                    "{place}\n  is not in the table of tests/tests/k8s/pages.rs"
                ));
                continue;
            };
            used[at] = true;
            if TABLE[at].1.is_none()
                && let Err(error) = folder.command(command)
            {
                wrong.push(format!("{place}\n  {error:#}"));
            }
        }
    }
    let stale = TABLE.iter().zip(used).filter(|(_, used)| !used);
    wrong.extend(stale.map(|((beginning, _), _)| format!("no page has {beginning:?}")));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}
