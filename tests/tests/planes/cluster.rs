//! A node with Headgate's operator, a backend that can hold requests, and the proxies of another
//! control plane.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use headgate_tests::backend::{BackendStats, Fault, FaultKind};
use headgate_tests::http;
use headgate_tests::kube::node::image;
use headgate_tests::kube::{Node, programs};
use headgate_tests::load::{self, LoadReport, LoadSpec, RequestType};
use headgate_tests::wait::{until, until_within};
use serde_json::{Value, json};

const OPERATOR: &str = "headgate-system";
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);
/// The tag of the images of this version.
pub(crate) const DEV: &str = "dev";
/// The tag of the images of the previous minor version.
pub(crate) const OLDER: &str = "older";
/// The port on which the backends show and control their requests.
const CONTROL: u16 = 8090;
/// The number of requests that a test makes wait in the queue of each proxy.
const WAITING: usize = 3;
/// Requests per second while something changes, far below the capacity of the backends.
const RATE: f64 = 40.0;

/// A backend. Its requests take a millisecond, or as long as a test specifies.
pub(crate) const BACKEND: &str = "
apiVersion: v1
kind: Service
metadata: {name: search, labels: {app: search}}
spec:
  selector: {app: search}
  ports: [{name: http, port: 80, targetPort: http}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: search, labels: {app: search}}
spec:
  replicas: 1
  selector: {matchLabels: {app: search}}
  template:
    metadata: {labels: {app: search}}
    spec:
      containers:
      - name: search
        image: headgate-backend:dev
        args: [--listen=0.0.0.0:8080, --control=0.0.0.0:8090, --workers=1000, --type=/=1/1]
        ports: [{name: http, containerPort: 8080}]
        readinessProbe: {tcpSocket: {port: http}, periodSeconds: 1}
        # Until no proxy sends to a Pod that goes.
        lifecycle: {preStop: {sleep: {seconds: 5}}}
";

pub(crate) struct Cluster {
    pub(crate) node: Node,
}

/// A proxy: its Pod, and the Pod's address.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Proxy {
    pub(crate) pod: String,
    pub(crate) address: IpAddr,
}

impl Cluster {
    /// Starts a node with these images besides Headgate's and the backend's.
    pub(crate) fn start(images: &[&str]) -> Result<Self> {
        let own = ["headgate", "headgate-older", "headgate-backend", "envoy"];
        let all = own.iter().chain(images);
        let all: Vec<_> = all.map(|name| image(name)).collect();
        Ok(Self {
            node: Node::start(&all)?,
        })
    }

    /// Installs Headgate of this tag as a user does. `plane` is the name of the delivery in the
    /// chart. The delivery uses the native module called `native`, unless this name is empty.
    pub(crate) fn install_headgate(&self, tag: &str, plane: &str, native: &str) -> Result<()> {
        let delivery = format!("--set=delivery.{plane}.enabled=true");
        let module = format!("--set=delivery.{plane}.nativeModule={native}");
        let mut install = vec!["install", "--create-namespace", &delivery];
        // The chart of the previous version doesn't have this value.
        if !native.is_empty() {
            install.push(&module);
        }
        self.helm_headgate(tag, &install)
    }

    /// Runs helm with the chart of this tag.
    fn helm_headgate(&self, tag: &str, arguments: &[&str]) -> Result<()> {
        let chart = match tag {
            OLDER => programs::older()?.join("chart"),
            _ => programs::repository().join("charts/headgate"),
        };
        let chart = chart.to_str().context("path of the chart")?;
        let tag = format!("--set=image.tag={tag}");
        let chart = ["headgate", chart, "--namespace", OPERATOR];
        let wait = [&tag, "--wait", "--timeout=3m"];
        let done = self.node.helm(&[arguments, &chart, &wait].concat());
        done.map(drop)
    }

    /// Starts the backend in a namespace.
    pub(crate) fn backend(&self, namespace: &str) -> Result<()> {
        self.apply_in(namespace, BACKEND)?;
        self.rolled_out(namespace, "deployment/search")
    }

    /// Applies objects to a namespace.
    pub(crate) fn apply_in(&self, namespace: &str, yaml: &str) -> Result<()> {
        let space = format!("--namespace={namespace}");
        let apply = ["apply", &space, "--filename=-"];
        let kubeconfig = &self.node.kubeconfig;
        let done = self.node.kubectl_as(kubeconfig, &apply, Some(yaml));
        done.map(drop)
    }

