//! `headgate completions`: prints completion scripts for shells.

use clap::{Args, CommandFactory as _};
use clap_complete::Shell;

use super::{Cli, Output};

/// Prints a shell's completions.
///
/// For bash: `source <(headgate completions bash)`, or write it into a file of
/// `~/.local/share/bash-completion/completions`.
#[derive(Debug, Clone, Args)]
pub struct CompletionsArgs {
    /// The shell
    pub shell: Shell,
}

/// Prints the completions of the whole command line.
#[must_use]
pub fn run(args: &CompletionsArgs) -> Output {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "headgate", &mut text);
    Output::ok(String::from_utf8_lossy(&text).into_owned())
}
