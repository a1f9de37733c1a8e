//! `headgate` as a plugin of kubectl, against a real API server, with the rights of a user.

use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result};
use headgate_tests::headgate::binary_path;
use headgate_tests::kube::{ApiServer, programs};
use headgate_tests::wait::until;
use serde_json::{Value, json};
use tempfile::TempDir;

const POLICY: &str = "
apiVersion: headgate.dev/v1alpha1
kind: AdmissionPolicy
metadata: {name: search}
spec:
  targetRefs: [{group: '', kind: Service, name: search}]
  parallelism: {perEndpoint: 4}
  strategy: {type: MaxQueueLength}
  types: [{name: default}]
";

/// Runs `kubectl headgate ARGUMENTS`, with the program linked under the name that kubectl looks
/// for.
fn plugin(kubeconfig: &Path, arguments: &[&str]) -> Result<Output> {
    let (_folder, mut command) = command(kubeconfig, arguments)?;
    command.output().context("kubectl")
}

/// Returns the command, and a folder that must exist while the command runs.
fn command(kubeconfig: &Path, arguments: &[&str]) -> Result<(TempDir, Command)> {
    let folder = tempfile::tempdir()?;
    let program = binary_path()
        .canonicalize()
        .context("build it with scripts/build")?;
    symlink(program, folder.path().join("kubectl-headgate"))?;
    let mut path = folder.path().as_os_str().to_owned();
    path.push(":/usr/bin:/bin");
    let mut command = Command::new(programs::helm()?.join("kubectl"));
    command
        .arg("headgate")
        .args(arguments)
        .stdin(Stdio::null())
        .env("PATH", path)
        .env("KUBECONFIG", kubeconfig);
    Ok((folder, command))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns the status that the operator gives to a policy.
fn judged(generation: i64, accepted: bool) -> String {
    let condition = |kind: &str| {
        json!({
            "type": kind, "status": if accepted { "True" } else { "False" },
            "reason": if accepted { kind } else { "TargetNotFound" },
            "message": "as the test says", "observedGeneration": generation,
            "lastTransitionTime": "2026-03-01T12:00:00Z",
        })
    };
    json!({"status": {"ancestors": [{
        "ancestorRef": {"group": "", "kind": "Service", "name": "search"},
        "controllerName": "headgate.dev/controller",
        "conditions": [condition("Accepted"), condition("Programmed")],
    }]}})
    .to_string()
}

#[test]
fn status_follows_a_policy() -> Result<()> {
    let server = ApiServer::shared();
    server.install_crds()?;
    let namespace = server.namespace("cli")?;
    let space = format!("--namespace={namespace}");
    let status = || plugin(server.kubeconfig(), &["status", "-n", &namespace]);

    let none = status()?;
    assert_eq!(
        (text(&none.stdout), none.status.code()),
        ("No policies.\n".into(), Some(0))
    );
    let elsewhere = format!("namespace {namespace} has no policies; --all-namespaces");
    assert!(text(&none.stderr).contains(&elsewhere), "{none:?}");

    let apply = ["apply", &space, "--filename=-"];
    server.kubectl_as(server.kubeconfig(), &apply, Some(POLICY))?;
    let unjudged = status()?;
    assert_eq!(unjudged.status.code(), Some(1));
    let shown = text(&unjudged.stdout);
    let row = shown.lines().nth(1).context("a row")?;
    let cells: Vec<&str> = row
        .split("   ")
        .map(str::trim)
        .filter(|c| !c.is_empty())
        .collect();
    let (name, target) = (
        format!("{namespace}/search"),
        format!("Service/{namespace}/search"),
    );
    assert_eq!(
        cells[..5],
        [
            &name,
            &target,
            "Enforce",
            "Unknown (Pending)",
            "Unknown (Pending)"
        ]
    );
    assert!(
        text(&unjudged.stderr)
            .contains("no operator answers at Service headgate-system/headgate-metrics")
    );

    program(server, &namespace, "search", 1, true)?;
    let good = status()?;
    assert_eq!(good.status.code(), Some(0), "{}", text(&good.stdout));
    program(server, &namespace, "search", 1, false)?;
    let bad = status()?;
    assert_eq!(bad.status.code(), Some(1));
    assert!(
        text(&bad.stdout).contains(": TargetNotFound: as the test says"),
        "{}",
        text(&bad.stdout)
    );

    let edited = POLICY.replace("perEndpoint: 4", "perEndpoint: 5");
    server.kubectl_as(server.kubeconfig(), &apply, Some(&edited))?;
    let stale = text(&status()?.stdout);
    assert!(
        stale.contains("no operator has reconciled generation 2 yet"),
        "{stale}"
    );

    let json = plugin(server.kubeconfig(), &["status", "-A", "-o", "json"])?;
    let json: Value = serde_json::from_slice(&json.stdout)?;
    let policies = json["policies"].as_array().context("policies")?;
    assert!(
        policies.iter().any(|p| p["name"] == name.as_str()),
        "{json}"
    );
    Ok(())
}

/// Sets the policy's status to programmed.
pub(crate) fn program(
    server: &ApiServer,
    namespace: &str,
    name: &str,
    generation: i64,
    accepted: bool,
) -> Result<String> {
    let space = format!("--namespace={namespace}");
    let body = judged(generation, accepted);
    let patch = ["patch", "admissionpolicy", name, &space];
    let subresource = ["--subresource=status", "--type=merge", "-p", &body];
    server.kubectl(&[&patch[..], &subresource].concat())
}

#[test]
fn wait_ends_when_the_policy_is_programmed() -> Result<()> {
    let server = ApiServer::shared();
    server.install_crds()?;
    let namespace = server.namespace("wait")?;
    let space = format!("--namespace={namespace}");
    let apply = ["apply", &space, "--filename=-"];
    let arguments = ["status", "search", "-n", &namespace, "--wait", "--watch"];
    // The policy doesn't exist yet, as if two jobs of a pipeline ran at once.
    let (_folder, mut command) = command(
        server.kubeconfig(),
        &[&arguments[..], &["--timeout=5m"]].concat(),
    )?;
    let mut waiting = command
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let mut lines = BufReader::new(waiting.stdout.take().context("stdout")?).lines();
    let mut next = |part: &str| -> Result<String> {
        for line in lines.by_ref() {
            let line = line?;
            if line.contains(part) {
                return Ok(line);
            }
        }
        anyhow::bail!("it ended before it said {part:?}")
    };
    next("No policies.")?;
    server.kubectl_as(server.kubeconfig(), &apply, Some(POLICY))?;
    next("Unknown (Pending)")?;
    program(server, &namespace, "search", 1, false)?;
    next("False (TargetNotFound)")?;
    program(server, &namespace, "search", 1, true)?;
    let row = next("/search ")?;
    assert!(row.contains(" True "), "{row}");
    assert_eq!(waiting.wait()?.code(), Some(0));

    // The wait ends at once for a programmed policy, and at the timeout for a policy that isn't
    // programmed.
    let wait = ["status", "-n", &namespace, "--wait", "--timeout"];
    let done = plugin(server.kubeconfig(), &[&wait[..], &["5m"]].concat())?;
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    program(server, &namespace, "search", 1, false)?;
    let late = plugin(server.kubeconfig(), &[&wait[..], &["3s"]].concat())?;
    assert_eq!(late.status.code(), Some(1), "{late:?}");
    assert!(
        text(&late.stdout).contains("False (TargetNotFound)"),
        "{late:?}"
    );
    assert_eq!(
        text(&late.stderr).lines().last(),
        Some("error: not programmed within 3s")
    );

    let other = plugin(server.kubeconfig(), &["status", "other", "-n", &namespace])?;
    assert_eq!(other.status.code(), Some(1));
    assert!(
        text(&other.stderr).contains("other doesn't exist"),
        "{other:?}"
    );
    Ok(())
}

/// The output names an operator whose Pod can't be reached, and still shows the policies.
#[test]
fn an_operator_that_is_out_of_reach_is_named() -> Result<()> {
    let server = ApiServer::shared();
    server.install_crds()?;
    let namespace = server.namespace("operator")?;
    let space = format!("--namespace={namespace}");
    server.kubectl(&["create", "serviceaccount", "headgate-metrics", &space])?;
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {
            "name": "metrics", "namespace": namespace,
            "labels": {"kubernetes.io/service-name": "headgate-metrics"},
        },
        "ports": [{"name": "http-admin", "port": 18001}],
        "endpoints": [{
            "addresses": ["10.244.0.9"],
            "targetRef": {"kind": "Pod", "name": "headgate-1", "namespace": namespace},
        }],
    });
    server.apply(&slice.to_string())?;
    let service = format!("--operator={namespace}/headgate-metrics");
    let version = plugin(server.kubeconfig(), &["version", "--server", &service])?;
    assert_eq!(version.status.code(), Some(1));
    let shown = text(&version.stdout);
    let expected =
        format!("operator {namespace}/headgate-1: 404 Not Found: pods \"headgate-1\" not found");
    assert_eq!(shown.lines().nth(1), Some(expected.as_str()), "{shown}");
    let status = plugin(server.kubeconfig(), &["status", "-n", &namespace, &service])?;
    assert!(
        text(&status.stdout).starts_with("No policies.\n"),
        "{status:?}"
    );
    Ok(())
}