    /// Returns the address of the first Service with these labels.
    pub(crate) fn service(&self, namespace: &str, labels: &str, port: u16) -> Result<SocketAddr> {
        let path = "--output=jsonpath={.items[0].spec.clusterIP}";
        let of = ["--namespace", namespace, "--selector", labels];
        let address = [&["get", "services", path][..], &of].concat();
        let address = self.node.kubectl(&address)?;
        Ok(SocketAddr::new(address.trim().parse()?, port))
    }

    fn scale(&self, side: &Side<'_>, replicas: usize) -> Result<()> {
        let count = format!("--replicas={replicas}");
        let of = ["--namespace", side.namespace, "--selector", side.labels];
        let scale = [&["scale", "deployment", &count][..], &of].concat();
        self.node.kubectl(&scale).map(drop)
    }

    /// Takes a policy with 20 slots through its life, while requests arrive at `service`: the
    /// proxies are scaled, the policy is edited, the operator is killed, and the policy is deleted.
    /// The last argument is the kind of the object that carries the policy, as users see it and as
    /// kubectl takes it.
    pub(crate) fn life(
        &self,
        side: &Side<'_>,
        service: SocketAddr,
        (kind, resource): (&str, &str),
    ) -> Result<()> {
        let (namespace, name) = side.policy.split_once('/').context("namespace/name")?;
        let said = self.programmed(side.policy, "True")?;
        ensure!(said.contains(kind), "{said}");
        self.enforced(side, 1, 20)?;
        let status = self.status(namespace)?;
        let columns = status.lines().find(|line| line.starts_with(side.policy));
        let columns: Vec<&str> = columns.unwrap_or_default().split_whitespace().collect();
        ensure!(columns.get(3..5) == Some(&["True", "True"]), "{status}");

        for (replicas, slots) in [(2, 10), (3, 6), (1, 20)] {
            self.under_load(service, &format!("{replicas} replicas"), || {
                self.scale(side, replicas)?;
                self.wait_for_slots(side, replicas, slots)
            })?;
            self.enforced(side, replicas, slots)?;
        }
        self.under_load(service, "a policy edited", || {
            self.patch(side.policy, "{\"total\": null, \"perEndpoint\": 8}")?;
            self.wait_for_slots(side, 1, 8)
        })?;
        self.enforced(side, 1, 8)?;
        self.under_load(service, "an operator killed", || self.kill_operator())?;
        self.wait_for_slots(side, 1, 8)?;
        self.under_load(service, "a policy deleted", || {
            let space = format!("--namespace={namespace}");
            self.node
                .kubectl(&["delete", "admissionpolicy", name, &space])?;
            self.gone(namespace, resource)
        })
    }

    /// Takes a policy with 20 slots through outages of its operators, while requests arrive at
    /// `service`. The operators, first of the [`OLDER`] version, are upgraded. Then a proxy starts
    /// while no operator runs, and another proxy starts while the operators don't serve their
    /// module. Finally the operators are uninstalled. `older` is the number of slots that the older
    /// version gives the only proxy. `missed` waits until a new proxy no longer requests the
    /// module.
    pub(crate) fn outages(
        &self,
        side: &Side<'_>,
        service: SocketAddr,
        resource: &str,
        older: usize,
        missed: impl Fn(&Proxy) -> Result<()>,
    ) -> Result<()> {
        let (namespace, _) = side.policy.split_once('/').context("namespace/name")?;
        self.programmed(side.policy, "True")?;
        self.enforced(side, 1, older)?;
        // The value is `None` if the previous version writes another kind of object.
        let older = self.module(namespace, resource).ok();
        self.under_load(service, "operators upgraded, a proxy starts", || {
            self.scale(side, 2)?;
            // After this upgrade, the values that the previous version doesn't have are missing.
            self.helm_headgate(DEV, &["upgrade", "--reuse-values"])?;
            until_within(PATIENCE, "the newer module", || {
                let module = self.module(namespace, resource);
                match module.map_err(|error| format!("{error:#}"))? {
                    module if Some(&module) != older.as_ref() => Ok(()),
                    module => Err(module),
                }
            })?;
            self.programmed(side.policy, "True")?;
            self.wait_for_slots(side, 2, 10)
        })?;
        self.enforced(side, 2, 10)?;

        self.under_load(service, "no operators, a proxy starts", || {
            self.scale_operators(0)?;
            self.gone(OPERATOR, "pods")?;
            missed(&self.another(side, 3)?)
        })?;
        self.under_load(service, "operators are back", || {
            self.scale_operators(2)?;
            self.wait_for_slots(side, 3, 6)
        })?;
        self.enforced(side, 3, 6)?;

        self.under_load(service, "no module, a proxy starts", || {
            self.route_modules("1")?;
            missed(&self.another(side, 4)?)
        })?;
        self.under_load(service, "the module is back", || {
            self.route_modules("http-modules")?;
            self.wait_for_slots(side, 4, 5)
        })?;
        self.programmed(side.policy, "True")?;
        self.enforced(side, 4, 5)?;

        self.under_load(service, "an uninstall", || {
            let uninstall = ["uninstall", "headgate", "--namespace", OPERATOR, "--wait"];
            self.node.helm(&uninstall)?;
            // Helm has waited for the clean-up hook, so no object may be left.
            let get = ["get", resource, "--namespace", namespace, "--output=name"];
            let left = self.node.kubectl(&get)?;
            ensure!(left.trim().is_empty(), "{left}");
            self.gone(OPERATOR, "pods")
        })?;
        self.unlimited(side, 4, 5)
    }

