//! Tests of `headgate status` and `headgate version` in a cluster, and of the program as a plugin
//! of kubectl.
//!
//! The API server in these tests returns prepared responses, because the tests check only the
//! program's output. `tests/tests/k8s/cli.rs` uses a real API server.

// Helpers of tests fail a test by panicking, as tests do.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::program::{Cluster, SLICES, TOKEN, command, gone, headgate, list, text, token};

const POLICIES: &str = "/apis/headgate.dev/v1alpha1/admissionpolicies";
const OF_SHOP: &str = "/apis/headgate.dev/v1alpha1/namespaces/shop/admissionpolicies";

fn policy(name: &str, accepted: &str, message: &str) -> Value {
    let condition = |kind: &str, reason: &str| {
        json!({
            "type": kind, "status": if reason == kind { "True" } else { "False" }, "reason": reason,
            "message": message, "observedGeneration": 1,
            "lastTransitionTime": "2026-03-01T12:00:00Z",
        })
    };
    let programmed = if accepted == "Accepted" {
        "Programmed"
    } else {
        accepted
    };
    json!({
        "apiVersion": "headgate.dev/v1alpha1", "kind": "AdmissionPolicy",
        "metadata": {"name": name, "namespace": "shop", "generation": 1},
        "spec": {"targetRefs": [{"kind": "Service", "name": "search"}]},
        "status": {"ancestors": [{
            "ancestorRef": {"kind": "Service", "name": "search"},
            "controllerName": "headgate.dev/controller",
            "conditions": [condition("Accepted", accepted), condition("Programmed", programmed)],
        }]},
    })
}

fn report(module: &str) -> Value {
    json!({
        "time": "2026-03-01T12:00:00Z", "version": "1.2.3",
        "module": {"path": "/m", "hash": module, "bytes": 1},
        "policies": [], "problems": [],
        "proxies": [{
            "node": format!("search-{module}"), "cluster": "search",
            "target": null, "namespace": "shop", "peer": "10.0.0.1:1",
            "slots": ["headgate"],
            "connected": "2026-03-01T12:00:00Z", "disconnected": null, "state": "Running",
            "policies": ["shop/search"], "problem": null, "sent": null, "nack": null,
            "acked": {"version": "1", "revision": "abc", "time": "2026-03-01T12:00:00Z"},
        }],
    })
}

fn slices(pods: &[&str]) -> Value {
    let endpoint =
        |pod: &&str| json!({"addresses": ["10.0.0.9"], "targetRef": {"kind": "Pod", "name": pod}});
    list(&[json!({
        "metadata": {"name": "s"}, "addressType": "IPv4",
        "ports": [{"name": "grpc-xds", "port": 18000}, {"name": "http-admin", "port": 9000}],
        "endpoints": pods.iter().map(endpoint).collect::<Vec<_>>(),
    })])
}

const POD_A: &str = "/api/v1/namespaces/headgate-system/pods/a:9000/proxy/status";
const POD_B: &str = "/api/v1/namespaces/headgate-system/pods/b:9000/proxy/status";

fn both() -> Vec<Value> {
    vec![
        policy("search", "Accepted", "valid"),
        policy(
            "younger",
            "Conflicted",
            "Service/shop/search belongs to shop/search",
        ),
    ]
}

#[test]
fn status_shows_policies_and_the_proxies_of_all_operators() {
    let cluster = Cluster::new(BTreeMap::from([
        (POLICIES, list(&both())),
        (OF_SHOP, list(&both()[..1])),
        (SLICES, slices(&["a", "b", "c"])),
        (TOKEN, token()),
        (POD_A, report("aaa")),
        (POD_B, report("aab")),
    ]));
    let all = cluster.ask(&["status", "-A"]);
    assert_eq!(all.status.code(), Some(1), "a policy isn't in force");
    insta::assert_snapshot!(text(&all.stdout));
    assert_eq!(text(&all.stderr), "");

    let of_context = cluster.ask(&["status"]);
    assert_eq!(
        of_context.status.code(),
        Some(0),
        "{}",
        text(&of_context.stdout)
    );
    assert!(
        !text(&of_context.stdout).contains("younger"),
        "of the context's namespace"
    );
    assert_eq!(
        text(&cluster.ask(&["status", "-n", "shop"]).stdout),
        text(&of_context.stdout)
    );

    let json = cluster.ask(&["status", "-A", "-o", "json"]);
    let json: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(
        json["policies"][0]["proxies"],
        json!({"inSync": 2, "total": 2})
    );
    assert_eq!(json["workloads"][0]["inForce"], json!(["shop/search"]));
    assert_eq!(json["operators"][0]["version"], "1.2.3");
    assert!(
        json["operators"][2]["problem"]
            .as_str()
            .unwrap()
            .starts_with("404 Not Found")
    );
    let yaml = cluster.ask(&["status", "-A", "-o", "yaml"]);
    let yaml: Value = serde_saphyr::from_str(text(&yaml.stdout)).unwrap();
    assert_eq!(yaml, json);
}