#[test]
fn the_api_servers_refusal_is_shown() -> Result<()> {
    let server = ApiServer::shared();
    server.install_crds()?;
    let namespace = server.namespace("rights")?;
    let space = format!("--namespace={namespace}");
    let user = server.user_kubeconfig("person", Some("people"))?;
    let status = || plugin(&user, &["status", "-n", &namespace]);
    let refused = status()?;
    assert_eq!(
        (refused.status.code(), text(&refused.stdout)),
        (Some(1), String::new())
    );
    let error = text(&refused.stderr);
    assert!(
        error.contains("admissionpolicies.headgate.dev is forbidden"),
        "{error}"
    );

    // The right to read policies is enough to show policies.
    let verbs = [
        "create",
        "role",
        "reader",
        "--verb=list",
        "--resource=admissionpolicies",
        &space,
    ];
    server.kubectl(&verbs)?;
    server.kubectl(&[
        "create",
        "rolebinding",
        "reader",
        "--role=reader",
        "--group=people",
        &space,
    ])?;
    let seen = until("the role to count", || {
        let seen = status().map_err(|e| format!("{e:#}"))?;
        match seen.status.code() {
            Some(0) => Ok(seen),
            _ => Err(text(&seen.stderr)),
        }
    })?;
    assert_eq!(text(&seen.stdout), "No policies.\n");
    let warning = text(&seen.stderr);
    assert!(
        warning.starts_with("warning: proxies are not shown: the API server: "),
        "{warning}"
    );
    Ok(())
}

#[test]
fn help_names_the_command_as_it_was_called() -> Result<()> {
    let server = ApiServer::shared();
    let help = plugin(server.kubeconfig(), &["status", "--help"])?;
    assert!(
        text(&help.stdout).contains("Usage: kubectl headgate status"),
        "{}",
        text(&help.stdout)
    );
    let list = Command::new(programs::helm()?.join("kubectl"))
        .args(["plugin", "list"])
        .output()?;
    assert!(
        !text(&list.stdout).contains("kubectl-headgate"),
        "the link is this test's own"
    );
    Ok(())
}
