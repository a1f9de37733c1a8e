//! A real API server takes every object of the examples, and every object that users apply by the
//! chart's pages. The server has the CRDs of all projects that an example needs.

// Helpers of tests fail a test by panicking, as tests do.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::path::{Path, PathBuf};

use headgate_tests::chart;
use headgate_tests::headgate::run_command;
use headgate_tests::kube::ApiServer;
use headgate_tests::kube::programs::repository;
use headgate_tests::wait;
use serde_json::{Value, json};

/// The folders of examples for a Kubernetes cluster.
const FOLDERS: [&str; 7] = [
    "sidecar",
    "gateway",
    "dry-run",
    "grpc",
    "istio",
    "envoy-gateway",
    "autoscaling",
];

fn manifests(folder: &str) -> Vec<PathBuf> {
    let folder = repository().join("examples").join(folder);
    let mut files: Vec<PathBuf> = fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "yaml"))
        // `kind.yaml` configures kind, so it has no objects for the API server.
        .filter(|path| path.file_name().is_some_and(|name| name != "kind.yaml"))
        .collect();
    files.sort();
    assert!(!files.is_empty(), "{}", folder.display());
    files
}

/// Returns the objects of a file as users apply them by its README. They have an Envoy if the
/// README has users inject one.
fn applied(file: &Path) -> String {
    if file.ends_with("sidecar/search.yaml") {
        inject(file, &[])
    } else if file.ends_with("grpc/catalog.yaml") {
        inject(file, &["--upstream-http2"])
    } else {
        fs::read_to_string(file).unwrap()
    }
}

fn inject(file: &Path, arguments: &[&str]) -> String {
    let file = file.to_str().unwrap();
    run_command(&[&["inject", "--image=headgate:dev", file], arguments].concat()).unwrap()
}

fn objects(file: &Path) -> Vec<Value> {
    chart::objects(&applied(file)).unwrap()
}

/// Returns the Pod that an object makes, if it makes one. Pod security standards are enforced for
/// Pods, not for the objects that make them.
fn pod(object: &Value) -> Option<Value> {
    let template = object["spec"].get("template")?;
    let mut pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "example",
            "namespace": "shop",
            "labels": template["metadata"]["labels"],
        },
        "spec": template["spec"],
    });
    // The example creates the service account, but in this dry run the account doesn't exist.
    pod["spec"]["serviceAccountName"] = json!("default");
    Some(pod)
}

#[test]
fn the_api_server_takes_every_example() {
    let server = ApiServer::start().unwrap();
    server.install_crds().unwrap();
    for project in ["gateway-api", "istio", "envoy-gateway", "keda"] {
        chart::install_crds(&server, project).unwrap();
    }
    server.kubectl(&["create", "namespace", "shop"]).unwrap();
    // Envoy Gateway's chart installs Envoy Gateway in this namespace.
    server
        .kubectl(&["create", "namespace", "envoy-gateway-system"])
        .unwrap();
    wait::until("the namespace's service account", || {
        server
            .kubectl(&["get", "serviceaccount", "default", "--namespace=shop"])
            .map_err(|error| error.to_string())
    })
    .unwrap();
    // This is the strictest Pod security standard of Kubernetes.
    server
        .kubectl(&[
            "label",
            "namespace",
            "shop",
            "pod-security.kubernetes.io/enforce=restricted",
        ])
        .unwrap();
    for folder in FOLDERS {
        for file in manifests(folder) {
            let answer = server
                .dry_run(&applied(&file))
                .unwrap_or_else(|error| panic!("{}: {error:#}", file.display()));
            assert_eq!(answer.lines().count(), objects(&file).len(), "{answer}");
            for pod in objects(&file).iter().filter_map(pod) {
                server
                    .kubectl_as(
                        server.kubeconfig(),
                        &["create", "--dry-run=server", "--filename=-"],
                        Some(&pod.to_string()),
                    )
                    .unwrap_or_else(|error| panic!("{}: {error:#}", file.display()));
            }
        }
    }
    // Artifact Hub shows these examples beside the chart.
    let chart: Value =
        serde_saphyr::from_str(&fs::read_to_string(chart::folder().join("Chart.yaml")).unwrap())
            .unwrap();
    let examples: Vec<Value> = serde_saphyr::from_str(
        chart["annotations"]["artifacthub.io/crdsExamples"]
            .as_str()
            .unwrap(),
    )
    .unwrap();
    for example in examples {
        server
            .kubectl_as(
                server.kubeconfig(),
                &["apply", "--dry-run=server", "--filename=-"],
                Some(&example.to_string()),
            )
            .unwrap();
    }
}

/// The test runs the commands of the init containers, with paths of this machine. These commands
/// write the files with which Envoy starts.
#[test]
fn the_bootstraps_of_the_examples_are_made() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path();
    let own = |path: &str| format!("{}/{}", here.display(), path.rsplit('/').next().unwrap());
    fs::write(here.join("labels"), "app=\"search\"\n").unwrap();
    let mut made = 0;
    for file in FOLDERS.iter().flat_map(|folder| manifests(folder)) {
        for object in objects(&file) {
            let containers = &object["spec"]["template"]["spec"]["initContainers"];
            for container in containers.as_array().into_iter().flatten() {
                if container["image"] != "headgate:dev" {
                    continue;
                }
                let mut arguments = vec!["--namespace=shop".to_owned(), "--node-id=pod".to_owned()];
                for argument in container["args"].as_array().unwrap() {
                    let argument = argument.as_str().unwrap();
                    match argument.split_once("=/") {
                        Some((name, path)) => arguments.push(format!("{name}={}", own(path))),
                        None => arguments.push(argument.to_owned()),
                    }
                }
                // The subcommand must come first.
                let at = arguments.iter().position(|a| a == "bootstrap").unwrap();
                arguments.rotate_left(at);
                let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
                run_command(&arguments).unwrap();
                let bootstrap = fs::read_to_string(here.join("envoy.yaml")).unwrap();
                let bootstrap: Value = serde_saphyr::from_str(&bootstrap).unwrap();
                assert_eq!(
                    bootstrap["node"]["metadata"]["headgate.dev/namespace"],
                    "shop",
                    "{}",
                    file.display()
                );
                made += 1;
            }
        }
    }
    assert_eq!(made, 3, "sidecar, gateway and grpc");
}
