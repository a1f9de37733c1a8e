//! The operator on a real node, installed by the chart as a user does, with the Pods of the sidecar
//! example, under load.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use headgate_tests::kube::Node;
use headgate_tests::kube::node::{can_run, image};
use headgate_tests::load::{self, LoadReport, LoadSpec, Running};
use headgate_tests::wait::{until, until_within};
use headgate_tests::{headgate, http, mix};
use serde_json::Value;

const OPERATOR: &str = "headgate-system";
const SHOP: &str = "--namespace=shop";
/// The factor of the service times of the example's backend, as in `examples/sidecar/search.yaml`.
const SCALE: f64 = 4.0;
/// Requests that a Pod of the example's backend works on at a time.
const WORKERS: usize = 8;
const PATIENCE: Duration = Duration::from_secs(90);

struct Shop {
    node: Node,
    service: SocketAddr,
}

#[test]
fn the_operators_whole_life_on_a_real_node() -> Result<()> {
    if !can_run()? {
        return Ok(());
    }
    let node = Node::start(&[image("headgate"), image("headgate-backend"), image("envoy")])?;
    let before = objects(&node)?;
    let shop = open_shop(node)?;

    let said = shop.helm_test()?;
    ensure!(said.contains("Succeeded"), "{said}");

    let report = shop.load(1.5, 8)?.wait()?;
    ensure!(
        report.total.refused > 0,
        "an overload that nobody refuses: {report:?}"
    );
    shop.all_answered(&report, "overload");

    shop.under_load("an operator's Pod is killed", |shop| {
        let pods = shop.operator(&["get", "pods", "--output=name"])?;
        let first = pods.lines().next().context("no operator")?;
        shop.operator(&["delete", first, "--grace-period=0", "--force"])?;
        shop.operator(&["rollout", "status", "deployment/headgate", "--timeout=90s"])
    })?;
    shop.under_load("the chart is upgraded", |shop| {
        shop.helm_install("upgrade", &["--set=log.level=debug"])
    })?;

    shop.edits_are_enforced(10)?;
    shop.slots_follow_the_backend()?;

    shop.node.kubectl(&["delete", "namespace", "shop"])?;
    shop.node
        .helm(&["uninstall", "headgate", "--namespace", OPERATOR, "--wait"])?;
    shop.node.kubectl(&["delete", "namespace", OPERATOR])?;
    // The namespace and its objects are gone once `kubectl delete` returns. Kubernetes may remove
    // objects outside of the namespace a moment later.
    until_within(PATIENCE, "nothing to be left behind", || {
        let left = objects(&shop.node).map_err(|e| format!("{e:#}"))?;
        let left: Vec<&String> = left.difference(&before).collect();
        match left.is_empty() {
            true => Ok(()),
            false => Err(format!("left behind: {left:#?}")),
        }
    })?;
    Ok(())
}

/// Installs the chart and the sidecar example, as the README of the example says.
fn open_shop(node: Node) -> Result<Shop> {
    let mut shop = Shop {
        node,
        service: SocketAddr::from(([0, 0, 0, 0], 80)),
    };
    shop.helm_install("install", &["--create-namespace"])?;
    let node = &shop.node;
    node.kubectl(&["create", "namespace", "shop"])?;
    let program = headgate::binary_path();
    let program = program.to_str().context("path of headgate")?;
    let service = "examples/sidecar/search.yaml";
    let injected = node.exec_in(&[program, "inject", "--image=headgate:dev", service])?;
    node.apply(&injected)?;
    node.kubectl(&["apply", "--filename=examples/sidecar/policy.yaml"])?;
    node.kubectl(&[
        "rollout",
        "status",
        "deployment/search",
        SHOP,
        "--timeout=120s",
    ])
    .with_context(|| {
        node.kubectl(&["describe", "pods", SHOP])
            .unwrap_or_default()
    })?;
    let address = node.kubectl(&[
        "get",
        "service",
        "search",
        SHOP,
        "--output=jsonpath={.spec.clusterIP}",
    ])?;
    shop.service.set_ip(address.parse()?);
    shop.wait_for_slots(2, WORKERS)?;
    shop.node.kubectl(&[
        "wait",
        "--for=condition=Programmed",
        "admissionpolicy/search",
        SHOP,
        &format!("--timeout={}s", PATIENCE.as_secs()),
    ])?;
    Ok(shop)
}

