//! Runs the commands of a page on a node, one after the other, as a newcomer would.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::checkout::Checkout;
use super::commands::{self, Runs, page};
use crate::kube::{Node, programs};
use crate::wait::until_within;

/// The longest time of a command, s.
const LONGEST: u32 = 240;
const PATIENCE: Duration = Duration::from_secs(120);

/// The chart that commands use in place of the published one.
const CHART: &str = "charts/headgate --set image.tag=dev";

/// Prefixes of commands that run until they are interrupted. Each of these commands runs in its own
/// terminal.
const SERVES: [&str; 3] = [
    "dist/headgate run ",
    "\"$(scripts/get-envoy)\" ",
    "cargo run ",
];

/// Runs every command of a page, except those that [`commands::runs`] leaves out, and those that
/// contain a text in `without`.
///
/// # Errors
/// If a command fails, or doesn't show what the page says.
pub fn walk(node: &Node, path: &str, without: &[&str]) -> Result<()> {
    let page = page(path)?;
    let newcomer = Newcomer {
        node,
        checkout: Checkout::new(&page)?,
    };
    let walked = page
        .commands()
        .iter()
        .filter(|command| !without.iter().any(|part| command.text.contains(part)))
        .try_fold(0, |applied, command| {
            let place = format!("{path}:{}: {}", command.line, command.text);
            newcomer.command(&command.text, applied).context(place)
        });
    // Servers and tunnels that the page started end here.
    newcomer.run("if [[ -e running ]]; then kill $(<running) || true; fi")?;
    walked.map(drop)
}

struct Newcomer<'a> {
    node: &'a Node,
    checkout: Checkout,
}

impl Newcomer<'_> {
    /// Runs a command after `applied` runs of `kubectl apply -f policy.yaml`. Returns the new
    /// number of these runs.
    fn command(&self, text: &str, mut applied: usize) -> Result<usize> {
        let (_, runs) = commands::runs(text).context("not in the table")?;
        if let Runs::Not(_) = runs {
            return Ok(applied);
        }
        if text.starts_with("kubectl apply -f policy.yaml") {
            applied += 1;
            // A page that applies its policy twice lets the reader change the mode before the
            // second time.
            let mode = ["mode: DryRun", "mode: Enforce"][applied - 1];
            self.checkout.set_mode(mode)?;
        }
        let bare = text.split(" #").next().unwrap_or(text).trim();
        let mut printed = String::new();
        if let Some(served) = bare.strip_suffix('&') {
            self.serve(served)?;
        } else if SERVES.iter().any(|beginning| bare.starts_with(beginning)) {
            self.serve(bare)?;
        } else if bare.contains("headgate top")
            || bare.starts_with("curl ")
            || bare.contains("status --admin")
            || bare.contains("headgate check")
        {
            // The command is repeated, because loads, proxies and operators take time to start, and
            // percentiles appear later.
            until_within(PATIENCE, bare, || {
                printed = self.run(bare).map_err(|error| format!("{error:#}"))?;
                match shows(text, &printed, applied) {
                    true => Ok(()),
                    false => Err(printed.clone()),
                }
            })?;
        } else {
            printed = self.run(bare)?;
            let is_test = bare.starts_with("helm test ");
            ensure!(!is_test || printed.contains("Succeeded"), "{printed}");
        }
        // The test's output shows what a newcomer would see.
        println!("$ {bare}\n{printed}");
        Ok(applied)
    }

    /// Starts a command and leaves it running.
    fn serve(&self, text: &str) -> Result<()> {
        let script = format!("{text} >>said 2>&1 & echo $! >>running");
        self.run(&script).map(drop)
    }

    fn run(&self, text: &str) -> Result<String> {
        let text = commands::of_clone(text, CHART);
        // The option is necessary because this process has no terminal.
        let text = text.replacen("headgate top", "headgate top --once", 1);
        let programs = programs::repository().join("target/release");
        let programs = programs.canonicalize().unwrap_or_default();
        let text = built(&text, &programs);
        let kubeconfig = &self.node.kubeconfig;
        let bash = self.checkout.bash(kubeconfig, LONGEST, &text)?;
        let words: Vec<&str> = bash.iter().map(String::as_str).collect();
        self.node.exec_in(&words)
    }
}

/// Returns a `cargo run` of a program as a call of the built program in `folder`.
fn built(text: &str, folder: &Path) -> String {
    match text.strip_prefix("cargo run --release -p headgate-harness --bin ") {
        Some(rest) => format!("{}/{}", folder.display(), rest.replacen(" -- ", " ", 1)),
        None => text.to_owned(),
    }
}

/// Whether the output of a command shows what its page is about. A page may apply its policy twice,
/// first in `DryRun`. The output must then show first what would be refused, and later refusals.
fn shows(text: &str, seen: &str, applied: usize) -> bool {
    if text.contains("headgate top") && applied > 0 {
        let is_dry = seen.contains("(dry run)");
        let refuses = seen.contains(" value ") && !seen.contains(" 0 refused");
        return [is_dry, refuses] == [applied == 1, applied == 2];
    }
    // Each line of the table begins with its verdict.
    let good = |line: &str| line.starts_with("ok ");
    if text.contains("headgate check") && text.contains("every line begins with: ok") {
        return seen.lines().skip(1).all(good);
    }
    applied < 2 || !text.starts_with("curl ") || seen.contains("x-headgate-refused")
}
