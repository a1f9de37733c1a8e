//! The commands in pages, and the place where tests run each command.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use super::{Block, blocks, markdown, shown};

/// A command in a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Command {
    /// The number of the command's first line in the page.
    pub line: usize,
    /// The command, with its continuation lines.
    pub text: String,
    /// The lines that the page shows as its output.
    pub output: Vec<String>,
}

impl Block {
    /// Returns the commands in a block of shell. They are its lines, or the lines after a prompt if
    /// the block has prompts.
    pub fn commands(&self) -> Vec<Command> {
        if !["sh", "console", "bash"].contains(&self.language.as_str()) {
            return Vec::new();
        }
        let has_prompts = self.text.lines().any(|line| line.trim().starts_with("$ "));
        let mut commands: Vec<Command> = Vec::new();
        let mut is_open = false;
        for (number, line) in self.text.lines().enumerate() {
            let line = line.trim();
            let (text, ends) = match line.strip_suffix('\\') {
                Some(text) => (text, false),
                None => (line, true),
            };
            let prompted = text.strip_prefix("$ ");
            match (commands.last_mut(), prompted) {
                (Some(last), _) if is_open => last.text.push_str(text),
                (Some(last), None) if has_prompts => last.output.push(line.to_owned()),
                _ if line.is_empty() => continue,
                _ => commands.push(Command {
                    line: self.line + 1 + number,
                    text: prompted.unwrap_or(text).to_owned(),
                    output: Vec::new(),
                }),
            }
            is_open = !ends;
        }
        commands
    }
}

/// The place in which tests run a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Runs {
    /// On a machine with an API server, for all pages. The test `pages` of the program `k8s` runs
    /// the command.
    Everywhere,
    /// On a node, for the pages of [`ON_A_NODE`] and [`WITH_PLANES`].
    OnANode,
    /// Nowhere, for the given reason.
    Not(&'static str),
}

/// The pages whose commands the test `pages` of the program `node` runs on one node, in this order.
pub const ON_A_NODE: [&str; 13] = [
    "examples/quickstart/README.md",
    "docs/src/start/install.md",
    "docs/src/start/cluster.md",
    "docs/src/tasks/refusal.md",
    "docs/src/tasks/dry-run.md",
    "docs/src/tasks/injection.md",
    "docs/src/tasks/upgrade.md",
    "docs/src/tasks/check.md",
    "docs/src/tasks/uninstall.md",
    "README.md",
    "examples/gateway/README.md",
    "examples/grpc/README.md",
    "examples/sidecar/README.md",
];

/// The pages whose commands the program `planes` runs, on nodes with other control planes.
pub const WITH_PLANES: [&str; 4] = [
    "docs/src/start/envoy-gateway.md",
    "docs/src/tasks/shedding-envoy-gateway.md",
    "docs/src/start/istio.md",
    "docs/src/tasks/shedding-istio.md",
];

/// The prefixes of commands, each with its place. The first matching prefix counts.
pub const TABLE: [(&str, Runs); 42] = [
    ("dist/headgate run ", Runs::OnANode),
    ("dist/headgate status --admin ", Runs::OnANode),
    ("dist/headgate top", Runs::OnANode),
    ("headgate top", Runs::Not(TERMINAL)),
    ("kubectl headgate top", Runs::OnANode),
    ("headgate suggest --proxy ", Runs::Not(FRESH)),
    ("headgate simulate --scenario list", Runs::Everywhere),
    ("dist/headgate simulate --scenario list", Runs::Everywhere),
    ("headgate simulate --scenario ", Runs::Not(MINUTES)),
    ("dist/headgate simulate --scenario ", Runs::Not(MINUTES)),
    (
        "headgate validate policies.yaml",
        Runs::Not("other tests may have policies with mistakes"),
    ),
    ("headgate ", Runs::Everywhere),
    ("dist/headgate ", Runs::Everywhere),
    ("kubectl headgate check", Runs::OnANode),
    ("kubectl krew ", Runs::Not(RELEASE)),
    ("kubectl --namespace shop logs ", Runs::OnANode),
    ("kubectl --namespace shop port-forward ", Runs::OnANode),
    ("kubectl --namespace shop rollout status ", Runs::OnANode),
    ("kubectl --namespace shop wait ", Runs::OnANode),
    (
        "kubectl --namespace envoy-gateway-system logs ",
        Runs::OnANode,
    ),
    (
        "kubectl --namespace envoy-gateway-system wait ",
        Runs::OnANode,
    ),
    ("kubectl ", Runs::Everywhere),
    ("helm test ", Runs::OnANode),
    ("helm ", Runs::Everywhere),
    ("curl ", Runs::OnANode),
    ("\"$(scripts/get-envoy)\" ", Runs::OnANode),
    ("cargo run ", Runs::OnANode),
    ("cargo test ", Runs::Not(DEVELOPERS)),
    ("scripts/test", Runs::Not(DEVELOPERS)),
    ("scripts/bench", Runs::Not(DEVELOPERS)),
    ("scripts/build", Runs::Not(DEVELOPERS)),
    ("scripts/demo", Runs::Not("scripts/test runs it")),
    ("examples/sidecar/kind.sh", Runs::Not(DOCKER)),
    ("kind ", Runs::Not(DOCKER)),
    (
        "ctr ",
        Runs::Not("the node of the tests imports images so, before its Pods"),
    ),
    ("git clone ", Runs::Not("needs a public repository")),
    ("registry=", Runs::Not(RELEASE)),
    ("tar ", Runs::Not(RELEASE)),
    ("ln -s headgate ", Runs::Not(RELEASE)),
    ("by=(", Runs::Not(RELEASE)),
    ("cosign ", Runs::Not(RELEASE)),
    ("gh ", Runs::Not(RELEASE)),
];

