//! The command line: one module a subcommand, each with its arguments and a function that runs it.
//!
//! What was asked for goes to standard output; `error:` and `warning:` lines go to standard error. Exit
//! codes: 0, 1 when something is wrong with the input or the system, 2 when the command line is.

pub mod bootstrap;
pub mod explain;
mod input;
pub mod render;
pub mod run;
pub mod simulate;
pub mod status;
pub mod sysid;
pub mod table;
pub mod validate;

use std::io::{self, ErrorKind, Write as _};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Keeps services inside their latency objectives: admission control for Envoy.
#[derive(Debug, Parser)]
#[command(name = "headgate", version, propagate_version = false)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Check policy files; every mistake with its line, its field and what would be right
    Validate(validate::ValidateArgs),
    /// Print what a proxy gets for a policy
    Render(render::RenderArgs),
    /// Tell which rule a request matches, and why
    Explain(explain::ExplainArgs),
    /// Try a policy under a workload, or run an experiment of the papers
    Simulate(simulate::SimulateArgs),
    /// Serve the policies of a folder to proxies
    Run(run::RunArgs),
    /// Print an Envoy bootstrap with a Headgate slot
    Bootstrap(bootstrap::BootstrapArgs),
    /// Show policies and proxies of a running `headgate run`
    Status(status::StatusArgs),
    /// Find gains for backlog control from a trace of delays and backlogs
    Sysid(sysid::SysidArgs),
    /// Print the version
    Version,
}

/// What a command prints and how the process ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// For standard output.
    pub text: String,
    /// For standard error.
    pub notes: String,
    /// Whether all is well.
    pub ok: bool,
}

impl Output {
    /// All is well.
    #[must_use]
    pub fn ok(text: String) -> Self {
        Self {
            text,
            notes: String::new(),
            ok: true,
        }
    }
}

/// Runs the command line of this process.
#[must_use]
pub fn main() -> ExitCode {
    let output = match Cli::parse().command {
        Command::Validate(args) => validate::run(&args),
        Command::Render(args) => render::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Simulate(args) => simulate::run(&args),
        Command::Run(args) => run::run(&args).map(|()| Output::ok(String::new())),
        Command::Bootstrap(args) => Ok(Output::ok(args.to_yaml())),
        Command::Status(args) => status::run(&args).map(Output::ok),
        Command::Sysid(args) => sysid::run(&args),
        Command::Version => Ok(Output::ok(format!(
            "headgate {}\n",
            env!("CARGO_PKG_VERSION")
        ))),
    };
    let result = output.and_then(|output| {
        let written = io::stdout()
            .write_all(output.text.as_bytes())
            .and_then(|()| io::stdout().flush());
        match written {
            // The reader has seen enough, as `head` does.
            Err(e) if e.kind() == ErrorKind::BrokenPipe => {}
            other => other?,
        }
        // Nowhere to complain to when standard error is closed.
        let _ = io::stderr().write_all(output.notes.as_bytes());
        Ok(output.ok)
    });
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            let _ = writeln!(io::stderr(), "error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
