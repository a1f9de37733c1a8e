//! Tests of the xDS server, the bootstrap and the module store with a real Envoy
//! (`HEADGATE_ENVOY`).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use headgate_api::plan::Plan;
use headgate_controller::bootstrap::{ConfigSource, Outbound};
use headgate_controller::conditions::Type::Programmed;
use headgate_controller::endpoint::Endpoint;
use headgate_xds::Limits;
use headgate_xds::module::{Module, Modules};
use headgate_xds::resource::discovery_json;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::common::{ADS, SEARCH, World, get, module_at, plan, wasm};
use crate::envoy::{Envoy, backend, backend_at, bootstrap, poll, validate};

/// A folder with a module file, and with the folder from which proxies load modules.
struct Store(TempDir);

impl Store {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn install(&self, accept: bool) -> Module {
        let source = self.0.path().join("filter.wasm");
        fs::write(&source, wasm(accept)).unwrap();
        Module::install(&source, &self.0.path().join("modules")).unwrap()
    }
}

fn xds(world: &World) -> ConfigSource {
    ConfigSource::Xds {
        address: world.xds.to_string().parse().unwrap(),
        tls: None,
    }
}

#[tokio::test]
async fn follows_edits_and_keeps_the_last_good_one() {
    let store = Store::new();
    let good = store.install(true);
    let world = World::start_with(
        plan(&[(SEARCH, "r1"), (ADS, "a1")]),
        good.clone(),
        Limits::default(),
        0,
    )
    .await;
    let envoy = Envoy::start(&bootstrap(xds(&world), backend().await)).await;
    let report = world
        .until("r1 runs", |r| {
            r.proxies.iter().any(|p| p.state == "Running")
        })
        .await;
    let proxy = &report.proxies[0];
    assert_eq!(
        (proxy.node.as_str(), proxy.cluster.as_str()),
        ("edge-1", "headgate")
    );
    assert_eq!(
        (proxy.target.as_deref(), proxy.policies.as_slice()),
        (Some(SEARCH), &["default/search".to_owned()][..])
    );
    assert_eq!(envoy.request().await, 200);

    world
        .plans
        .send_replace(Arc::new(plan(&[(SEARCH, "r2"), (ADS, "a1")])));
    let running = |revision: &'static str| {
        move |r: &headgate_controller::report::Report| {
            r.proxies[0].state == "Running"
                && r.proxies[0]
                    .acked
                    .as_ref()
                    .is_some_and(|a| a.revision == revision)
        }
    };
    world.until("r2 runs", running("r2")).await;

    // This module refuses every configuration, so the NACK comes from Envoy itself.
    world
        .modules
        .send_replace(Arc::new(store.install(false).into()));
    let report = world
        .until("refused", |r| r.proxies[0].state == "Rejected")
        .await;
    let nack = report.proxies[0].nack.as_ref().unwrap();
    assert_eq!(
        (
            nack.push.revision.as_str(),
            nack.message
                .contains("Unable to create Wasm plugin headgate")
        ),
        ("r2", true),
        "{nack:?}"
    );
    let programmed = report
        .policies
        .iter()
        .find(|p| p.name == "default/search")
        .unwrap();
    assert_eq!(programmed.conditions[&Programmed].reason, "EnvoyRejected");
    assert_eq!(
        envoy.request().await,
        200,
        "the last good configuration stays"
    );

    world.modules.send_replace(Arc::new(good.into()));
    world
        .plans
        .send_replace(Arc::new(plan(&[(SEARCH, "r3"), (ADS, "a1")])));
    world.until("r3 runs", running("r3")).await;
    world.plans.send_replace(Arc::new(Plan::default()));
    world.until("the policy is gone", running("")).await;
    assert_eq!(envoy.request().await, 200);
}

