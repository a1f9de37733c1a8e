//! The command line. Each subcommand is one module, with its arguments and a function that runs it.
//!
//! The result goes to standard output. The lines `error:` and `warning:` go to standard error. The
//! exit code is 0 for a success, 1 for a problem with the input or the system, and 2 for a wrong
//! command line.

mod bootstrap;
mod check;
mod clean_up;
mod draft;
mod explain;
mod inject;
mod input;
mod module;
mod name;
mod packaging;
mod path;
mod render;
mod run;
#[cfg(feature = "tools")]
mod simulate;
mod slo;
mod status;
#[cfg(feature = "tools")]
mod suggest;
#[cfg(feature = "tools")]
mod sysid;
mod validate;
mod version;

use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use headgate_command::output::{Output, print};
use headgate_controller::kubernetes::crd;
use input::Mistakes;

// Exported for the tests of workloads with mistakes.
#[cfg(feature = "tools")]
pub use simulate::WorkloadDocument;

/// Keeps services inside their latency objectives: admission control for Envoy.
#[derive(Debug, Parser)]
#[command(name = "headgate", version, propagate_version = false)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// Subcommands.
#[derive(Debug, Subcommand)]
enum Command {
    /// Check policy files, and list every mistake with its line, its field and a valid value
    Validate(validate::ValidateArgs),
    /// Print the configuration that a proxy gets for a policy
    Render(render::RenderArgs),
    /// Explain which rule a request matches
    Explain(explain::ExplainArgs),
    /// Suggest a first policy, from an access log or from a proxy's measurements
    #[cfg(feature = "tools")]
    Suggest(suggest::SuggestArgs),
    /// Print the objectives of policies for OpenSLO or Sloth, or a policy from an OpenSLO file
    Slo(slo::SloArgs),
    /// Try a policy under a workload, or run an experiment of the papers
    #[cfg(feature = "tools")]
    Simulate(simulate::SimulateArgs),
    /// Serve the policies of a folder or a cluster to proxies
    Run(Box<run::RunArgs>),
    /// Print an Envoy bootstrap with a Headgate slot
    Bootstrap(Box<bootstrap::BootstrapArgs>),
    /// Add an Envoy with a Headgate slot to the Pods of workloads
    Inject(Box<inject::InjectArgs>),
    /// Remove what inject added to workloads
    Uninject(inject::UninjectArgs),
    /// Remove the objects that operators have written, before you uninstall the operators
    CleanUp(clean_up::CleanUpArgs),
    /// Show the policies and proxies of a cluster, or of a running `headgate run`
    ///
    /// Exit codes: 0 if every policy is accepted, and programmed or without proxies; 1 if one
    /// isn't, if there is no response, or if --wait times out; 2 if the command line is wrong.
    Status(status::StatusArgs),
    /// Check an installation in a cluster: one line for each finding, with its remedy
    ///
    /// Exit codes: 0 if no finding is an error; 1 if one is; 2 if the command line is wrong.
    Check(check::CheckArgs),
    /// Show live requests, refusals and waits at proxies, by policy, type and workflow
    #[cfg(feature = "tools")]
    Top(Box<headgate_top::TopArgs>),
    /// Find gains for backlog control from a trace of delays and backlogs
    #[cfg(feature = "tools")]
    Sysid(sysid::SysidArgs),
    /// Print the CustomResourceDefinition of AdmissionPolicy
    Crd,
    /// Print the version
    Version(version::VersionArgs),
    /// Print shell completions
    Completions(packaging::CompletionsArgs),
    /// Write manual pages
    #[command(hide = true)]
    Man(packaging::ManArgs),
    /// The commands of the feature `tools`, in a program without it
    #[cfg(not(feature = "tools"))]
    #[command(
        name = "top",
        aliases = ["simulate", "suggest", "sysid"],
        hide = true,
        disable_help_flag = true
    )]
    Missing {
        /// Its arguments
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        _arguments: Vec<std::ffi::OsString>,
    },
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    let output = match name::parse(std::env::args_os()).command {
        Command::Validate(args) => validate::run(&args),
        Command::Render(args) => render::run(&args),
        Command::Explain(args) => explain::run(&args),
        #[cfg(feature = "tools")]
        Command::Suggest(args) => suggest::run(&args),
        Command::Slo(args) => slo::run(&args),
        #[cfg(feature = "tools")]
        Command::Simulate(args) => simulate::run(&args),
        Command::Run(args) => run::run(&args).map(|()| Output::ok(String::new())),
        Command::Bootstrap(args) => bootstrap::run(&args),
        Command::Inject(args) => inject::run(&args),
        Command::Uninject(args) => inject::remove(&args),
        Command::CleanUp(args) => clean_up::run(&args),
        Command::Status(args) => status::run(&args),
        Command::Check(args) => check::run(&args),
        #[cfg(feature = "tools")]
        Command::Top(args) => headgate_top::run(&args),
        #[cfg(feature = "tools")]
        Command::Sysid(args) => sysid::run(&args),
        Command::Crd => crd::file().map(Output::ok),
        Command::Version(args) => version::run(&args),
        Command::Completions(args) => Ok(packaging::completions(&args)),
        Command::Man(args) => packaging::man(&args),
        #[cfg(not(feature = "tools"))]
        Command::Missing { .. } => Err(anyhow::anyhow!(
            "this is the program of Headgate's image, which lacks top, simulate, suggest and \
             sysid; run that of an archive of the release, headgate-{}-PLATFORM.tar.gz, or of \
             `scripts/build operator`",
            env!("CARGO_PKG_VERSION")
        )),
    };
    let result = output.and_then(|output| {
        print(&output.text)?;
        // Nothing can be reported once standard error is closed.
        let _ = io::stderr().write_all(output.notes.as_bytes());
        Ok(output.ok)
    });
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            let _ = match error.downcast_ref::<Mistakes>() {
                Some(mistakes) => write!(io::stderr(), "{mistakes}"),
                None => writeln!(io::stderr(), "error: {error:#}"),
            };
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
