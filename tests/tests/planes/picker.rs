//! The inference extension's own endpoint picker behind Headgate's filter. Headgate decides whether
//! and when a request proceeds, and the picker chooses its server. Envoy calls the picker and obeys
//! it, as in the extension's chart of a picker without a gateway.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use headgate_tests::backend::{Backend, BackendConfig, Fault, FaultKind, ServiceType};
use headgate_tests::bootstrap::{Bootstrap, socket};
use headgate_tests::http::{self, Answer, Pending};
use headgate_tests::kube::picker::{EndpointPicker, ModelMetrics};
use headgate_tests::kube::{ApiServer, programs};
use headgate_tests::policies::{Cluster, pod};
use headgate_tests::policy;
use headgate_tests::rig::Rig;
use headgate_tests::wait::until;
use serde_json::{Value, json};

const POOL: &str = "llm";
/// The Pods of the pool, and their addresses.
const PODS: [(&str, Ipv4Addr); 2] = [
    ("a", Ipv4Addr::new(127, 0, 0, 2)),
    ("b", Ipv4Addr::new(127, 0, 0, 3)),
];
/// The number of places in the queue in the test without a picker.
const QUEUE: u64 = 3;
/// The number of waiting requests that makes the picker avoid a server.
const MANY: usize = 50;
/// The number of requests that are refused.
const REFUSED: usize = 5;
/// The name of the picker's cluster in Envoy.
const PICKER: &str = "picker";

/// An Envoy with the filters of Headgate and then of the picker, in front of two model servers.
struct Pool {
    rig: Rig,
    picker: EndpointPicker,
    servers: Vec<Backend>,
    metrics: Vec<ModelMetrics>,
}

impl Pool {
    /// Starts a pool with these numbers of slots and of places in the queue. Returns `None` if this
    /// machine can't run the picker.
    fn start(slots: usize, queue: usize) -> Result<Option<Self>> {
        let Some(programs) = programs::or_skip(programs::endpoint_picker())? else {
            return Ok(None);
        };
        let server = ApiServer::shared();
        let crds = format!("--filename={}", programs.join("crds").display());
        server.kubectl(&["apply", "--server-side", &crds])?;
        server.wait_for_crds()?;
        let cluster = Cluster::new(server);
        let namespace = cluster.namespace("llm")?;

        // The servers use the same ports at each address, because a pool has one port for all its
        // Pods.
        let (mut port, mut metrics_port) = (0, 0);
        let mut servers = Vec::new();
        let mut metrics = Vec::new();
        for (name, ip) in PODS {
            let at = |port| SocketAddr::new(IpAddr::V4(ip), port);
            let mut config = backend();
            config.listen = at(port);
            servers.push(Backend::start(&config)?);
            metrics.push(ModelMetrics::serve(at(metrics_port))?);
            port = servers[0].addr().port();
            metrics_port = metrics[0].address().port();
            cluster.apply(&pod(&namespace, name, "app: llm"))?;
            let patch = format!("--patch={}", running(ip));
            let of = ["-n", &namespace, "--subresource=status", &patch];
            cluster.kubectl(&[&["patch", "pod", name][..], &of].concat())?;
        }
        let mut picker = EndpointPicker::new(server.kubeconfig().to_owned(), &namespace, POOL)?;
        let address = picker.address();
        cluster.apply(&pool(&namespace, port, address.port()))?;
        let rig = Rig::builder(backend(), policy::queue_only(slots, queue))
            .change(move |bootstrap| pick(bootstrap, address))
            .start()?;
        picker.start(metrics_port)?;
        let pool = Self {
            rig,
            picker,
            servers,
            metrics,
        };
        pool.set_waiting([0, 0])?;
        Ok(Some(pool))
    }

    /// Sets the lengths of the servers' queues, and waits until the picker knows them.
    fn set_waiting(&self, waiting: [usize; 2]) -> Result<()> {
        for (metrics, waiting) in self.metrics.iter().zip(waiting) {
            metrics.set_waiting(waiting);
        }
        let [(a, _), (b, _)] = PODS;
        self.picker.knows(&[(a, waiting[0]), (b, waiting[1])])
    }

    fn restart_picker(&mut self) -> Result<()> {
        self.picker.start(self.metrics[0].address().port())?;
        self.set_waiting([0, 0])
    }

    fn send(&self) -> Result<Pending> {
        let body = r#"{"model": "tiny", "prompt": "Why?", "max_tokens": 1}"#;
        let json = [("content-type", "application/json")];
        http::send(
            self.rig.addr(),
            "POST",
            "/v1/completions",
            &json,
            Some(body),
        )
    }

    fn ask(&self) -> Result<Answer> {
        self.send()?.answer()
    }

    /// Makes the servers hold requests until they are [released](Self::release).
    fn hold(&self) {
        for server in &self.servers {
            server.inject(Fault::new(FaultKind::Hang, "/", 1_000));
        }
    }