#[tokio::test]
async fn traffic_flows_without_an_operator_and_its_restart_changes_nothing() {
    const ATTEMPTS: &str = "extension_config_discovery.http_filter.headgate.update_success";
    let store = Store::new();
    let good = store.install(true);
    // Choose a free port. The servers of this test listen on it later, one after the other.
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let address = format!("127.0.0.1:{port}").parse().unwrap();
    let source = ConfigSource::Xds { address, tls: None };
    let envoy = Envoy::start(&bootstrap(source, backend().await)).await;
    assert_eq!(
        envoy.request().await,
        200,
        "the operator has never answered"
    );

    let first = World::start_with(
        plan(&[(SEARCH, "r1")]),
        good.clone(),
        Limits::default(),
        port,
    )
    .await;
    first
        .until("r1 runs", |r| {
            r.proxies.iter().any(|p| p.state == "Running")
        })
        .await;
    let updates = envoy.stat(ATTEMPTS).await.unwrap();
    first.shutdown.send_replace(true);
    first.served.await.unwrap();
    assert_eq!(envoy.request().await, 200, "the operator is gone");

    let second = World::start_with(plan(&[(SEARCH, "r1")]), good, Limits::default(), port).await;
    let report = second
        .until("r1 still runs", |r| {
            r.proxies.iter().any(|p| p.state == "Running")
        })
        .await;
    assert_eq!(report.proxies[0].sent, None, "nothing was sent again");
    assert_eq!(envoy.stat(ATTEMPTS).await, Some(updates));
    assert_eq!(envoy.request().await, 200);
}

fn write_file(to: &Path, revision: &str, module: &Module) {
    let config = crate::common::config("default/search", revision);
    let json = discovery_json(&config, "headgate", &module.path);
    let partial = to.with_extension("new");
    fs::write(&partial, json.to_string()).unwrap();
    fs::rename(partial, to).unwrap();
}