    /// Starts another proxy and returns it. With this proxy there are `count`.
    fn another(&self, side: &Side<'_>, count: usize) -> Result<Proxy> {
        let before = self.proxies(side.namespace, side.labels)?;
        self.scale(side, count)?;
        let mut all = self.wait_for_proxies(side, count)?.into_iter();
        let another = all.find(|proxy| !before.contains(proxy));
        another.context("no other proxy")
    }

    /// Returns the SHA-256 of the module in the only object of this kind.
    fn module(&self, namespace: &str, resource: &str) -> Result<String> {
        let list = self.node.get(&[resource, "--namespace", namespace])?;
        let spec = &list["items"][0]["spec"];
        let hashes = ["/wasm/sha256", "/sha256", "/wasm/0/code/http/sha256"];
        let hash = hashes.iter().find_map(|at| spec.pointer(at)?.as_str());
        hash.map(str::to_owned).context("no module")
    }

    fn scale_operators(&self, replicas: usize) -> Result<()> {
        let count = format!("--replicas={replicas}");
        let space = format!("--namespace={OPERATOR}");
        let scale = ["scale", "deployment/headgate", &space, &count];
        self.node.kubectl(&scale).map(drop)
    }

    /// Routes requests for modules to this port of the operators.
    fn route_modules(&self, port: &str) -> Result<()> {
        let port: Value = match port.parse::<u16>() {
            Ok(number) => number.into(),
            Err(_) => port.into(),
        };
        let ports = json!([{"name": "http-modules", "port": 18002, "targetPort": port}]);
        let patch = format!("--patch={}", json!({"spec": {"ports": ports}}));
        let space = format!("--namespace={OPERATOR}");
        let patch = ["patch", "service/headgate", &space, &patch];
        self.node.kubectl(&patch).map(drop)
    }

    /// Waits until `count` proxies are ready, and returns them.
    fn wait_for_proxies(&self, side: &Side<'_>, count: usize) -> Result<Vec<Proxy>> {
        until_within(PATIENCE, &format!("{count} proxies"), || {
            let proxies = self.proxies(side.namespace, side.labels);
            match proxies.map_err(|error| format!("{error:#}"))? {
                proxies if proxies.len() == count => Ok(proxies),
                proxies => Err(format!("{proxies:?}")),
            }
        })
    }

    pub(crate) fn rolled_out(&self, namespace: &str, what: &str) -> Result<()> {
        let space = format!("--namespace={namespace}");
        let status = ["rollout", "status", what, &space, "--timeout=120s"];
        let done = self.node.kubectl(&status);
        done.map(drop).with_context(|| {
            let pods = self.node.kubectl(&["describe", "pods", &space]);
            pods.unwrap_or_default()
        })
    }