impl Shop {
    fn helm_install(&self, verb: &str, arguments: &[&str]) -> Result<String> {
        let mut all = vec![verb, "headgate", "charts/headgate", "--namespace", OPERATOR];
        // The CRD is removed with the chart, so that the test can check that nothing is left.
        all.extend(["--set=crds.keep=false", "--wait", "--timeout=3m"]);
        // The image of this tree isn't published.
        all.push("--set=image.tag=dev");
        all.extend(arguments);
        self.node.helm(&all).with_context(|| {
            let pods = self.operator(&["describe", "pods"]).unwrap_or_default();
            let logs = self.operator(&["logs", "deployment/headgate", "--tail=40"]);
            format!("{pods}\n{}", logs.unwrap_or_default())
        })
    }

    /// Runs `helm test`, which prints the log of its Pod, and returns the output.
    fn helm_test(&self) -> Result<String> {
        let arguments = [
            "test",
            "headgate",
            "--namespace",
            OPERATOR,
            "--timeout=2m",
            "--logs",
        ];
        self.node.helm(&arguments)
    }

    fn operator(&self, arguments: &[&str]) -> Result<String> {
        let mut all = arguments.to_vec();
        all.extend(["--namespace", OPERATOR]);
        self.node.kubectl(&all)
    }

    /// Starts a load of `times` the capacity of two Pods.
    fn load(&self, times: f64, seconds: u64) -> Result<Running> {
        let mix = mix::bouncer(SCALE);
        let rate = times * mix::capacity_rps(&mix, 2 * WORKERS);
        let spec = LoadSpec::for_mix(self.service, &mix, rate, Duration::from_secs(seconds));
        self.node.in_network(|| load::start(spec))?
    }

    /// Runs `act` while requests arrive, and checks that none of them failed.
    fn under_load(&self, what: &str, act: impl FnOnce(&Self) -> Result<String>) -> Result<()> {
        let running = self.load(0.8, 600)?;
        until("requests", || match running.snapshot().total.ok {
            0 => Err("none answered".to_owned()),
            _ => Ok(()),
        })?;
        act(self).with_context(|| what.to_owned())?;
        // The proxies must handle more requests after the change.
        let seen = running.snapshot().total.ok;
        until("more requests", || match running.snapshot().total.ok {
            now if now > seen + 200 => Ok(()),
            now => Err(format!("{now} of {seen} and 200")),
        })?;
        running.stop();
        self.all_answered(&running.wait()?, what);
        Ok(())
    }

    /// Checks that every request was either answered, or refused by Headgate.
    fn all_answered(&self, report: &LoadReport, what: &str) {
        let total = &report.total;
        let by_headgate: u64 = total
            .refused_by
            .iter()
            .filter(|(reason, _)| !reason.starts_with("status_") && *reason != "overloaded")
            .map(|(_, count)| count)
            .sum();
        let failed = total.offered - total.ok - by_headgate - total.not_sent;
        println!(
            "{what}: {} offered, {} ok, {by_headgate} refused",
            total.offered, total.ok
        );
        assert_eq!(
            (failed, total.transport_errors),
            (0, 0),
            "{what}: {total:?}"
        );
    }

    /// Returns the addresses of Envoys' stats in all Pods that run and aren't being deleted.
    fn proxies(&self) -> Result<Vec<SocketAddr>> {
        let pods = self.node.get(&["pods", SHOP, "--selector=app=search"])?;
        let pods = pods["items"].as_array().context("a list")?.iter();
        // A terminating Pod has phase `Running` until its deletion, but its address no longer
        // answers.
        let runs = |pod: &&Value| {
            pod["status"]["phase"] == "Running" && pod["metadata"]["deletionTimestamp"].is_null()
        };
        let address = |pod: &Value| {
            let ip = pod["status"]["podIP"].as_str().context("no address yet")?;
            Ok(SocketAddr::new(ip.parse()?, 9902))
        };
        pods.filter(runs).map(address).collect()
    }

