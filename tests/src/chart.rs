//! The Helm chart: its folder, its rendering, and the table of its values in its README.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::kube::{ApiServer, programs};
use crate::process;

/// The namespace into which documentation and tests install the chart.
pub const NAMESPACE: &str = "headgate-system";

/// Returns the folder of the chart.
pub fn folder() -> PathBuf {
    programs::repository().join("charts/headgate")
}

/// Runs helm and returns its output.
///
/// # Errors
/// If helm fails. The error contains helm's message.
pub fn helm(arguments: &[&str]) -> Result<String> {
    let mut command = Command::new(programs::helm()?.join("helm"));
    let home = tempfile::tempdir()?;
    programs::helm_home(&mut command, home.path());
    command.args(arguments);
    process::run(&mut command, None).with_context(|| format!("helm {}", arguments.join(" ")))
}

/// Returns the objects that the chart renders from a file of values.
///
/// # Errors
/// If helm refuses the values, or its output isn't YAML.
pub fn render(values: &Path, arguments: &[&str]) -> Result<Vec<Value>> {
    let chart = folder();
    let mut all = vec![
        "template",
        "headgate",
        chart.to_str().context("path of the chart")?,
        "--namespace",
        NAMESPACE,
        "--values",
        values.to_str().context("path of the values")?,
    ];
    all.extend(arguments);
    objects(&helm(&all)?)
}

/// Returns the documents of a YAML stream, without empty ones.
///
/// # Errors
/// If a document isn't YAML.
pub fn objects(yaml: &str) -> Result<Vec<Value>> {
    let mut objects = Vec::new();
    for document in yaml.split("\n---\n") {
        let document = document.strip_prefix("---\n").unwrap_or(document);
        let only_comments = document
            .lines()
            .all(|line| line.trim().is_empty() || line.starts_with('#'));
        if !only_comments {
            objects.push(
                serde_saphyr::from_str(document).with_context(|| format!("no YAML: {document}"))?,
            );
        }
    }
    Ok(objects)
}

/// Returns the folder with the CRDs that a project publishes. The folder is below `HEADGATE_CRDS`,
/// or in the place where `scripts/get-crds` puts it.
///
/// # Errors
/// If the CRDs aren't available.
pub fn crds(project: &str) -> Result<String> {
    let folder = match std::env::var("HEADGATE_CRDS") {
        Ok(folder) => folder,
        Err(_) => {
            let script = programs::repository().join("scripts/get-crds");
            process::run(Command::new(script).arg(project), None)
                .with_context(|| format!("scripts/get-crds {project}"))?
        }
    };
    Ok(format!("{}/{project}", folder.trim()))
}

/// Installs the CRDs that a project publishes, and waits until the API server serves them.
///
/// # Errors
/// If the CRDs aren't available or are refused.
pub fn install_crds(server: &ApiServer, project: &str) -> Result<()> {
    let folder = crds(project)?;
    server.kubectl(&[
        "apply",
        "--server-side",
        "--force-conflicts",
        "--filename",
        &folder,
    ])?;
    // The wait is for all CRDs, because the folder also has objects of other kinds.
    server.wait_for_crds()
}

/// Installs those CRDs of a project whose name `is_wanted`, and waits until the API server serves
/// them.
///
/// # Errors
/// If the CRDs aren't available or are refused.
pub fn install_some_crds(
    server: &ApiServer,
    project: &str,
    is_wanted: impl Fn(&str) -> bool,
) -> Result<()> {
    let mut wanted = Vec::new();
    for file in std::fs::read_dir(crds(project)?)? {
        let all = objects(&std::fs::read_to_string(file?.path())?)?;
        let is_wanted =
            |object: &Value| object["metadata"]["name"].as_str().is_some_and(&is_wanted);
        wanted.extend(all.iter().filter(|o| is_wanted(o)).map(Value::to_string));
    }
    let arguments = [
        "apply",
        "--server-side",
        "--force-conflicts",
        "--filename=-",
    ];
    server.kubectl_as(
        server.kubeconfig(),
        &arguments,
        Some(&wanted.join("\n---\n")),
    )?;
    server.wait_for_crds()
}