    /// Returns the ready Pods with these labels that aren't being deleted.
    pub(crate) fn proxies(&self, namespace: &str, labels: &str) -> Result<Vec<Proxy>> {
        let arguments = ["pods", "--namespace", namespace, "--selector", labels];
        let pods = self.node.get(&arguments)?;
        let ready = |pod: &&Value| {
            let conditions = pod["status"]["conditions"].as_array();
            let is_ready = |c: &Value| c["type"] == "Ready" && c["status"] == "True";
            pod["metadata"]["deletionTimestamp"].is_null()
                && conditions.is_some_and(|all| all.iter().any(is_ready))
        };
        let proxy = |pod: &Value| {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            Ok(Proxy {
                pod: text(&pod["metadata"]["name"]),
                address: text(&pod["status"]["podIP"]).parse()?,
            })
        };
        let items = pods["items"].as_array().context("a list")?.iter();
        items.filter(ready).map(proxy).collect()
    }

    pub(crate) fn get(&self, to: SocketAddr, path: &str) -> Result<http::Answer> {
        self.node
            .in_network(|| http::get(to, path))
            .and_then(|answer| answer)
    }

    fn post(&self, to: SocketAddr, path: &str, body: &str) -> Result<http::Answer> {
        self.node
            .in_network(|| http::post(to, path, body))
            .and_then(|answer| answer)
    }

    /// Returns a gauge of a policy in a proxy. `port` is the port of the proxy's stats.
    pub(crate) fn gauge(
        &self,
        proxy: &Proxy,
        port: u16,
        policy: &str,
        gauge: &str,
    ) -> Result<usize, String> {
        let at = SocketAddr::new(proxy.address, port);
        let answer = self.get(at, "/stats/prometheus");
        let text = answer.map_err(|error| format!("{error:#}"))?.body;
        let name = format!("policy_{}_{gauge}", policy.replace(['/', '-'], "_"));
        let values = text.lines().filter_map(|line| {
            let (series, value) = line.rsplit_once(' ')?;
            let series = series.split('{').next()?;
            series.ends_with(&name).then(|| value.parse().ok())?
        });
        let mut values = values.collect::<Vec<usize>>();
        match (values.pop(), values.is_empty()) {
            (Some(value), true) => Ok(value),
            (value, _) => Err(format!("{}: {name} is {value:?} and {values:?}", proxy.pod)),
        }
    }

    /// Waits until the condition `Programmed` of a policy has this status at each target. Returns
    /// the condition's message.
    pub(crate) fn programmed(&self, policy: &str, status: &str) -> Result<String> {
        let (namespace, name) = policy.split_once('/').context("namespace/name")?;
        until_within(PATIENCE, &format!("{policy}: Programmed {status}"), || {
            let arguments = ["admissionpolicy", name, "--namespace", namespace];
            let object = self.node.get(&arguments);
            let object = object.map_err(|e| format!("{e:#}"))?;
            let ancestors = object["status"]["ancestors"].as_array().cloned();
            let conditions = ancestors.unwrap_or_default().into_iter().flat_map(|entry| {
                let all = entry["conditions"].as_array().cloned().unwrap_or_default();
                all.into_iter().find(|c| c["type"] == "Programmed")
            });
            let conditions: Vec<Value> = conditions.collect();
            let generation = &object["metadata"]["generation"];
            let so = |c: &Value| c["status"] == status && c["observedGeneration"] == *generation;
            match !conditions.is_empty() && conditions.iter().all(so) {
                true => Ok(conditions[0]["message"]
                    .as_str()
                    .unwrap_or_default()
                    .to_owned()),
                false => Err(object["status"].to_string()),
            }
        })
    }

    /// Returns the output of `headgate status` for a namespace. Fails if a policy isn't programmed.
    pub(crate) fn status(&self, namespace: &str) -> Result<String> {
        let kubeconfig = format!("--kubeconfig={}", self.node.kubeconfig.display());
        let space = format!("--namespace={namespace}");
        let program = headgate_tests::headgate::binary_path();
        let program = program.to_str().context("path of headgate")?;
        self.node.exec_in(&[program, "status", &kubeconfig, &space])
    }

    /// Waits until `count` proxies have `slots` slots each for a policy, and returns the proxies.
    pub(crate) fn wait_for_slots(
        &self,
        side: &Side<'_>,
        count: usize,
        slots: usize,
    ) -> Result<Vec<Proxy>> {
        let what = format!("{slots} slots of {} in {count} proxies", side.policy);
        until_within(PATIENCE, &what, || {
            let error = |error| format!("{error:#}");
            let proxies = self.proxies(side.namespace, side.labels).map_err(error)?;
            let slots_of = |proxy: &Proxy| {
                // A filter has no stats before its first request.
                let answer = self.get(SocketAddr::new(proxy.address, side.port), "/");
                answer.map_err(error)?;
                self.gauge(proxy, side.stats, side.policy, "slots")
            };
            let seen: Vec<Result<usize, String>> = proxies.iter().map(slots_of).collect();
            match seen == vec![Ok(slots); count] {
                true => Ok(proxies),
                false => Err(format!("{seen:?}")),
            }
        })
    }

