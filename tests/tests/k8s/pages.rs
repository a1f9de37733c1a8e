//! Runs every command of every page. A command succeeds here as it is written, unless the table of
//! [`commands`] names another place where it runs, or the reason why it never runs.

use std::process::Command;

use anyhow::{Context, Result, bail};
use headgate_tests::chart;
use headgate_tests::docs::checkout::Checkout;
use headgate_tests::docs::commands::{self, Page, Runs, TABLE, pages};
use headgate_tests::kube::ApiServer;
use headgate_tests::process;
use headgate_tests::wait;

use crate::cli;

/// The longest time of a command, s.
const LONGEST: u32 = 120;

/// The commands that create the service that pages assume. A page that creates the namespace itself
/// doesn't need them.
const SERVICE: &str = "
kubectl get namespace shop || kubectl create namespace shop
headgate inject --image=headgate:dev examples/sidecar/search.yaml | kubectl apply -f -
kubectl apply -f examples/sidecar/policy.yaml
";

/// A folder in which the commands of a page run.
struct Folder<'a> {
    checkout: Checkout,
    server: &'a ApiServer,
}

impl<'a> Folder<'a> {
    fn new(server: &'a ApiServer, page: &Page) -> Result<Self> {
        let checkout = Checkout::new(page)?;
        Ok(Self { checkout, server })
    }

    fn run(&self, script: &str) -> Result<String> {
        let kubeconfig = self.server.kubeconfig();
        let words = self.checkout.bash(kubeconfig, LONGEST, script)?;
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        process::run(&mut command, None)
    }

    /// Prepares the cluster that the page assumes: a service with a policy, and the chart with its
    /// defaults, unless the chart is already `installed`.
    fn prepare(&self, commands: &[commands::Command], installed: bool) -> Result<()> {
        if !installed {
            let chart = "helm upgrade --install headgate charts/headgate";
            let namespace = "--namespace headgate-system --create-namespace";
            self.run(&format!("{chart} {namespace}"))?;
            // The wait is only for the CRD of the chart. kubectl waits for CRDs one after the
            // other, and other projects have many.
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
        let mut text = commands::of_clone(&command.text, "charts/headgate");
        if text.starts_with("helm ") {
            // On an API server without nodes, no Pod becomes ready and no Job ends.
            text = text.replace(" --wait", "");
            text = text.replace("uninstall headgate ", "uninstall headgate --no-hooks ");
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

/// Sets every policy's status to programmed, as an operator does when proxies run the policy.
fn program_all(server: &ApiServer) -> Result<()> {
    let list = server.get(&["admissionpolicies", "--all-namespaces"])?;
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
    // Envoy Gateway's chart installs Envoy Gateway in this namespace.
    server.kubectl(&["create", "namespace", "envoy-gateway-system"])?;
    let (mut wrong, mut used) = (Vec::new(), [false; TABLE.len()]);
    let mut installed = false;
    for page in pages()? {
        let commands = page.commands();
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
            let Some((at, runs)) = commands::runs(&command.text) else {
                wrong.push(format!(
                    "{place}\n  is not in the table of tests/src/docs/commands.rs"
                ));
                continue;
            };
            used[at] = true;
            if runs == Runs::Everywhere
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
