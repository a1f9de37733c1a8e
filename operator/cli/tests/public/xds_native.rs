//! Tests of the choice between the native filter and the Wasm filter for each proxy, and of what
//! `headgate status` shows about the choice, over real connections.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::Arc;

use envoy_types::pb::envoy::config::core::v3::node::UserAgentVersionType;
use envoy_types::pb::envoy::config::core::v3::{BuildVersion, Extension};
use envoy_types::pb::envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse};
use envoy_types::pb::envoy::r#type::v3::SemanticVersion;
use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::{Struct, Value};
use headgate_api::plan::{
    ARCHITECTURE_METADATA, FILTER_METADATA, MODULE_METADATA, NATIVE_MODULE_METADATA, Plan,
    TARGET_METADATA, VERSION_METADATA,
};
use headgate_controller::conditions::Type::Programmed;
use headgate_controller::report::Report;
use headgate_xds::Limits;
use headgate_xds::module::{Module, Modules};

use crate::common::{SEARCH, World, configuration, module_at, plan};
use crate::wire::{ack, hello, nack, sotw};

const WASM: &str = "/modules/headgate-1.wasm";
const NATIVE: &str = "/modules/headgate-1.so";

fn native(path: &str) -> Module {
    Module {
        architecture: Some("x86_64"),
        ..module_at(path)
    }
}

fn modules(native: Option<Module>) -> Modules {
    Modules {
        native,
        ..module_at(WASM).into()
    }
}

async fn world(native: Option<Module>) -> World {
    World::start_with(
        plan(&[(SEARCH, "r1")]),
        modules(native),
        Limits::default(),
        0,
    )
    .await
}

/// Returns the first request of an Envoy 1.`minor` with this metadata.
fn envoy(minor: u32, metadata: &[(&str, &str)]) -> DiscoveryRequest {
    let mut request = hello(None);
    let node = request.node.as_mut().unwrap();
    let value = |text: &str| Value {
        kind: Some(Kind::StringValue(text.to_owned())),
    };
    let fields = [(TARGET_METADATA, SEARCH)]
        .into_iter()
        .chain(metadata.iter().copied());
    node.metadata = Some(Struct {
        fields: fields
            .map(|(key, text)| (key.to_owned(), value(text)))
            .collect(),
    });
    let version = Some(SemanticVersion {
        major_number: 1,
        minor_number: minor,
        patch: 0,
    });
    node.user_agent_version_type =
        Some(UserAgentVersionType::UserAgentBuildVersion(BuildVersion {
            version,
            metadata: None,
        }));
    node.extensions = vec![Extension {
        name: "envoy.extensions.filters.http.dynamic_modules".to_owned(),
        category: "envoy.filters.http".to_owned(),
        ..Extension::default()
    }];
    request
}

/// Whether the response names the module at this path.
fn names(response: &DiscoveryResponse, path: &str) -> bool {
    let bytes = &response.resources[0].value;
    bytes.windows(path.len()).any(|w| w == path.as_bytes())
}