    /// Checks that the proxies of `side` together admit exactly as many concurrent requests as they
    /// have slots. All other requests wait in the queues. The backends hold the admitted requests
    /// and count them.
    pub(crate) fn enforced(&self, side: &Side<'_>, count: usize, slots: usize) -> Result<()> {
        let proxies = self.wait_for_slots(side, count, slots)?;
        let held = self.hold(side, &proxies, slots + WAITING)?;
        let wanted = count * slots;
        until("all slots taken and the rest waiting", || {
            let now = held.now(self)?;
            let queued = self.queued(side, &proxies);
            match now == wanted && queued == vec![Ok(WAITING); count] {
                true => Ok(()),
                false => Err(format!(
                    "{now} of {wanted} at the backends; queues {queued:?}"
                )),
            }
        })?;
        let most = held.release(self)?;
        assert!(most == wanted, "{most} at once, where {wanted} are slots");
        Ok(())
    }

    /// Waits until each of `count` proxies admits more concurrent requests than it had `slots`.
    fn unlimited(&self, side: &Side<'_>, count: usize, slots: usize) -> Result<()> {
        let proxies = self.wait_for_proxies(side, count)?;
        let wanted = count * (slots + WAITING);
        let most = || -> Result<usize> {
            let held = self.hold(side, &proxies, slots + WAITING)?;
            until("all requests at the backends or waiting", || {
                let now = held.now(self)?;
                // A proxy without the filter may have no gauge of a queue.
                let queued: usize = self.queued(side, &proxies).into_iter().flatten().sum();
                match now + queued >= wanted {
                    true => Ok(()),
                    false => Err(format!("{now} and {queued} of {wanted}")),
                }
            })?;
            held.release(self)
        };
        until_within(PATIENCE, "no limit", || {
            match most().map_err(|error| format!("{error:#}"))? {
                most if most == wanted => Ok(()),
                most => Err(format!("{most} of {wanted} at the backends")),
            }
        })
    }

    /// Returns the queue length of a policy in each of its proxies.
    fn queued(&self, side: &Side<'_>, proxies: &[Proxy]) -> Vec<Result<usize, String>> {
        let queue = |proxy| self.gauge(proxy, side.stats, side.policy, "queue_length");
        proxies.iter().map(queue).collect()
    }

    /// Sends `requests` requests through each proxy. The backends hold these requests.
    fn hold(&self, side: &Side<'_>, proxies: &[Proxy], requests: usize) -> Result<Held> {
        let backends = self.proxies(side.backends, "app=search")?.into_iter();
        let controls = backends.map(|backend| SocketAddr::new(backend.address, CONTROL));
        let mut held = Held {
            controls: controls.collect(),
            pending: Vec::new(),
        };
        let hang = serde_json::to_string(&Fault {
            kind: FaultKind::Hang,
            path: "/hang".to_owned(),
            count: 10_000,
            status: 500,
            delay_ms: 0,
        })?;
        for &control in &held.controls {
            self.post(control, "/__headgate/reset", "")?;
            self.post(control, "/__headgate/fault", &hang)?;
        }
        for proxy in proxies {
            let at = SocketAddr::new(proxy.address, side.port);
            for _ in 0..requests {
                let sent = self
                    .node
                    .in_network(|| http::send(at, "GET", "/hang", &[], None));
                held.pending.push(sent.and_then(|sent| sent)?);
            }
        }
        Ok(held)
    }

    pub(crate) fn patch(&self, policy: &str, parallelism: &str) -> Result<()> {
        let (namespace, name) = policy.split_once('/').context("namespace/name")?;
        let patch = format!("--patch={{\"spec\": {{\"parallelism\": {parallelism}}}}}");
        let arguments = [
            "patch",
            "admissionpolicy",
            name,
            "--namespace",
            namespace,
            "--type=merge",
            &patch,
        ];
        self.node.kubectl(&arguments).map(drop)
    }