const DEVELOPERS: &str = "builds or tests the repository, of which this is a part";
const DOCKER: &str = "needs Docker";
const FRESH: &str =
    "needs a proxy with a policy of one type since its start; a test of `e2e` has one";
const MINUTES: &str = "takes minutes; `scripts/test scenarios` runs all at a smaller size";
const RELEASE: &str = "needs a release; `scripts/release verify` takes one out of a registry";
const TERMINAL: &str = "is in a list of commands, without an Envoy; other pages have it with one";

/// Returns the index in [`TABLE`] of the entry of a command, and the place where the command runs.
pub fn runs(text: &str) -> Option<(usize, Runs)> {
    let fits = |(beginning, _): &(&str, _)| text.starts_with(beginning);
    let at = TABLE.iter().position(fits)?;
    Some((at, TABLE[at].1))
}

/// The names of the published chart in pages.
const CHARTS: [&str; 3] = [
    "oci://ghcr.io/OWNER/headgate/charts/headgate",
    "oci://$registry/charts/headgate",
    "<chart>",
];

/// Returns a command that uses the clone's image and `chart` in place of those of a release.
pub fn of_clone(text: &str, chart: &str) -> String {
    if text.starts_with("helm ") {
        let published = CHARTS
            .into_iter()
            .find(|published| text.contains(published));
        let text = published.map_or(text.to_owned(), |name| text.replace(name, chart));
        // A page may install a release that an earlier page has installed.
        return match text.strip_prefix("helm install ") {
            Some(rest) => format!("helm upgrade --install {rest}"),
            None => text,
        };
    }
    // A release knows its own image. This build doesn't, so the command gets the option.
    let inject = "kubectl headgate inject ";
    match text.strip_prefix(inject) {
        Some(rest) => format!("{inject}--image headgate:dev {rest}"),
        None => text.to_owned(),
    }
}

/// A Markdown file.
#[derive(Debug, Clone)]
pub struct Page {
    /// The path of the page in the repository.
    pub path: String,
    /// The blocks of code in the page.
    pub blocks: Vec<Block>,
}

/// Returns the Markdown files of the repository, in order.
///
/// # Errors
/// If a file can't be read.
pub fn pages() -> Result<Vec<Page>> {
    let read = |file: PathBuf| {
        let path = shown(&file);
        let text = fs::read_to_string(&file).with_context(|| path.clone())?;
        let blocks = blocks(&text).0;
        Ok(Page { path, blocks })
    };
    markdown()?.into_iter().map(read).collect()
}

/// Returns a page by its path in the repository.
///
/// # Errors
/// If the repository has no such page.
pub fn page(path: &str) -> Result<Page> {
    let found = pages()?.into_iter().find(|page| page.path == path);
    found.with_context(|| format!("no page {path}"))
}

impl Page {
    /// Returns the commands of the page, in order.
    pub fn commands(&self) -> Vec<Command> {
        self.blocks.iter().flat_map(Block::commands).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Returns a command without its comment.
    fn bare(text: &str) -> String {
        text.split(" #").next().unwrap_or(text).trim().to_owned()
    }

    #[test]
    fn commands_that_need_pods_are_on_pages_that_run_on_a_node() {
        let mut run = BTreeSet::new();
        for path in ON_A_NODE.iter().chain(&WITH_PLANES) {
            let commands = page(path).unwrap().commands();
            run.extend(commands.iter().map(|command| bare(&command.text)));
        }
        let mut wrong = Vec::new();
        for page in pages().unwrap() {
            for command in page.commands() {
                let needs_one = matches!(runs(&command.text), Some((_, Runs::OnANode)));
                if needs_one && !run.contains(&bare(&command.text)) {
                    wrong.push(format!("{}:{}: {}", page.path, command.line, command.text));
                }
            }
        }
        assert!(wrong.is_empty(), "no test runs:\n{}", wrong.join("\n"));
    }

    fn found(markdown: &str) -> Vec<Command> {
        let blocks = blocks(markdown).0;
        blocks.iter().flat_map(Block::commands).collect()
    }

    fn command(line: usize, text: &str, output: &[&str]) -> Command {
        let output = output.iter().map(|&line| line.to_owned()).collect();
        Command {
            line,
            text: text.to_owned(),
            output,
        }
    }

    #[test]
    fn each_line_of_shell_is_a_command_unless_it_continues_one() {
        let text = "# A\n```sh\na b \\\n  --c   # why\n\nd | e\n```\n```text\nf\n```\n";
        assert_eq!(
            found(text),
            [command(3, "a b --c   # why", &[]), command(6, "d | e", &[])]
        );
    }

    #[test]
    fn lines_without_a_prompt_are_output_where_others_have_one() {
        let text = "1. A\n\n   ```console\n   $ a\n   one\n   two\n   $ b\n   ```\n";
        assert_eq!(
            found(text),
            [command(4, "a", &["one", "two"]), command(7, "b", &[])]
        );
    }
}
