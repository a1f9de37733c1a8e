//! Replicas of the previous minor version beside replicas of this version, as during an upgrade.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use std::{io, thread};

use anyhow::{Result, ensure};
use headgate_tests::kube::{ApiServer, programs};
use headgate_tests::operator::{Operator, OperatorOptions, own_address};
use headgate_tests::policies::{Cluster, policy, service};
use headgate_tests::wait::until_within;
use headgate_tests::xds::{Claims, XdsProxy};
use serde_json::{Value, json};

const LONG: Duration = Duration::from_secs(90);
/// A number of requests after which a leader of the previous version has given up on a replica.
const REQUESTS: usize = 5;

/// Forwards connections to `to`, one after the other. Returns the address that takes them, and the
/// number of connections that have ended.
fn forward(own: Ipv4Addr, to: SocketAddr) -> Result<(SocketAddr, Arc<AtomicUsize>)> {
    let listener = TcpListener::bind((own, 0))?;
    let address = listener.local_addr()?;
    let ended = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&ended);
    thread::spawn(move || {
        for client in listener.incoming() {
            let one = client.and_then(|client| {
                let server = TcpStream::connect(to)?;
                let (mut requests, mut to_server) = (client.try_clone()?, server.try_clone()?);
                thread::spawn(move || io::copy(&mut requests, &mut to_server));
                io::copy(&mut &server, &mut &client)?;
                client.shutdown(std::net::Shutdown::Both)
            });
            counter.fetch_add(usize::from(one.is_ok()), Ordering::Relaxed);
        }
    });
    Ok((address, ended))
}

/// Returns the EndpointSlices by which replicas find each other.
fn slices(system: &str, replicas: &[SocketAddr]) -> String {
    let slice = |(n, address): (usize, &SocketAddr)| {
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {
                "name": format!("headgate-metrics-{n}"), "namespace": system,
                "labels": {"kubernetes.io/service-name": "headgate-metrics"},
            },
            "endpoints": [{"addresses": [address.ip()], "conditions": {"ready": true}}],
            "ports": [{"name": "http-admin", "port": address.port()}],
        })
        .to_string()
    };
    let all: Vec<String> = replicas.iter().enumerate().map(slice).collect();
    all.join("\n---\n")
}

/// The older leader sends no token, and takes a refusal for a replica that has no proxies.
#[test]
fn an_older_leader_leaves_the_status_of_a_newer_replicas_proxies_as_it_is() -> Result<()> {
    let server = &ApiServer::start()?;
    // Helm replaces the CRD before the operators. So the previous version must understand the
    // defaults that the API server adds to policies.
    server.install_crds()?;
    let cluster = Cluster::new(server);
    let (system, shop) = (cluster.namespace("system")?, cluster.namespace("shop")?);
    cluster.apply(&service(&shop, "search", "app=search"))?;
    let spec = "  classes:
  - {name: gold, matches: [{headers: [{name: x-plan, value: gold}]}]}
  - {name: rest}
  queue: {discipline: DRR, drr: {by: Class}}
  strategy: {type: Bouncer, bouncer: {minSamples: 20}}
";
    cluster.apply(&(policy(&shop, "search", "Service", "search", 4) + spec))?;
    // The API server takes no loopback addresses in EndpointSlices. An operator asks for tokens
    // only at other addresses.
    let own = own_address()?;
    let start = |name: &str, options: OperatorOptions| {
        let kubeconfig = server.user_kubeconfig(name, Some("system:masters"))?;
        let admin = SocketAddr::from((own, 0));
        Operator::start(&kubeconfig, &OperatorOptions { admin, ..options })
    };
    let programmed = || cluster.condition(&shop, "search", 0, "Programmed");
    let until_programmed = |by: &Operator| -> Result<Value> {
        until_within(LONG, "a policy in force", || {
            let found = programmed().map_err(|e| e.to_string())?;
            match found["status"] == "True" {
                true => Ok(found),
                false => Err(format!("{found}\n{}", by.child().tail())),
            }
        })
    };
    let older = OperatorOptions {
        program: programs::older()?.join("headgate"),
        ..OperatorOptions::new("older", &system)
    };
    let older = start("older", older)?;
    let proxy = XdsProxy::start(older.xds(), Claims::pod("p1", &shop, &[("app", "search")]))?;
    let before = until_programmed(&older)?;

    let newer = start("newer", OperatorOptions::new("newer", &system))?;
    let (forwarder, requests) = forward(own, newer.admin())?;
    cluster.apply(&slices(&system, &[older.admin(), forwarder]))?;
    // The older leader must have asked the newer replica before the leader loses its proxy.
    let asked = |times: usize| {
        until_within(LONG, &format!("{times} requests"), || {
            match requests.load(Ordering::Relaxed) {
                n if n >= times => Ok(()),
                n => Err(format!("{n}\n{}", older.output())),
            }
        })
    };
    asked(1)?;
    proxy.move_to(newer.xds());
    asked(1 + REQUESTS)?;
    let during = programmed()?;
    ensure!(during == before, "{before} {during}\n{}", older.output());

    older.stop()?;
    newer.stop().map(drop)
}