/// The chart allows 100 replicas.
#[test]
fn status_shows_the_proxies_of_many_operators() {
    let pods: Vec<String> = (100..201).map(|n| format!("p{n}")).collect();
    let pods: Vec<&str> = pods.iter().map(String::as_str).collect();
    let path = |pod: &&str| POD_A.replace("/a:", &format!("/{pod}:"));
    let paths: Vec<String> = pods.iter().map(path).collect();
    let reports = pods.iter().map(|pod| report(pod));
    let mut answers: BTreeMap<&str, Value> =
        paths.iter().map(String::as_str).zip(reports).collect();
    answers.extend([
        (POLICIES, list(&both())),
        (SLICES, slices(&pods)),
        (TOKEN, token()),
    ]);
    let status = Cluster::new(answers).ask(&["status", "-A", "-o", "json"]);
    let status: Value = serde_json::from_slice(&status.stdout).unwrap();
    let proxies = &status["policies"][0]["proxies"];
    assert_eq!(*proxies, json!({"inSync": 101, "total": 101}));
}

#[test]
fn without_operators_policies_are_shown_all_the_same() {
    let cluster = Cluster::new(BTreeMap::from([
        (POLICIES, list(&both())),
        (SLICES, list(&[])),
    ]));
    let status = cluster.ask(&["status", "-A"]);
    assert!(
        text(&status.stdout).starts_with("POLICY "),
        "{}",
        text(&status.stdout)
    );
    assert_eq!(
        text(&status.stderr),
        "warning: proxies are not shown: no operator answers at Service \
         headgate-system/headgate-metrics; name another with --operator\n"
    );
}

#[test]
fn status_shows_policies_to_a_user_without_a_token() {
    let cluster = Cluster::new(BTreeMap::from([
        (POLICIES, list(&both())),
        (SLICES, slices(&["a"])),
        (POD_A, report("aaa")),
    ]));
    let status = cluster.ask(&["status", "-A"]);
    assert!(text(&status.stdout).starts_with("POLICY "));
    assert_eq!(
        text(&status.stderr),
        "warning: proxies are not shown: the API server: the server could not find the requested \
         resource\n"
    );
}

#[test]
fn an_error_of_a_request_to_the_cluster_is_one_line() {
    let empty = Cluster::new(BTreeMap::new());
    let status = empty.ask(&["status", "-A"]);
    assert_eq!((status.status.code(), text(&status.stdout)), (Some(1), ""));
    let error = text(&status.stderr);
    assert!(
        error.contains("the CRD of AdmissionPolicy isn't installed; install Headgate"),
        "{error}"
    );
    assert_eq!(error.lines().count(), 1);

    let config = std::fs::read_to_string(&empty.kubeconfig).unwrap();
    let mut config: Value = serde_json::from_str(&config).unwrap();
    config["clusters"][0]["cluster"]["server"] = json!(format!("http://{}", gone()));
    std::fs::write(&empty.kubeconfig, config.to_string()).unwrap();
    let error = empty.ask(&["status"]);
    let error = text(&error.stderr);
    assert!(error.contains("the API server can't be reached"), "{error}");
    assert!(error.contains("--admin 127.0.0.1:18001"), "{error}");
    let error = empty.ask(&["clean-up"]);
    let error = text(&error.stderr);
    assert!(error.contains("the API server can't be reached"), "{error}");

    let missing = headgate(&["status", "--kubeconfig", "/no/such/file"]);
    let error = text(&missing.stderr);
    assert!(
        error.starts_with("error: --kubeconfig /no/such/file: "),
        "{error}"
    );
    let cause = "No such file or directory (os error 2)";
    assert_eq!(error.matches(cause).count(), 1, "{error}");
    let both = headgate(&["status", "--admin", "127.0.0.1:1", "-A"]);
    assert_eq!(both.status.code(), Some(2), "an address or a cluster");
    let wait = headgate(&["status", "--admin", "127.0.0.1:1", "--wait"]);
    assert_eq!(
        wait.status.code(),
        Some(2),
        "only a cluster tells of changes"
    );
    let timeout = headgate(&["status", "--timeout", "5s"]);
    assert_eq!(timeout.status.code(), Some(2), "of a wait");
}

#[test]
fn version_asks_the_operators_with_server() {
    let cluster = Cluster::new(BTreeMap::from([
        (SLICES, slices(&["a"])),
        (TOKEN, token()),
        (POD_A, report("aaa")),
    ]));
    let own = format!("headgate {}\n", env!("CARGO_PKG_VERSION"));
    let client = cluster.ask(&["version"]);
    assert_eq!(text(&client.stdout), own);
    let server = cluster.ask(&["version", "--server"]);
    assert_eq!(server.status.code(), Some(0), "{}", text(&server.stderr));
    assert_eq!(
        text(&server.stdout),
        format!("{own}operator headgate-system/a: 1.2.3, module aaa\n")
    );
    let json = cluster.ask(&["version", "--server", "-o", "json"]);
    let json: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["operators"][0]["pod"], "headgate-system/a");
    let other = cluster.ask(&["version", "--server", "--operator", "elsewhere/headgate"]);
    assert_eq!(other.status.code(), Some(1));
}

