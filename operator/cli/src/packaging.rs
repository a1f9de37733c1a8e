//! `headgate completions` and `headgate man`: files for shells and packages, made from the command
//! line's definition.

use std::fs;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Args, CommandFactory as _};
use clap_complete::Shell;

use crate::Cli;
use headgate_command::output::Output;

/// Prints a shell's completions.
///
/// For bash: `source <(headgate completions bash)`, or write it into a file of
/// `~/.local/share/bash-completion/completions`.
#[derive(Debug, Clone, Args)]
pub(crate) struct CompletionsArgs {
    /// The shell
    pub(crate) shell: Shell,
}

/// Writes a manual page for every command.
#[derive(Debug, Clone, Args)]
pub(crate) struct ManArgs {
    /// Folder for the pages; made if it doesn't exist
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: PathBuf,
}

/// Prints the completions of the whole command line.
pub(crate) fn completions(args: &CompletionsArgs) -> Output {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "headgate", &mut text);
    Output::ok(String::from_utf8_lossy(&text).into_owned())
}

/// Writes `headgate.1`, and `headgate-COMMAND.1` for each command that the help lists.
///
/// # Errors
/// Returns an error if the folder can't be written.
pub(crate) fn man(args: &ManArgs) -> anyhow::Result<Output> {
    let failed = || format!("writing manual pages to {} failed", args.dir.display());
    fs::create_dir_all(&args.dir).with_context(failed)?;
    clap_mangen::generate_to(Cli::command(), &args.dir).with_context(failed)?;
    Ok(Output::ok(String::new()))
}
