//! `headgate version`: prints the version of this program, and those of the operators in a cluster.

use clap::Args;
use serde::Serialize;

use crate::status::view::{self, OperatorView};
use headgate_command::cluster::ClusterArgs;
use headgate_command::output::{Output, OutputFormat, block_on};

/// Prints the version.
#[derive(Debug, Clone, Args)]
pub(crate) struct VersionArgs {
    /// Also print the versions of the operators in the cluster
    #[arg(long)]
    pub(crate) server: bool,
    /// Output format
    #[arg(long, short, value_name = "FORMAT", default_value = "table")]
    pub(crate) output: OutputFormat,
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
}

/// The versions of this program and of operators.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Versions {
    client: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    operators: Option<Vec<OperatorView>>,
}

/// Prints the versions. Fails if the operators are queried and one of them doesn't answer, or if
/// none exists.
///
/// # Errors
/// Returns an error if the cluster can't be queried.
pub(crate) fn run(args: &VersionArgs) -> anyhow::Result<Output> {
    let operators = match args.server {
        true => Some(ask(&args.cluster)?),
        false => None,
    };
    show(operators, args.output)
}

fn ask(args: &ClusterArgs) -> anyhow::Result<Vec<OperatorView>> {
    block_on(async {
        let operators = args.connect().await?.operators().await?;
        if operators.is_empty() {
            anyhow::bail!(
                "no operator behind Service {}; name another with --operator",
                args.operator
            );
        }
        Ok(operators.iter().map(view::operator).collect())
    })
}

fn show(operators: Option<Vec<OperatorView>>, output: OutputFormat) -> anyhow::Result<Output> {
    let versions = Versions {
        client: env!("CARGO_PKG_VERSION"),
        operators,
    };
    let operators = versions.operators.iter().flatten();
    let table = || {
        let mut text = format!("headgate {}\n", versions.client);
        for o in operators.clone() {
            text += &match (&o.version, &o.problem) {
                (Some(version), _) => format!(
                    "operator {}: {version}, module {}\n",
                    o.pod,
                    o.module.as_deref().unwrap_or("-")
                ),
                (None, why) => format!("operator {}: {}\n", o.pod, why.as_deref().unwrap_or("-")),
            };
        }
        text
    };
    let text = output.text(&versions, table)?;
    let ok = operators.into_iter().all(|o| o.problem.is_none());
    Ok(Output::new(text, ok))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operator_that_does_not_answer_is_named() {
        let own = env!("CARGO_PKG_VERSION");
        let client = show(None, OutputFormat::Table).unwrap();
        assert_eq!(
            (client.text, client.ok),
            (format!("headgate {own}\n"), true)
        );
        let operator = |pod: &str, problem: Option<&str>| OperatorView {
            pod: pod.to_owned(),
            version: problem.is_none().then(|| "9.1.0".to_owned()),
            module: problem.is_none().then(|| "0123".to_owned()),
            problem: problem.map(str::to_owned),
        };
        let all = vec![operator("s/a", None), operator("s/b", Some("gone"))];
        let both = show(Some(all.clone()), OutputFormat::Table).unwrap();
        assert!(!both.ok);
        assert_eq!(
            both.text,
            format!("headgate {own}\noperator s/a: 9.1.0, module 0123\noperator s/b: gone\n")
        );
        let json = show(Some(all), OutputFormat::Json).unwrap();
        let json: serde_json::Value = serde_json::from_str(&json.text).unwrap();
        let expected = serde_json::json!([
            {"pod": "s/a", "version": "9.1.0", "module": "0123"},
            {"pod": "s/b", "problem": "gone"},
        ]);
        assert_eq!(json["operators"], expected);
    }
}