#[tokio::test]
async fn a_file_is_followed_too() {
    const UPDATES: &str = "extension_config_discovery.http_filter.headgate.update_success";
    let store = Store::new();
    let good = store.install(true);
    let file = store.0.path().join("ecds.json");
    write_file(&file, "r1", &good);
    let envoy = Envoy::start(&bootstrap(
        ConfigSource::File(file.clone()),
        backend().await,
    ))
    .await;
    poll("the file is taken", async || {
        envoy.stat(UPDATES).await.filter(|n| *n == 1)
    })
    .await;
    assert_eq!(envoy.request().await, 200);
    write_file(&file, "r2", &good);
    poll("the new file is taken", async || {
        envoy.stat(UPDATES).await.filter(|n| *n == 2)
    })
    .await;
    let (_, dump) = get(envoy.admin, "/config_dump?resource=ecds_filters")
        .await
        .unwrap();
    assert!(dump.contains(r#"\"revision\":\"r2\""#), "{dump}");
}

/// Returns an outbound listener for two services. One of the services has two processes.
fn outbound() -> Outbound {
    let endpoints = |texts: &[&str]| texts.iter().map(|t| t.parse().unwrap()).collect();
    Outbound {
        listen: "127.0.0.1:0".parse().unwrap(),
        services: [
            ("cart.shop", endpoints(&["127.0.0.1:1", "cart.example:2"])),
            ("extent-node", endpoints(&["[::1]:3"])),
        ]
        .map(|(name, endpoints)| (name.to_owned(), endpoints))
        .into(),
        http2: true,
        config_file: None,
    }
}

#[tokio::test]
async fn every_bootstrap_is_valid() {
    let store = Store::new();
    let file = store.0.path().join("ecds.json");
    write_file(&file, "r1", &store.install(true));
    let upstream = "127.0.0.1:8080".parse().unwrap();
    let xds = |address: &str| ConfigSource::Xds {
        address: address.parse().unwrap(),
        tls: None,
    };
    let (local, named) = (
        xds("localhost:18000"),
        xds("headgate.headgate-system.svc:18000"),
    );
    for source in [ConfigSource::File(file), local, named] {
        for full in [false, true] {
            let mut bootstrap = bootstrap(source.clone(), upstream);
            bootstrap.upstream_http2 = full;
            bootstrap.access_log = full.then(|| "/dev/null".into());
            bootstrap.outbound = full.then(outbound);
            bootstrap.stats = full.then(|| "[::]:9902".parse().unwrap());
            if !full {
                bootstrap.target = None;
            }
            if let Err(log) = validate(&bootstrap, store.0.path()) {
                panic!("{log}\n{}", bootstrap.to_yaml().unwrap());
            }
        }
    }
}

/// Returns a source of configurations for tests without an operator.
fn file_source(store: &Store) -> ConfigSource {
    let file = store.0.path().join("ecds.json");
    write_file(&file, "r1", &store.install(true));
    ConfigSource::File(file)
}

/// Returns this port on the loopback addresses that the machine has, at most one for each address
/// family.
fn loopbacks(port: u16) -> Vec<SocketAddr> {
    let all = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
    let all = all.map(|ip: IpAddr| SocketAddr::new(ip, port));
    let exists = |address: &SocketAddr| TcpListener::bind((address.ip(), 0)).is_ok();
    all.into_iter().filter(exists).collect()
}

fn here(endpoint: &str) -> Endpoint {
    endpoint.parse::<Endpoint>().unwrap().on_this_machine()
}

#[tokio::test]
async fn the_stats_listener_serves_statistics_and_readiness_only() {
    let store = Store::new();
    let mut bootstrap = bootstrap(file_source(&store), backend().await);
    let admin = TcpListener::bind("127.0.0.1:0").unwrap();
    bootstrap.admin.port = admin.local_addr().unwrap().port();
    bootstrap.stats = Some(here("[::]:0"));
    drop(admin);
    let envoy = Envoy::start(&bootstrap).await;
    let (_, listeners) = get(envoy.admin, "/listeners").await.unwrap();
    let stats = listeners
        .lines()
        .find(|line| line.starts_with("stats::"))
        .unwrap();
    let port = stats.rsplit_once(':').unwrap().1.trim().parse().unwrap();
    for address in loopbacks(port) {
        let (status, body) = get(address, "/stats/prometheus?filter=server.live$")
            .await
            .unwrap();
        assert_eq!(status, 200);
        assert!(body.contains("envoy_server_live{} 1"), "{body}");
        let (status, body) = get(address, "/ready").await.unwrap();
        assert_eq!(status, 200);
        assert!(body.contains("LIVE"), "{body}");
        for path in [
            "/",
            "/quitquitquit",
            "/config_dump",
            "/stats",
            "/ready/",
            "/ready/../quitquitquit",
            "/stats/prometheus/../../config_dump",
            "//config_dump",
        ] {
            assert_eq!(get(address, path).await.unwrap().0, 404, "{path}");
        }
    }
    // If the admin interface listened on all addresses, it would accept this connection, too.
    let other = SocketAddr::from(([127, 0, 0, 2], envoy.admin.port()));
    assert!(TcpStream::connect(envoy.admin).is_ok());
    assert!(TcpStream::connect(other).is_err());
}

#[tokio::test]
async fn both_families_reach_applications_on_either_loopback_address() {
    let store = Store::new();
    let mut applications = vec![here("[::]:0").to_string(), "0.0.0.0:0".to_owned()];
    applications.extend(loopbacks(0).iter().map(SocketAddr::to_string));
    for application in applications {
        let upstream = backend_at(&application).await;
        let mut bootstrap = bootstrap(file_source(&store), upstream);
        bootstrap.upstream = here(&format!("localhost:{}", upstream.port()));
        bootstrap.listen = here("[::]:0");
        let envoy = Envoy::start(&bootstrap).await;
        for client in loopbacks(envoy.listener.port()) {
            let (status, _) = get(client, "/q/fast").await.unwrap();
            assert_eq!(status, 200, "{client} to an application at {application}");
        }
    }
}

/// An operator may listen on one address family, the other or both.
#[tokio::test]
async fn an_operator_on_localhost_is_reached_on_either_loopback_address() {
    let store = Store::new();
    let upstream = backend().await;
    for operator in loopbacks(0) {
        let (plan, limits) = (plan(&[(SEARCH, "r1")]), Limits::default());
        let world = World::start_at(operator, plan, store.install(true), limits, None).await;
        let source = ConfigSource::Xds {
            address: here(&format!("localhost:{}", world.xds.port())),
            tls: None,
        };
        let _envoy = Envoy::start(&bootstrap(source, upstream)).await;
        world
            .until(&format!("it runs from {operator}"), |r| {
                r.proxies.first().is_some_and(|p| p.state == "Running")
            })
            .await;
    }
}

/// The Pod is one of an IPv6-only cluster. The operator and the application listen only on `::1`,
/// and `headgate inject` has added the sidecar.
#[tokio::test]
async fn an_injected_sidecar_runs_over_ipv6_alone() {
    const POD: &str = "kind: Pod\napiVersion: v1\nmetadata: {name: search-1}\nspec:\n  \
                       containers: [{name: app, image: app, ports: [{containerPort: 8080}]}]\n";
    let Some(&ipv6) = loopbacks(0).iter().find(|address| address.is_ipv6()) else {
        eprintln!("this machine has no IPv6");
        return;
    };
    let store = Store::new();
    let module = store.install(true);
    let (plan, limits) = (plan(&[(SEARCH, "r1")]), Limits::default());
    let world = World::start_at(ipv6, plan, module.clone(), limits, None).await;
    let application = backend_at(&ipv6.to_string()).await;
    let at = |name: &str| store.0.path().join(name).to_str().unwrap().to_owned();
    let headgate = |arguments: &[String]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_headgate"));
        command
            .env("POD_NAME", "search-1")
            .env("POD_NAMESPACE", "default");
        let output = command.args(arguments).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        output.stdout
    };
    fs::write(at("pod.yaml"), POD).unwrap();
    fs::write(at("labels"), "app=\"search\"\n").unwrap();
    let xds = format!("--xds=localhost:{}", world.xds.port());
    let pod = headgate(&[
        "inject".to_owned(),
        xds,
        "--image=mine".to_owned(),
        at("pod.yaml"),
    ]);
    let pod: Value = serde_saphyr::from_slice(&pod).unwrap();
    let arguments = pod["spec"]["initContainers"][0]["args"].as_array().unwrap();
    let arguments = arguments.iter().filter_map(|argument| {
        let argument = argument.as_str().unwrap();
        let (option, value) = argument.split_once('=').unwrap_or((argument, ""));
        let value = match option {
            "--listen" | "--stats" => value.rsplit_once(':').unwrap().0.to_owned() + ":0",
            // The bootstrap of the listener for stats contains the admin port, so the port must be
            // known here.
            "--admin" => TcpListener::bind((ipv6.ip(), 0))
                .unwrap()
                .local_addr()
                .unwrap()
                .to_string(),
            "--upstream" => format!("localhost:{}", application.port()),
            "--install-module" => at("own"),
            "--labels-file" => at("labels"),
            "--output" => at("envoy.yaml"),
            // The operator of this test serves without TLS.
            "--xds-token" | "--xds-tls-ca" => return None,
            "bootstrap" => return Some(argument.to_owned()),
            _ => value.to_owned(),
        };
        Some(format!("{option}={value}"))
    });
    let wasm = format!("--wasm={}", module.path.display());
    headgate(&arguments.chain([wasm]).collect::<Vec<_>>());
    let envoy = Envoy::start_from(&fs::read_to_string(at("envoy.yaml")).unwrap()).await;
    let report = world
        .until("it runs", |r| {
            r.proxies.first().is_some_and(|p| p.state == "Running")
        })
        .await;
    assert!(report.proxies[0].peer.starts_with("[::1]:"), "{report:?}");
    let (_, listeners) = get(envoy.admin, "/listeners").await.unwrap();
    for (name, path) in [("ingress::", "/q/fast"), ("stats::", "/ready")] {
        let found = listeners.lines().find(|line| line.starts_with(name));
        let port = found.unwrap().rsplit_once(':').unwrap().1.trim();
        let address = SocketAddr::new(ipv6.ip(), port.parse().unwrap());
        assert_eq!(get(address, path).await.unwrap().0, 200, "{name}");
    }
}

/// While operators are upgraded, a sidecar keeps the bootstrap and the module with which its Pod
/// started. `headgate bootstrap` wrote the file of this test at commit 3a61e5b. The file must never
/// be edited.
#[tokio::test]
async fn a_sidecar_with_the_bootstrap_of_an_earlier_version_is_programmed() {
    let store = Store::new();
    let own = store.0.path().join("own.wasm");
    fs::write(&own, wasm(true)).unwrap();
    let own = own.to_str().unwrap();
    let modules = Modules {
        native: Some(module_at("/modules/headgate-2.so")),
        ..store.install(true).into()
    };
    let world = World::start_with(plan(&[(SEARCH, "r1")]), modules, Limits::default(), 0).await;
    let ports = [world.xds, backend().await].map(|address| address.port().to_string());
    let bootstrap = include_str!("../bootstraps/0.1.yaml")
        .replace("MODULE", own)
        .replace("OPERATOR_PORT", &ports[0])
        .replace("UPSTREAM_PORT", &ports[1]);
    let envoy = Envoy::start_from(&bootstrap).await;
    for revision in ["r1", "r2"] {
        world
            .plans
            .send_replace(Arc::new(plan(&[(SEARCH, revision)])));
        let report = world
            .until(revision, |r| {
                let acked = r.proxies.first().and_then(|p| p.acked.as_ref());
                acked.is_some_and(|a| a.revision == revision)
            })
            .await;
        let proxy = &report.proxies[0];
        assert_eq!(proxy.state, "Running");
        assert_eq!(
            (proxy.filter.as_str(), proxy.fallback.as_deref()),
            ("wasm", None)
        );
        assert_eq!(proxy.module.as_deref(), Some(own));
    }
    assert_eq!(envoy.request().await, 200);
}

/// `headgate bootstrap` of 0.1 wrote such bootstraps with `--delta` and `--ads`.
#[tokio::test]
async fn the_log_of_a_proxy_with_another_protocol_says_what_to_change() {
    let world = World::start(plan(&[(SEARCH, "r1")])).await;
    let whole = bootstrap(xds(&world), backend().await).to_yaml().unwrap();
    let whole: Value = serde_saphyr::from_str(&whole).unwrap();
    let change = |change: fn(&mut Value, Value) -> Value| {
        let mut bootstrap = whole.clone();
        let source = "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config\
                      /http_filters/0/config_discovery/config_source";
        let source = bootstrap.pointer_mut(source).unwrap();
        let api = source["api_config_source"].take();
        let dynamic = change(source, api);
        bootstrap["dynamic_resources"] = dynamic;
        bootstrap.to_string()
    };
    let delta = change(|source, mut api| {
        api["api_type"] = "DELTA_GRPC".into();
        source["api_config_source"] = api;
        json!({})
    });
    let ads = change(|source, api| {
        *source = json!({"resource_api_version": "V3", "ads": {}});
        json!({"ads_config": api})
    });
    for bootstrap in [delta, ads] {
        let envoy = Envoy::start_from(&bootstrap).await;
        let log = envoy.dir.path().join("log");
        poll("Envoy to say what the operator says", async || {
            let log = fs::read_to_string(&log).unwrap();
            // Envoy shows the message percent-encoded.
            let says = log.contains("closed: 12, ") && log.contains("set%20api_type:%20GRPC");
            says.then_some(())
        })
        .await;
        assert_eq!(envoy.request().await, 200, "without a policy");
    }
    assert!(world.report().proxies.is_empty());
}
