//! Tests of a real Envoy (`HEADGATE_ENVOY`) over mutual TLS, with a bootstrap as `headgate
//! bootstrap` writes it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use headgate_controller::bootstrap::{
    Bootstrap, ConfigSource, Pod, ProxyIdentity, SdsFiles, XdsTls,
};
use headgate_xds::Limits;
use headgate_xds::module::Module;
use headgate_xds::proxy::{Proxy, RunState};
use tempfile::TempDir;

use crate::common::{SEARCH, World, plan, wasm};
use crate::envoy::{Envoy, backend, bootstrap, poll, validate};
use crate::proxies::{Authority, Pair, spiffe, until, write_tls};

/// The namespace of [`SEARCH`].
const NAMESPACE: &str = "default";
const UPDATES: &str = "extension_config_discovery.http_filter.headgate.update_success";

async fn server(authority: &Authority) -> (World, Pair) {
    let pair = authority.server();
    let tls = (&pair, &*authority.pem);
    let server = World::secured(plan(&[(SEARCH, "1")]), Limits::default(), tls).await;
    let source = server.dir.path().join("m.wasm");
    fs::write(&source, wasm(true)).unwrap();
    let module = Module::install(&source, &server.dir.path().join("modules")).unwrap();
    server.modules.send_replace(Arc::new(module.into()));
    (server, pair)
}

/// A folder with the files of a proxy, as in a mounted Secret, and with the files for SDS.
struct Files(TempDir);