/// Returns `Kind/name` of an object.
pub fn label(object: &Value) -> String {
    format!(
        "{}/{}",
        object["kind"].as_str().unwrap_or_default(),
        object["metadata"]["name"].as_str().unwrap_or_default()
    )
}

/// One value of the chart: its path, the default as JSON, and the comment above it.
#[derive(Debug, Clone, PartialEq)]
pub struct Documented {
    /// The path, such as `tls.generated.validityDays`.
    pub path: String,
    /// The default.
    pub default: Value,
    /// The comment, on one line.
    pub text: String,
}

/// Returns the values of a `values.yaml` in their order. A comment `# -- text` above a key
/// describes the key and everything nested in it.
///
/// # Errors
/// If the file isn't YAML, or a value has no description.
pub fn values(yaml: &str) -> Result<Vec<Documented>> {
    let defaults: Value = serde_saphyr::from_str(yaml).context("values.yaml")?;
    let mut documented: Vec<Documented> = Vec::new();
    // The keys that contain the current line, each with its indentation.
    let mut above: Vec<(usize, String)> = Vec::new();
    let mut comment: Option<String> = None;
    for line in yaml.lines() {
        let text = line.trim_start();
        let indent = line.len() - text.len();
        if let Some(more) = text.strip_prefix('#') {
            let more = more.trim();
            match (more.strip_prefix("-- "), &mut comment) {
                (Some(first), _) => comment = Some(first.to_owned()),
                (None, Some(comment)) => {
                    let _ = write!(comment, " {more}");
                }
                (None, None) => {}
            }
            continue;
        }
        let Some((key, _)) = text.split_once(':') else {
            comment = None;
            continue;
        };
        above.retain(|(i, _)| *i < indent);
        above.push((indent, key.to_owned()));
        let keys: Vec<&str> = above.iter().map(|(_, key)| key.as_str()).collect();
        let path = keys.join(".");
        let comment = comment.take();
        if documented
            .iter()
            .any(|d| path.starts_with(&format!("{}.", d.path)))
        {
            continue;
        }
        let default = keys
            .iter()
            .try_fold(&defaults, |value, key| value.get(key))
            .with_context(|| format!("values.yaml: no value {path}"))?;
        match comment {
            Some(text) => documented.push(Documented {
                path,
                default: default.clone(),
                text,
            }),
            None if default.is_object() => {}
            None => bail!("values.yaml: {path} has no description; write `# -- …` above it"),
        }
    }
    let paths: BTreeSet<&str> = documented.iter().map(|d| d.path.as_str()).collect();
    if paths.len() != documented.len() {
        bail!("values.yaml: a value stands there twice");
    }
    Ok(documented)
}

/// Returns the table of values for the chart's README.
pub fn table(values: &[Documented]) -> String {
    let mut table = "| value | default | |\n|---|---|---|\n".to_owned();
    for value in values {
        let _ = writeln!(
            table,
            "| `{}` | `{}` | {} |",
            value.path,
            value.default,
            value.text.replace('|', "\\|")
        );
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_with_their_descriptions() {
        let yaml = "# About the file.\n\n# -- One,\n# in two lines.\na: 1\n\
                    b:\n  # -- Map.\n  c:\n    d: x\n  # -- List | more.\n  e: []\n";
        let values = values(yaml).unwrap();
        assert_eq!(
            table(&values),
            "| value | default | |\n|---|---|---|\n| `a` | `1` | One, in two lines. |\n\
             | `b.c` | `{\"d\":\"x\"}` | Map. |\n| `b.e` | `[]` | List \\| more. |\n"
        );
    }

    #[test]
    fn a_value_without_description_is_found() {
        let error = super::values("# -- A.\na: 1\nb: {}\nc: 2\n").unwrap_err();
        assert_eq!(
            error.to_string(),
            "values.yaml: c has no description; write `# -- …` above it"
        );
    }
}