/// An operator's Pod may be terminating, as just after an upgrade.
#[test]
fn an_operator_that_ends_is_not_asked() {
    let mut slices = slices(&["a", "gone"]);
    slices["items"][0]["endpoints"][1]["conditions"] = json!({"terminating": true});
    let cluster = Cluster::new(BTreeMap::from([
        (SLICES, slices),
        (TOKEN, token()),
        (POD_A, report("aaa")),
    ]));
    let server = cluster.ask(&["version", "--server"]);
    assert_eq!(server.status.code(), Some(0), "{}", text(&server.stdout));
    assert!(!text(&server.stdout).contains("gone"));
}

#[test]
fn help_of_a_plugin_names_the_kubectl_command() {
    let home = tempfile::tempdir().unwrap();
    let plugin = home.path().join("kubectl-headgate");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_headgate"), &plugin).unwrap();
    let help = command(&plugin, &["status", "--help"]).output().unwrap();
    assert!(
        text(&help.stdout).contains("Usage: kubectl headgate status"),
        "{}",
        text(&help.stdout)
    );
    let wrong = command(&plugin, &["sttus"]).output().unwrap();
    assert_eq!(wrong.status.code(), Some(2));
    assert!(
        text(&wrong.stderr).contains("Usage: kubectl headgate "),
        "{}",
        text(&wrong.stderr)
    );
    let help = headgate(&["status", "--help"]);
    assert!(
        text(&help.stdout).contains("Usage: headgate status"),
        "{}",
        text(&help.stdout)
    );
}

/// Returns the names of the subcommands that `--help` lists, such as `certificate`, and of their
/// own subcommands, such as `certificate-ca`.
fn commands(above: &[&str]) -> Vec<String> {
    let help = headgate(&[above, &["--help"]].concat());
    let mut names = Vec::new();
    let listed = text(&help.stdout)
        .lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1);
    for line in listed.take_while(|line| !line.is_empty()) {
        // A description may need a second line, which has a deeper indentation.
        let name = match line.strip_prefix("  ") {
            Some(rest) if !rest.starts_with(' ') => rest.split(' ').next().unwrap(),
            _ => continue,
        };
        if name != "help" {
            let path = [above, &[name]].concat();
            names.push(path.join("-"));
            names.extend(commands(&path));
        }
    }
    names
}

#[test]
fn every_command_has_a_manual_page() {
    let home = tempfile::tempdir().unwrap();
    // This folder doesn't exist yet.
    let folder = home.path().join("share/man1");
    let made = headgate(&["man", "--dir", folder.to_str().unwrap()]);
    assert_eq!(made.status.code(), Some(0), "{}", text(&made.stderr));
    let mut expected: Vec<String> = commands(&[])
        .iter()
        .map(|name| format!("headgate-{name}.1"))
        .collect();
    assert!(expected.contains(&"headgate-validate.1".to_owned()));
    assert!(expected.contains(&"headgate-bootstrap.1".to_owned()));
    expected.push("headgate.1".to_owned());
    expected.sort();
    let mut found: Vec<String> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    found.sort();
    assert_eq!(found, expected);
    let page = std::fs::read_to_string(folder.join("headgate-bootstrap.1")).unwrap();
    assert!(page.contains(".TH headgate-bootstrap 1"), "{page}");
    assert!(page.contains("headgate bootstrap"), "{page}");
    assert!(page.contains("xds\\-token"), "{page}");

    let file = home.path().join("file");
    std::fs::write(&file, "").unwrap();
    let refused = headgate(&["man", "--dir", file.to_str().unwrap()]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        text(&refused.stderr).starts_with("error: writing manual pages to "),
        "{}",
        text(&refused.stderr)
    );
}

#[test]
fn every_shell_gets_completions() {
    let home = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let script = headgate(&["completions", shell]);
        let script = text(&script.stdout);
        assert!(
            script.contains("all-namespaces") && script.contains("simulate"),
            "{shell}"
        );
    }
    // The shell accepts the script and completes a command with it.
    let script = home.path().join("headgate.bash");
    std::fs::write(&script, headgate(&["completions", "bash"]).stdout).unwrap();
    let complete = format!(
        "source {}; COMP_WORDS=(headgate sta); COMP_CWORD=1; _headgate headgate sta headgate; \
         echo \"${{COMPREPLY[@]}}\"",
        script.display()
    );
    let bash = command("bash", &["--norc", "-c", &complete])
        .output()
        .unwrap();
    assert_eq!(text(&bash.stdout), "status\n", "{}", text(&bash.stderr));
}
