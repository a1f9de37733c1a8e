//! The name by which this program was called. kubectl runs a program `kubectl-headgate` as `kubectl
//! headgate`.

use std::ffi::OsString;
use std::path::Path;

use clap::{CommandFactory as _, FromArgMatches as _};

use super::Cli;

/// Returns the command as users type it, for usage lines: `headgate`, or `kubectl headgate` if
/// kubectl runs the program as a plugin.
pub(crate) fn display_name(program: &Path) -> String {
    let file = program.file_name().and_then(|n| n.to_str()).unwrap_or("");
    let file = file.strip_suffix(".exe").unwrap_or(file);
    match file.strip_prefix("kubectl-") {
        // In the file names of kubectl plugins, underscores represent hyphens.
        Some(plugin) if !plugin.is_empty() => {
            format!("kubectl {}", plugin.replace('-', " ").replace('_', "-"))
        }
        _ => "headgate".to_owned(),
    }
}

/// Parses the command line, or ends the process with clap's message.
pub(crate) fn parse(arguments: impl IntoIterator<Item = OsString>) -> Cli {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let name = display_name(Path::new(arguments.first().unwrap_or(&OsString::new())));
    let mut command = Cli::command().bin_name(&name);
    let matches = command.clone().get_matches_from(arguments);
    Cli::from_arg_matches(&matches).unwrap_or_else(|e| e.format(&mut command).exit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plugin_is_called_by_kubectl() {
        let name = |path: &str| display_name(Path::new(path));
        assert_eq!(name("/usr/bin/headgate"), "headgate");
        assert_eq!(name("target/debug/headgate-1234"), "headgate");
        assert_eq!(name("/x/kubectl-headgate"), "kubectl headgate");
        assert_eq!(name("kubectl-headgate.exe"), "kubectl headgate");
        assert_eq!(name("kubectl-head_gate"), "kubectl head-gate");
        assert_eq!(name("kubectl-"), "headgate");
        assert_eq!(name(""), "headgate");
    }
}