impl Files {
    fn new(pair: &Pair, ca: &str) -> Self {
        let files = Self(tempfile::tempdir().unwrap());
        drop(write_tls(files.0.path(), pair, ca));
        files
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn tls(&self) -> XdsTls {
        self.with(ProxyIdentity::Certificate {
            cert: self.path("tls.crt"),
            key: self.path("tls.key"),
        })
    }

    fn with(&self, identity: ProxyIdentity) -> XdsTls {
        let tls = XdsTls {
            sds: SdsFiles::beside(&self.path("envoy.yaml"), &identity),
            identity,
            ca: self.path("ca.crt"),
            server_name: "headgate.test".into(),
        };
        fs::write(&tls.sds.identity, tls.identity_yaml().unwrap()).unwrap();
        fs::write(&tls.sds.ca, tls.ca_yaml().unwrap()).unwrap();
        tls
    }
}

async fn of(server: &World, tls: Option<XdsTls>) -> Bootstrap {
    let source = ConfigSource::Xds {
        address: server.xds.to_string().parse().unwrap(),
        tls: tls.map(Box::new),
    };
    bootstrap(source, backend().await)
}

fn records(server: &World) -> Vec<Arc<Proxy>> {
    server.registry.proxies(SystemTime::now())
}

fn runs(server: &World, revision: &str) -> bool {
    records(server).iter().any(|p| {
        p.disconnected.is_none()
            && p.run_state() == RunState::Running
            && p.acked
                .as_ref()
                .is_some_and(|a| a.revision.starts_with(revision))
    })
}

#[tokio::test]
async fn an_envoy_follows_edits_and_rotations_of_every_certificate() {
    let old = Authority::new();
    let (server, server_pair) = server(&old).await;
    let uri = spiffe(NAMESPACE);
    let files = Files::new(&old.proxy(&[&uri]), &old.pem);
    let mut bootstrap = of(&server, Some(files.tls())).await;
    bootstrap.pod = Pod {
        namespace: Some(NAMESPACE.into()),
        labels: [("app".to_owned(), "search".to_owned())].into(),
        module: None,
        ..Pod::default()
    };
    let envoy = Envoy::start(&bootstrap).await;
    until("the first configuration", || runs(&server, "1")).await;
    let proxy = records(&server).remove(0);
    assert_eq!(proxy.identity.certificate.as_deref(), Some(uri.as_str()));
    assert_eq!(proxy.identity.namespace.as_deref(), Some(NAMESPACE));
    assert_eq!(proxy.identity.labels["app"], "search");

    // First both sides trust both CAs. Then each side gets a certificate of the new CA. Then the
    // old CA is removed.
    let new = Authority::new();
    let both = format!("{}{}", old.pem, new.pem);
    let reloads = |n: u64| {
        let metrics = server.metrics.clone();
        move || metrics.xds.tls_reloads.get() >= n
    };
    drop(write_tls(server.dir.path(), &server_pair, &both));
    until("the operator trusts both", reloads(1)).await;
    drop(write_tls(files.0.path(), &new.proxy(&[&uri]), &both));
    poll("Envoy has the new certificate", async || {
        envoy
            .stat("cluster.headgate_xds.client_ssl_socket_factory.ssl_context_update_by_sds")
            .await
            .filter(|n| *n >= 2)
    })
    .await;
    drop(write_tls(server.dir.path(), &new.server(), &new.pem));
    until("the operator trusts the new one alone", || {
        let connected = records(&server)
            .iter()
            .filter(|p| p.disconnected.is_none())
            .count();
        connected == 1 && runs(&server, "1") && reloads(2)()
    })
    .await;
    server.plans.send_replace(Arc::new(plan(&[(SEARCH, "2")])));
    until("an edit", || runs(&server, "2")).await;
    assert_eq!(envoy.request().await, 200);
}

#[tokio::test]
async fn an_envoy_with_the_wrong_certificate_gets_nothing_and_serves_on() {
    let authority = Authority::new();
    let (server, _) = server(&authority).await;
    let uri = spiffe(NAMESPACE);
    let denied = || {
        let xds = &server.metrics.xds;
        xds.streams_refused.get() + xds.handshakes_failed.get()
    };
    for (name, pair) in [
        ("none", None),
        ("of another CA", Some(Authority::new().proxy(&[&uri]))),
        ("expired", Some(authority.expired(&uri))),
        (
            "of another namespace",
            Some(authority.proxy(&[&spiffe("bank")])),
        ),
        ("without SPIFFE id", Some(authority.proxy(&[]))),
    ] {
        let files = pair.map(|pair| Files::new(&pair, &authority.pem));
        let envoy = Envoy::start(&of(&server, files.as_ref().map(Files::tls)).await).await;
        let before = denied();
        // The second attempt comes after Envoy has noticed the failure of the first.
        until(name, || denied() >= before + 2).await;
        assert_eq!(envoy.stat(UPDATES).await.unwrap_or(0), 0, "{name}");
        assert_eq!(envoy.request().await, 200, "{name}");
        assert!(records(&server).is_empty(), "{name}");
    }
}

#[tokio::test]
async fn an_envoy_does_not_believe_another_operator() {
    let (real, other) = (Authority::new(), Authority::new());
    let (server, _) = server(&real).await;
    let uri = spiffe(NAMESPACE);
    // One proxy trusts another CA, and the other proxy expects another name.
    let stranger = Files::new(&real.proxy(&[&uri]), &other.pem);
    let files = Files::new(&real.proxy(&[&uri]), &real.pem);
    let misnamed = XdsTls {
        server_name: "headgate.elsewhere".into(),
        ..files.tls()
    };
    for tls in [stranger.tls(), misnamed] {
        let envoy = Envoy::start(&of(&server, Some(tls)).await).await;
        poll("the operator's certificate is refused", async || {
            let stats = [
                "cluster.headgate_xds.ssl.fail_verify_error",
                "cluster.headgate_xds.ssl.fail_verify_san",
            ];
            let mut refused = 0;
            for stat in stats {
                refused += envoy.stat(stat).await.unwrap_or(0);
            }
            (refused > 0).then_some(())
        })
        .await;
        assert_eq!(envoy.stat(UPDATES).await.unwrap_or(0), 0);
    }
    assert!(records(&server).is_empty());
}

#[tokio::test]
async fn bootstraps_with_tls_are_valid() {
    let authority = Authority::new();
    let files = Files::new(&authority.proxy(&[&spiffe(NAMESPACE)]), &authority.pem);
    fs::write(files.path("token"), "a.b.c").unwrap();
    for name in ["headgate.headgate-system.svc", "10.0.0.1"] {
        for by_token in [false, true] {
            let token = ProxyIdentity::Token(files.path("token"));
            let tls = XdsTls {
                server_name: name.into(),
                ..if by_token {
                    files.with(token)
                } else {
                    files.tls()
                }
            };
            let source = ConfigSource::Xds {
                address: format!("{name}:18000").parse().unwrap(),
                tls: Some(Box::new(tls)),
            };
            let mut bootstrap = bootstrap(source, "127.0.0.1:8080".parse().unwrap());
            bootstrap.pod = Pod {
                namespace: Some("shop".into()),
                labels: [("app.kubernetes.io/name".to_owned(), "web".to_owned())].into(),
                module: Some(Path::new("/headgate/m.wasm").into()),
                ..Pod::default()
            };
            if let Err(log) = validate(&bootstrap, files.0.path()) {
                panic!("{log}\n{}", bootstrap.to_yaml().unwrap());
            }
        }
    }
}