    fn release(&self) {
        for server in &self.servers {
            server.clear_faults();
            server.release();
        }
    }

    /// Returns the number of requests that each server has received.
    fn received(&self) -> [u64; 2] {
        [0, 1].map(|at| self.servers[at].stats().received)
    }

    /// Waits until each server has this number of requests in service.
    fn until_in_service(&self, expected: [usize; 2]) -> Result<()> {
        until(&format!("{expected:?} requests in service"), || {
            let busy = [0, 1].map(|at| self.servers[at].stats().busy);
            match busy == expected {
                true => Ok(()),
                false => Err(format!("{busy:?}")),
            }
        })
    }

    /// Fails unless the picker has picked a server for `picks` requests, and Envoy has called the
    /// picker for these requests and `others` other ones.
    fn asked(&self, picks: usize, others: usize) -> Result<()> {
        let picked = self.picker.picked()?;
        let calls = self
            .rig
            .envoy
            .stat(&format!("cluster.{PICKER}.upstream_rq_total"))?;
        ensure!(
            picked == picks && calls == (picks + others) as u64,
            "{picked} picks, {calls} calls; expected {picks} picks and {others} other calls"
        );
        Ok(())
    }

    /// Waits until no slot is in use, and neither the queue nor a server has a request.
    fn until_idle(&self) -> Result<()> {
        self.rig.wait_until_idle()?;
        self.until_in_service([0, 0])
    }

    /// Waits until requests are served again.
    fn until_served(&self) -> Result<()> {
        until("an answer of a server", || match self.ask() {
            Ok(answer) if answer.status == 200 => Ok(()),
            other => Err(format!("{other:?}")),
        })?;
        self.until_idle()
    }
}

/// Returns a server that answers at once.
fn backend() -> BackendConfig {
    BackendConfig::new(1_000, vec![ServiceType::constant("/", Duration::ZERO)])
}

/// Returns the status of a ready Pod. The test writes this status in place of a kubelet.
fn running(ip: Ipv4Addr) -> Value {
    json!({"status": {
        "phase": "Running",
        "podIP": ip,
        "podIPs": [{"ip": ip}],
        "conditions": [{"type": "Ready", "status": "True"}],
    }})
}

fn pool(namespace: &str, port: u16, picker: u16) -> String {
    json!({
        "apiVersion": "inference.networking.k8s.io/v1",
        "kind": "InferencePool",
        "metadata": {"name": POOL, "namespace": namespace},
        "spec": {
            "selector": {"matchLabels": {"app": "llm"}},
            "targetPorts": [{"number": port}],
            "endpointPickerRef": {"name": "epp", "port": {"number": picker}},
        },
    })
    .to_string()
}

/// Makes Envoy call the picker after Headgate's filter, and send each request to the server that
/// the picker chooses.
fn pick(bootstrap: &mut Bootstrap, picker: SocketAddr) -> Result<()> {
    *bootstrap.cluster("upstream")? = json!({
        "name": "upstream",
        "type": "ORIGINAL_DST",
        "lb_policy": "CLUSTER_PROVIDED",
        "connect_timeout": "5s",
        "original_dst_lb_config": {
            "use_http_header": true,
            "http_header_name": "x-gateway-destination-endpoint",
        },
    });
    let endpoint =
        json!({"endpoint": {"address": socket(&picker.ip().to_string(), picker.port())}});
    let clusters = bootstrap.root()["static_resources"]["clusters"].as_array_mut();
    clusters.context("no clusters")?.push(json!({
        "name": PICKER,
        "type": "STATIC",
        "connect_timeout": "5s",
        "load_assignment": {
            "cluster_name": PICKER,
            "endpoints": [{"lb_endpoints": [endpoint]}],
        },
    }));
    bootstrap.http2_upstream(PICKER)?;
    let filters = bootstrap.manager()?["http_filters"].as_array_mut();
    let filters = filters.context("no filters")?;
    let before_router = filters.len() - 1;
    let picker = json!({
        "name": "envoy.filters.http.ext_proc",
        "typed_config": {
            "@type": concat!(
                "type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.",
                "ExternalProcessor",
            ),
            "grpc_service": {"envoy_grpc": {"cluster_name": PICKER}},
            "processing_mode": {
                "request_header_mode": "SEND",
                "response_header_mode": "SEND",
                "request_body_mode": "FULL_DUPLEX_STREAMED",
                "response_body_mode": "FULL_DUPLEX_STREAMED",
                "request_trailer_mode": "SEND",
                "response_trailer_mode": "SEND",
            },
            // With the default timeout, Envoy would take a slow machine for a picker that hangs.
            "message_timeout": "1000s",
        },
    });
    filters.insert(before_router, picker);
    Ok(())
}

