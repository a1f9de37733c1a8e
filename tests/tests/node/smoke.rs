//! The node of the tests itself: Pods run, have names in DNS, and leave nothing behind.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use headgate_tests::http;
use headgate_tests::kube::Node;
use headgate_tests::kube::node::{can_run, image};
use headgate_tests::wait::until;

const BACKEND: &str = "
apiVersion: v1
kind: Service
metadata: {name: search}
spec:
  selector: {app: search}
  ports: [{port: 80, targetPort: 8080}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: search}
spec:
  replicas: 2
  selector: {matchLabels: {app: search}}
  template:
    metadata: {labels: {app: search}}
    spec:
      securityContext:
        runAsNonRoot: true
        seccompProfile: {type: RuntimeDefault}
      containers:
      - name: search
        image: headgate-backend:dev
        args: [--listen=0.0.0.0:8080, --type=/=1/1]
        readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}
        securityContext:
          allowPrivilegeEscalation: false
          readOnlyRootFilesystem: true
          capabilities: {drop: [ALL]}
";

#[test]
fn pods_run_are_found_by_name_and_leave_nothing_behind() -> Result<()> {
    if !can_run()? {
        return Ok(());
    }
    let node = Node::start(&[image("headgate-backend")])?;
    node.apply(BACKEND)?;
    node.kubectl(&["rollout", "status", "deployment/search", "--timeout=90s"])
        .with_context(|| node.kubectl(&["describe", "pods"]).unwrap_or_default())?;

    let name = "search.default.svc.cluster.local";
    let answer = until("the Service's name", || {
        node.exec_in(&["getent", "ahostsv4", name])
            .map_err(|e| format!("{e:#}"))
    })?;
    let address: IpAddr = answer
        .split_whitespace()
        .next()
        .context("no address")?
        .parse()?;
    let cluster_ip = node.kubectl(&[
        "get",
        "service",
        "search",
        "--output=jsonpath={.spec.clusterIP}",
    ])?;
    assert_eq!(address.to_string(), cluster_ip);
    let service = SocketAddr::new(address, 80);
    let answered = until("an answer through the Service", || {
        node.in_network(|| http::get(service, "/"))
            .and_then(|answer| answer)
            .map_err(|e| format!("{e:#}"))
    })?;
    assert_eq!(answered.status, 200);
    // The node has a network of its own, so this machine doesn't have its interfaces.
    for interface in ["node", "pods"] {
        assert!(!Path::new("/sys/class/net").join(interface).exists());
    }

    let dir = node.dir().to_owned();
    let groups = control_groups(&dir)?;
    assert!(!groups.is_empty());
    drop(node);
    assert!(!dir.exists(), "{}", dir.display());
    for group in groups {
        assert!(!group.exists(), "{}", group.display());
    }
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    let dir = dir.display().to_string();
    assert!(!mounts.contains(&dir), "{mounts}");
    for process in fs::read_dir("/proc")?.flatten() {
        let command = fs::read(process.path().join("cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command);
        assert!(!command.contains(&dir), "still running: {command}");
    }
    Ok(())
}

/// Returns the folders of the node's control groups, in every hierarchy.
fn control_groups(dir: &Path) -> Result<Vec<PathBuf>> {
    let name = dir.file_name().context("no name")?;
    let mut found = vec![PathBuf::from("/sys/fs/cgroup").join(name)];
    for hierarchy in fs::read_dir("/sys/fs/cgroup")?.flatten() {
        found.push(hierarchy.path().join(name));
    }
    found.retain(|group| group.is_dir());
    Ok(found)
}