    /// Waits until the namespace has no object of this kind.
    pub(crate) fn gone(&self, namespace: &str, kind: &str) -> Result<()> {
        until_within(PATIENCE, &format!("no {kind} in {namespace}"), || {
            let arguments = ["get", kind, "--namespace", namespace, "--output=name"];
            match self.node.kubectl(&arguments) {
                Ok(left) if left.trim().is_empty() => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
    }

    /// Returns the name of the image with Envoy.
    pub(crate) fn envoy_image(&self) -> Result<String> {
        let path = "--output=jsonpath={.items[0].status.images[*].names[*]}";
        let names = self.node.kubectl(&["get", "nodes", path])?;
        let mut names = names.split_whitespace();
        let found = names.find(|name| name.contains("envoyproxy/envoy:"));
        found
            .map(str::to_owned)
            .context("the node has no image of Envoy")
    }

    /// Kills an operator's Pod, and waits until another Pod replaces it.
    pub(crate) fn kill_operator(&self) -> Result<()> {
        let space = format!("--namespace={OPERATOR}");
        let pods = self
            .node
            .kubectl(&["get", "pods", &space, "--output=name"])?;
        let first = pods.lines().next().context("no operator")?;
        let kill = ["delete", first, &space, "--grace-period=0", "--force"];
        self.node.kubectl(&kill)?;
        self.rolled_out(OPERATOR, "deployment/headgate")
    }

    /// Runs `act` while requests arrive at `service`, and checks that all requests were answered.
    pub(crate) fn under_load<T>(
        &self,
        service: SocketAddr,
        what: &str,
        act: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let types = vec![RequestType::get("all", "/")];
        let spec = LoadSpec::new(service, types, RATE, Duration::from_secs(600));
        let running = self.node.in_network(|| load::start(spec))??;
        let answered = |least: u64| {
            until("requests", || match running.snapshot().total.ok {
                now if now >= least => Ok(now),
                now => Err(format!("{now} of {least}")),
            })
        };
        answered(1)?;
        let done = act().with_context(|| what.to_owned())?;
        // The proxies must handle more requests after the change.
        let seen = running.snapshot().total.ok;
        answered(seen + 100)?;
        running.stop();
        let LoadReport { total, .. } = running.wait()?;
        println!("{what}: {} offered, {} ok", total.offered, total.ok);
        assert_eq!(
            total.offered - total.not_sent,
            total.ok,
            "{what}: {total:?}"
        );
        Ok(done)
    }
}

/// Requests that backends hold.
struct Held {
    /// The addresses at which the backends are controlled.
    controls: Vec<SocketAddr>,
    pending: Vec<http::Pending>,
}

impl Held {
    fn stats(&self, cluster: &Cluster) -> Result<Vec<BackendStats>, String> {
        let stats = |&at: &SocketAddr| {
            let answer = cluster.get(at, "/__headgate/stats");
            let body = answer.map_err(|error| format!("{error:#}"))?.body;
            serde_json::from_str(&body).map_err(|error| error.to_string())
        };
        self.controls.iter().map(stats).collect()
    }

    /// Returns the number of requests in the backends.
    fn now(&self, cluster: &Cluster) -> Result<usize, String> {
        let stats = self.stats(cluster)?;
        Ok(stats.iter().map(|stats| stats.in_flight).sum())
    }

    /// Makes the backends answer all requests. Returns the largest number of concurrent requests at
    /// the backends.
    fn release(self, cluster: &Cluster) -> Result<usize> {
        let stats = self.stats(cluster).map_err(anyhow::Error::msg)?;
        for &at in &self.controls {
            cluster.post(at, "/__headgate/clear", "")?;
            cluster.post(at, "/__headgate/release", "")?;
        }
        for request in self.pending {
            let answer = request.answer()?;
            ensure!(answer.status == 200, "{answer:?}");
        }
        Ok(stats.iter().map(|stats| stats.max_in_flight).sum())
    }
}

/// Some proxies, and a policy that they enforce.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Side<'a> {
    /// The namespace of the proxies' Pods.
    pub(crate) namespace: &'a str,
    /// The labels of the proxies' Pods.
    pub(crate) labels: &'a str,
    /// The port on which the proxies take requests.
    pub(crate) port: u16,
    /// The port of the proxies' stats.
    pub(crate) stats: u16,
    /// The policy as `namespace/name`.
    pub(crate) policy: &'a str,
    /// Namespace of the backends.
    pub(crate) backends: &'a str,
}