#[test]
fn the_picker_picks_for_admitted_requests_only() -> Result<()> {
    let Some(pool) = Pool::start(2, 1)? else {
        return Ok(());
    };
    for (waiting, expected) in [([0, MANY], [3, 0]), ([MANY, 0], [3, 3])] {
        pool.set_waiting(waiting)?;
        for _ in 0..3 {
            let answer = pool.ask()?;
            ensure!(answer.status == 200, "{answer:?}");
        }
        let received = pool.received();
        ensure!(received == expected, "{received:?}, expected {expected:?}");
    }
    pool.asked(6, 0)?;

    pool.hold();
    let mut pending = vec![pool.send()?, pool.send()?];
    pool.until_in_service([0, 2])?;
    pool.rig.wait_for_stat("slots_in_use", 2)?;
    pending.push(pool.send()?);
    pool.rig.wait_for_stat("queue_length", 1)?;
    for _ in 0..REFUSED {
        let refused = pool.ask()?;
        let reason = refused.refusal_reason();
        ensure!(refused.status == 503 && reason.is_some(), "{refused:?}");
    }
    // Envoy shows the picker every answer, even a refusal.
    pool.asked(6 + 2, REFUSED)?;
    pool.release();
    for request in pending {
        ensure!(request.answer()?.status == 200);
    }
    pool.asked(6 + 3, REFUSED)?;
    pool.until_idle()
}

#[test]
fn a_queued_request_asks_the_picker_when_it_starts() -> Result<()> {
    let Some(pool) = Pool::start(1, 1)? else {
        return Ok(());
    };
    pool.set_waiting([0, MANY])?;
    pool.hold();
    let first = pool.send()?;
    pool.until_in_service([1, 0])?;
    let second = pool.send()?;
    pool.rig.wait_for_stat("queue_length", 1)?;
    // If the picker had chosen when the request arrived, it would have chosen the first server.
    pool.set_waiting([MANY, 0])?;
    pool.asked(1, 0)?;
    pool.servers[0].release();
    ensure!(first.answer()?.status == 200);
    pool.until_in_service([0, 1])?;
    pool.asked(2, 0)?;
    pool.release();
    ensure!(second.answer()?.status == 200);
    let received = pool.received();
    ensure!(received == [1, 1], "{received:?}");
    pool.until_idle()
}

#[test]
fn slots_are_free_again_without_a_picker() -> Result<()> {
    let Some(mut pool) = Pool::start(1, QUEUE as usize)? else {
        return Ok(());
    };
    pool.until_served()?;

    // When the picker is killed, one request is in service and others wait. None of the waiting
    // ones reaches a server.
    pool.hold();
    let mut pending = vec![pool.send()?];
    until("a request in service", || {
        let busy = pool.servers.iter().map(|server| server.stats().busy);
        match busy.sum() {
            1 => Ok(()),
            busy => Err(format!("{busy}")),
        }
    })?;
    pending.push(pool.send()?);
    pending.push(pool.send()?);
    pool.rig.wait_for_stat("queue_length", 2)?;
    let received = pool.received();
    pool.picker.kill()?;
    pending.push(pool.send()?);
    for request in pending {
        failed(&request.answer()?)?;
    }
    ensure!(pool.received() == received, "{:?}", pool.received());
    pool.until_idle()?;
    pool.release();
    pool.restart_picker()?;
    pool.until_served()?;

    // While the picker doesn't answer, a request keeps its slot until its client hangs up.
    pool.picker.pause();
    let first = pool.send()?;
    pool.rig.wait_for_stat("slots_in_use", 1)?;
    let mut pending = Vec::new();
    for queued in 1..=QUEUE {
        pending.push(pool.send()?);
        pool.rig.wait_for_stat("queue_length", queued)?;
    }
    let received = pool.received();
    first.hang_up();
    pool.rig.wait_for_stat("queue_length", QUEUE - 1)?;
    pool.rig.wait_for_stat("slots_in_use", 1)?;
    pending.push(pool.send()?);
    pool.rig.wait_for_stat("queue_length", QUEUE)?;
    // Even a refusal reaches the client only after the picker has seen it.
    let rejected = pool.rig.type_stat("default", "rq_rejected")?;
    pending.push(pool.send()?);
    pool.rig
        .wait_for_stat("type.default.rq_rejected", rejected + 1)?;
    pool.picker.kill()?;
    for request in pending {
        failed(&request.answer()?)?;
    }
    pool.until_idle()?;
    ensure!(pool.received() == received, "{:?}", pool.received());
    pool.restart_picker()?;
    pool.until_served()
}

/// Fails unless Envoy answered because the picker was unreachable.
fn failed(answer: &Answer) -> Result<()> {
    let refused = answer.refusal_reason().is_some();
    ensure!(answer.status == 500 && !refused, "{answer:?}");
    Ok(())
}