#[tokio::test]
async fn a_proxy_gets_the_native_filter_where_it_fits_and_wasm_with_the_reason_elsewhere() {
    let own = "/pod/headgate.wasm";
    let (own_native, asks) = ("/pod/headgate.so", (FILTER_METADATA, "native"));
    for (minor, metadata, has_native, path, why) in [
        (40, &[][..], true, WASM, None),
        (40, &[asks], true, NATIVE, None),
        (
            39,
            &[asks, (ARCHITECTURE_METADATA, "x86_64")],
            true,
            NATIVE,
            None,
        ),
        (
            40,
            &[asks],
            false,
            WASM,
            Some("this operator has no native module"),
        ),
        (
            38,
            &[asks],
            true,
            WASM,
            Some("it is Envoy 1.38, and the native filter needs 1.39"),
        ),
        (
            40,
            &[asks, (ARCHITECTURE_METADATA, "aarch64")],
            true,
            WASM,
            Some("native module is for x86_64, and the proxy runs on aarch64"),
        ),
        (
            40,
            &[asks, (MODULE_METADATA, own)],
            true,
            own,
            Some("no native one"),
        ),
        (
            40,
            &[
                asks,
                (MODULE_METADATA, own),
                (NATIVE_MODULE_METADATA, own_native),
            ],
            false,
            own_native,
            None,
        ),
    ] {
        let world = world(has_native.then(|| native(NATIVE))).await;
        let mut proxy = sotw(&world, envoy(minor, metadata)).await;
        let first = proxy.next().await;
        assert!(names(&first, path), "{minor} {metadata:?}: not {path}");
        assert_eq!(world.report().proxies[0].filter, "", "nothing runs yet");
        proxy.send(ack(&first)).await;
        let report = world
            .until("it runs", |r| r.proxies[0].state == "Running")
            .await;
        let proxy = &report.proxies[0];
        let kind = if path.ends_with(".so") {
            "native"
        } else {
            "wasm"
        };
        assert_eq!(proxy.filter, kind, "{minor} {metadata:?}");
        match (why, &proxy.fallback) {
            (None, None) => {}
            (Some(why), Some(fallback)) if fallback.contains(why) => {}
            other => panic!("{minor} {metadata:?}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn a_proxy_that_refuses_its_first_native_module_gets_wasm_until_there_is_another() {
    let world = world(Some(native(NATIVE))).await;
    let mut proxy = sotw(&world, envoy(40, &[(FILTER_METADATA, "native")])).await;
    let first = proxy.next().await;
    assert!(names(&first, NATIVE));
    proxy.send(nack(&first, "")).await;
    let second = proxy.next().await;
    assert!(names(&second, WASM));
    proxy.send(ack(&second)).await;
    let report = world
        .until("Wasm runs", |r| r.proxies[0].state == "Running")
        .await;
    assert_eq!(report.proxies[0].filter, "wasm");
    let why = report.proxies[0].fallback.clone().unwrap();
    assert_eq!(
        why,
        "Envoy refused it: Unable to create Wasm plugin headgate"
    );
    assert!(report.policies[0].conditions[&Programmed].status);

    // After an edit of the policy, the proxy still gets Wasm. With another native module, the proxy
    // gets the native filter again.
    world.plans.send_replace(Arc::new(plan(&[(SEARCH, "r2")])));
    let third = proxy.next().await;
    assert!(names(&third, WASM));
    proxy.send(ack(&third)).await;
    let next = "/modules/headgate-2.so";
    world
        .modules
        .send_replace(Arc::new(modules(Some(native(next)))));
    let fourth = proxy.next().await;
    assert!(names(&fourth, next));
    proxy.send(ack(&fourth)).await;
    world
        .until("the native filter runs", |r| {
            r.proxies[0].filter == "native" && r.proxies[0].fallback.is_none()
        })
        .await;

    // Once a native module has run, a refusal may be due to the configuration, so the proxy keeps
    // the native filter.
    world.plans.send_replace(Arc::new(plan(&[(SEARCH, "r3")])));
    let fifth = proxy.next().await;
    proxy.send(nack(&fifth, &fourth.version_info)).await;
    let report = world
        .until("rejected", |r| r.proxies[0].state == "Rejected")
        .await;
    assert_eq!(report.proxies[0].filter, "native");
}

/// A policy of an upgraded operator may have a field that older modules don't support.
#[tokio::test]
async fn a_refusal_by_a_module_of_another_version_says_so() {
    let own = (MODULE_METADATA, "/pod/headgate.wasm");
    let ours = env!("CARGO_PKG_VERSION");
    for (metadata, says) in [
        (
            &[own, (VERSION_METADATA, "0.0.9")][..],
            Some("of version 0.0.9"),
        ),
        (&[own], Some("of an unknown version")),
        (&[own, (VERSION_METADATA, ours)], None),
        (&[], None),
    ] {
        let world = world(None).await;
        let mut proxy = sotw(&world, envoy(40, metadata)).await;
        let first = proxy.next().await;
        proxy.send(nack(&first, "")).await;
        let report = world
            .until("rejected", |r| r.proxies[0].state == "Rejected")
            .await;
        let message = &report.policies[0].conditions[&Programmed].message;
        let skew = format!(
            "its own module is {}, and the operator is of {ours}",
            says.unwrap_or_default()
        );
        assert_eq!(message.contains(&skew), says.is_some(), "{message}");
        assert_eq!(
            message.contains("its own module"),
            says.is_some(),
            "{message}"
        );
    }
}

/// Returns a plan whose policy has a new field.
fn with_errors(revision: &str, slots: u32) -> Plan {
    let mut plan = plan(&[(SEARCH, revision)]);
    for config in plan.workloads.values_mut() {
        let stage = &mut Arc::make_mut(config).stages[0];
        stage.errors.http = vec![(500, 503)];
        stage.parallelism = slots;
    }
    plan
}

/// Returns the new field of [`with_errors`], and the slots.
fn has(response: &DiscoveryResponse) -> (Vec<(u16, u16)>, u32) {
    let stage = configuration(&response.resources[0]).stages.remove(0);
    (stage.errors.http, stage.parallelism)
}

/// A module of the previous version refuses a policy with a new field. Such a module gets the
/// policy without the field, so that its slots still change as Pods come and go.
#[tokio::test]
async fn an_older_module_follows_a_policy_without_its_new_field() {
    let world = world(None).await;
    let own = (MODULE_METADATA, "/pod/headgate.wasm");
    let mut proxy = sotw(&world, envoy(40, &[own, (VERSION_METADATA, "0.0.9")])).await;
    let first = proxy.next().await;
    proxy.send(ack(&first)).await;
    let state = || world.report().proxies[0].state.clone();
    world.plans.send_replace(Arc::new(with_errors("r2", 3)));
    let second = proxy.next().await;
    assert_eq!(has(&second), (vec![(500, 503)], 3));
    proxy.send(nack(&second, &first.version_info)).await;
    let third = proxy.next().await;
    assert_eq!(has(&third), (vec![(500, 599)], 3));
    assert_eq!(state(), "Rejected");
    proxy.send(ack(&third)).await;

    world.plans.send_replace(Arc::new(with_errors("r3", 2)));
    let fourth = proxy.next().await;
    assert_eq!(has(&fourth), (vec![(500, 599)], 2), "not tried again");
    assert_eq!(state(), "Rejected");
    proxy.send(ack(&fourth)).await;

    world.plans.send_replace(Arc::new(plan(&[(SEARCH, "r4")])));
    let fifth = proxy.next().await;
    assert_eq!(has(&fifth).1, 4);
    proxy.send(ack(&fifth)).await;
    let runs = |r: &Report| r.proxies[0].state == "Running";
    world.until("all of it runs", runs).await;
}

const OWN: &str = "/pod/headgate.wasm";
const OWN_NATIVE: &str = "/pod/headgate.so";

/// Returns the first request of an Envoy with modules of its own, of an earlier version, that
/// requests the native filter.
fn older_native() -> DiscoveryRequest {
    let metadata = [
        (FILTER_METADATA, "native"),
        (MODULE_METADATA, OWN),
        (NATIVE_MODULE_METADATA, OWN_NATIVE),
        (VERSION_METADATA, "0.0.9"),
    ];
    envoy(40, &metadata)
}

/// An older native module that refuses a new field in its first configuration can be loaded. On the
/// Wasm module, the proxy would lose what the native one has learned.
#[tokio::test]
async fn an_older_native_module_stays_and_gets_the_policy_without_its_new_field() {
    let world = World::start_with(with_errors("r1", 3), modules(None), Limits::default(), 0).await;
    let mut proxy = sotw(&world, older_native()).await;
    let first = proxy.next().await;
    assert_eq!(has(&first), (vec![(500, 503)], 3));
    proxy.send(nack(&first, "")).await;
    let second = proxy.next().await;
    assert!(names(&second, OWN_NATIVE));
    assert_eq!(has(&second), (vec![(500, 599)], 3));
    proxy.send(ack(&second)).await;
    let runs_native = |r: &Report| r.proxies[0].filter == "native";
    let report = world.until("the native filter runs", runs_native).await;
    assert_eq!(report.proxies[0].fallback, None);
    assert_eq!(report.proxies[0].state, "Rejected");

    // The operator doesn't know after a reconnect which fields the module refuses.
    drop(proxy);
    let has_left = |r: &Report| r.proxies[0].state == "Disconnected";
    world.until("it has left", has_left).await;
    let mut again = older_native();
    again.version_info = second.version_info.clone();
    let mut proxy = sotw(&world, again).await;
    let third = proxy.next().await;
    assert!(names(&third, OWN_NATIVE));
    assert_eq!(has(&third).0, [(500, 503)]);
    proxy.send(nack(&third, &second.version_info)).await;
    world.until("the native filter is known", runs_native).await;
    world.plans.send_replace(Arc::new(with_errors("r2", 2)));
    let fourth = proxy.next().await;
    assert!(names(&fourth, OWN_NATIVE));
    assert_eq!(has(&fourth), (vec![(500, 599)], 2));
    proxy.send(nack(&fourth, &second.version_info)).await;
    world.plans.send_replace(Arc::new(with_errors("r3", 1)));
    let fifth = proxy.next().await;
    assert!(names(&fifth, OWN_NATIVE), "it has run");
}

#[tokio::test]
async fn an_older_native_module_that_cannot_be_loaded_is_replaced_by_wasm_with_all_fields() {
    let world = World::start_with(with_errors("r1", 3), modules(None), Limits::default(), 0).await;
    let mut proxy = sotw(&world, older_native()).await;
    for errors in [(500, 503), (500, 599)] {
        let response = proxy.next().await;
        assert!(names(&response, OWN_NATIVE));
        assert_eq!(has(&response).0, [errors]);
        proxy.send(nack(&response, "")).await;
    }
    let third = proxy.next().await;
    assert!(names(&third, OWN));
    assert_eq!(has(&third).0, [(500, 503)]);
    proxy.send(nack(&third, "")).await;
    let fourth = proxy.next().await;
    assert!(names(&fourth, OWN));
    assert_eq!(has(&fourth).0, [(500, 599)]);
    proxy.send(ack(&fourth)).await;
    let report = world
        .until("Wasm runs", |r| r.proxies[0].filter == "wasm")
        .await;
    let fallback = report.proxies[0].fallback.clone().unwrap();
    assert!(fallback.contains("Envoy refused it"), "{fallback}");
}
