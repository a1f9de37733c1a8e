//! The panels about the API server, with a real API server. `e2e::dashboards` tests all other
//! panels.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::SystemTime;

use anyhow::{Context, Result, ensure};
use headgate_tests::dashboard::{Bindings, Dashboard, run::run};
use headgate_tests::kube::ApiServer;
use headgate_tests::process::Child;
use headgate_tests::prometheus::{self, INTERVAL, Job, Prometheus, unix};
use headgate_tests::{headgate, policy};

#[test]
fn the_panels_about_the_api_server_have_values() -> Result<()> {
    if !prometheus::can_run()? {
        return Ok(());
    }
    // The test restarts its API server, so it can't share the server of other tests.
    let server = ApiServer::start()?;
    server.install_crds()?;
    let dir = tempfile::tempdir()?;
    let mut command = Command::new(headgate::binary_path());
    command
        .args(["run", "--kubernetes", "--pod-namespace=default"])
        .args(["--pod-name=one", "--xds=127.0.0.1:0", "--admin=127.0.0.1:0"])
        .arg("--kubeconfig")
        .arg(server.kubeconfig())
        .arg("--wasm")
        .arg(headgate::module_path())
        .arg("--module-dir")
        .arg(dir.path());
    let mut operator = Child::spawn("headgate", &mut command)?;
    let line = operator.wait_for_line("headgate: xds=")?;
    let admin = line
        .split_whitespace()
        .find_map(|w| w.strip_prefix("admin="));
    let admin = admin.with_context(|| format!("no admin= in {line}"))?;
    let job = Job {
        name: "headgate".to_owned(),
        path: "/metrics".to_owned(),
        targets: vec![(admin.parse()?, BTreeMap::new())],
    };
    let prometheus = Prometheus::start(&[job], &[])?;
    prometheus.wait_for_scrape("headgate", SystemTime::now())?;
    let began = SystemTime::now();
    prometheus.wait_for("headgate_leader")?;
    server.apply(&policy::queue_only(2, 10).to_string())?;
    prometheus.wait_for("headgate_kubernetes_writes_total{result=\"applied\"}")?;
    server.restart_api_server()?;
    prometheus.wait_for("increase(headgate_kubernetes_watch_restarts_total[10s])")?;
    // The rate of a counter needs two scrapes, and the last point of a range may lie one step
    // before its end.
    prometheus.wait_for("rate(headgate_kubernetes_requests_total{code=\"200\"}[10s])")?;
    prometheus
        .wait_for("count(rate(headgate_kubernetes_writes_total{result=\"applied\"}[10s]))")?;
    prometheus.wait_for_scrape("headgate", SystemTime::now() + 2 * INTERVAL)?;

    let dashboards = Dashboard::all()?;
    let operator = dashboards.iter().find(|d| d.uid == "headgate-operator");
    let operator = operator.context("no headgate-operator")?;
    let bindings = Bindings::resolve(operator, &prometheus, &[])?;
    let span = (unix(began), unix(SystemTime::now()));
    let mut shown = run(operator, &bindings, &prometheus, span)?;
    shown.retain(|s| s.row == "API server" && !s.queries.is_empty());
    ensure!(shown.len() >= 4, "{} panels", shown.len());
    for shown in &shown {
        let empty: Vec<&str> = shown.empty().collect();
        assert!(empty.is_empty(), "{}: {empty:?}", shown.title);
    }
    Ok(())
}