    fn slots(&self, proxy: SocketAddr) -> Result<usize, String> {
        let path = "/stats/prometheus?filter=headgate.policy.shop/search.slots$";
        let answer = self
            .node
            .in_network(|| http::get(proxy, path))
            .and_then(|answer| answer);
        let answer = answer.map_err(|error| format!("{error:#}"))?;
        let value = answer.body.trim().rsplit(' ').next().map(str::parse);
        match value {
            Some(Ok(slots)) => Ok(slots),
            _ => Err(format!("no slots in {:?}", answer.body)),
        }
    }

    /// Waits until `proxies` Envoys have `slots` slots each.
    fn wait_for_slots(&self, proxies: usize, slots: usize) -> Result<()> {
        until_within(
            PATIENCE,
            &format!("{slots} slots in {proxies} proxies"),
            || {
                let addresses = self.proxies().map_err(|error| format!("{error:#}"))?;
                let seen: Vec<_> = addresses.iter().map(|&proxy| self.slots(proxy)).collect();
                if seen == vec![Ok(slots); proxies] {
                    Ok(())
                } else {
                    Err(format!("{seen:?}"))
                }
            },
        )
    }

    fn patch(&self, parallelism: &str) -> Result<()> {
        let patch = format!("{{\"spec\": {{\"parallelism\": {parallelism}}}}}");
        let patch = format!("--patch={patch}");
        let merge = "--type=merge";
        self.node
            .kubectl(&["patch", "admissionpolicy", "search", SHOP, merge, &patch])
            .map(drop)
    }

    /// Prints the time from the return of kubectl until the last proxy enforces the edit. The test
    /// asserts no bound on this time, because it depends on the machine.
    fn edits_are_enforced(&self, edits: usize) -> Result<()> {
        let proxies = self.proxies()?;
        let mut times = Vec::with_capacity(edits);
        for edit in 0..edits {
            let slots = WORKERS + 1 + edit % 2;
            self.patch(&format!("{{\"perEndpoint\": {slots}}}"))?;
            let started = Instant::now();
            until("the edit to be enforced", || {
                for &proxy in &proxies {
                    let now = self.slots(proxy)?;
                    if now != slots {
                        return Err(format!("{now} slots in {proxy}"));
                    }
                }
                Ok(())
            })?;
            times.push(started.elapsed());
        }
        times.sort();
        let at = |share: f64| times[((times.len() - 1) as f64 * share).round() as usize];
        println!(
            "{edits} edits, kubectl to enforced by all: p50 {:?}, at most {:?}",
            at(0.5),
            at(1.0)
        );
        Ok(())
    }

    /// Checks that all proxies together have the policy's total, for any number of proxies.
    fn slots_follow_the_backend(&self) -> Result<()> {
        self.patch("{\"perEndpoint\": null, \"total\": 12}")?;
        for (replicas, slots) in [(2, 6), (3, 4), (1, 12)] {
            let count = format!("--replicas={replicas}");
            self.node
                .kubectl(&["scale", "deployment/search", SHOP, &count])?;
            self.wait_for_slots(replicas, slots)?;
        }
        Ok(())
    }
}

/// Returns all objects of the cluster, except those that the cluster itself writes all the time.
fn objects(node: &Node) -> Result<BTreeSet<String>> {
    let kinds = node.kubectl(&["api-resources", "--verbs=list", "--output=name"])?;
    let passing = [
        "events",
        "events.events.k8s.io",
        "leases.coordination.k8s.io",
        "componentstatuses",
    ];
    let kinds: Vec<&str> = kinds
        .lines()
        .filter(|kind| !passing.contains(kind))
        .collect();
    let columns =
        "--output=custom-columns=KIND:.kind,NAMESPACE:.metadata.namespace,NAME:.metadata.name";
    let listed = node.kubectl(&[
        "get",
        &kinds.join(","),
        "--all-namespaces",
        "--no-headers",
        columns,
    ])?;
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    Ok(listed.lines().map(words).collect())
}
