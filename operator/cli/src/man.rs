//! `headgate man`: writes manual pages, for the packaging of a release.

use std::fs;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Args, CommandFactory as _};

use super::{Cli, Output};

/// Writes a manual page for every command.
#[derive(Debug, Clone, Args)]
pub struct ManArgs {
    /// Folder for the pages; made if it doesn't exist
    #[arg(long, value_name = "DIR")]
    pub dir: PathBuf,
}

/// Writes `headgate.1`, and `headgate-COMMAND.1` for each command that the help lists.
///
/// # Errors
/// Returns an error if the folder can't be written.
pub fn run(args: &ManArgs) -> anyhow::Result<Output> {
    let failed = || format!("writing manual pages to {} failed", args.dir.display());
    fs::create_dir_all(&args.dir).with_context(failed)?;
    clap_mangen::generate_to(Cli::command(), &args.dir).with_context(failed)?;
    Ok(Output::ok(String::new()))
}
