use std::convert::Infallible;
use std::time::{Duration, SystemTime};

use headgate_core::config::Mode;
use http::{Request, Response, StatusCode, Uri};
use k8s_openapi::api::authentication::v1::TokenReview;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchParams};
use kube::client::Body;
use kube::{Api, Client};
use serde_json::json;
use tower::Layer as _;

use super::*;
use crate::conditions::{Condition, Type};
use crate::kubernetes::requests::count_requests;
use crate::report::{ModuleReport, PolicyReport};
use headgate_deliver::readable::{Readable, list};

fn report() -> Report {
    Report {
        time: String::new(),
        version: "1.2.3".into(),
        module: ModuleReport {
            path: String::new(),
            hash: "abc".into(),
            bytes: 0,
        },
        native: None,
        policies: Vec::new(),
        proxies: Vec::new(),
        problems: Vec::new(),
    }
}

/// Returns a policy with these conditions and their statuses.
fn policy(conditions: &[(Type, bool)]) -> PolicyReport {
    let condition = |&(of, status): &(Type, bool)| (of, Condition::new(status, "R", "m"));
    PolicyReport {
        name: "a/p".into(),
        source: String::new(),
        generation: 1,
        mode: Mode::Enforce,
        endpoint_slots: None,
        targets: Vec::new(),
        revision: String::new(),
        conditions: conditions.iter().map(condition).collect(),
    }
}

/// No alert counts an overridden policy, because its author may have intended it.
#[test]
fn metrics_count_an_overridden_policy_separately() {
    let overridden = [
        (Type::Accepted, true),
        (Type::Programmed, false),
        (Type::Overridden, true),
    ];
    let report = Report {
        policies: vec![
            policy(&overridden),
            policy(&[(Type::Accepted, true), (Type::Programmed, true)]),
            policy(&[(Type::Accepted, true), (Type::Programmed, false)]),
            policy(&[(Type::Accepted, false), (Type::Programmed, false)]),
        ],
        ..report()
    };
    let text = Metrics::new().render(&report);
    for (name, [yes, no]) in [
        ("accepted", [3, 1]),
        ("programmed", [1, 2]),
        ("overridden", [1, 3]),
    ] {
        for (status, n) in [(true, yes), (false, no)] {
            let line = format!("headgate_policies_{name}{{status=\"{status}\"}} {n}");
            assert!(has(&text, &line), "{line}\n{text}");
        }
    }
}

/// The label equals that of the proxies' metrics, so that a rule can divide their metrics by this
/// metric.
#[test]
fn policies_that_give_the_slots_of_an_endpoint_have_them_as_a_metric() {
    let given = PolicyReport {
        name: "a/p.v2".into(),
        endpoint_slots: Some(8),
        ..policy(&[(Type::Accepted, true)])
    };
    let other = PolicyReport {
        name: "a/auto".into(),
        endpoint_slots: None,
        ..given.clone()
    };
    let report = Report {
        policies: vec![given, other],
        ..report()
    };
    let text = Metrics::new().render(&report);
    let name = "headgate_endpoint_slots{";
    let lines: Vec<&str> = text.lines().filter(|l| l.starts_with(name)).collect();
    assert_eq!(
        lines,
        ["headgate_endpoint_slots{headgate_policy=\"a/p_v2\"} 8"]
    );
}

fn has(text: &str, line: &str) -> bool {
    text.lines().any(|l| l == line)
}

#[test]
fn families_are_named_as_openmetrics_wants() {
    let metrics = Metrics::new();
    metrics.xds.pushes.inc();
    metrics.plan.made(Duration::from_millis(3), true);
    let open = metrics.render(&report());
    for line in [
        "# TYPE headgate_xds_pushes counter",
        "headgate_xds_pushes_total 1",
        "# TYPE headgate_build info",
        "headgate_build_info{version=\"1.2.3\",module=\"abc\"} 1",
        "# UNIT headgate_plan_duration_seconds seconds",
        "headgate_plan_duration_seconds_bucket{le=\"0.005\"} 1",
    ] {
        assert!(has(&open, line), "{line}\n{open}");
    }
    assert!(open.ends_with("\n# EOF\n"), "{open}");
}

#[test]
fn every_family_has_help_and_type_before_its_samples() {
    let text = Metrics::new().render(&report());
    let mut family = "";
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            family = rest.split(' ').next().unwrap();
            assert!(text.contains(&format!("# HELP {family} ")), "{family}");
        } else if !line.starts_with('#') {
            assert!(line.starts_with(family) && !family.is_empty(), "{line}");
        }
    }
}

#[tokio::test]
async fn requests_to_the_api_server_have_the_labels_of_audit_logs() {
    let metrics = Metrics::new();
    let answers = tower::service_fn(|_: Request<Body>| async {
        Ok::<_, Infallible>(Response::new(Body::from(b"{}".to_vec())))
    });
    let client = Client::new(count_requests(metrics.clone()).layer(answers), "a");
    let pods = Api::<Readable<Pod>>::namespaced(client.clone(), "a");
    let params = PatchParams::default();
    let patch = Patch::Merge(json!({}));
    let _ = list(&pods, &ListParams::default()).await;
    let _ = pods.watch(&WatchParams::default(), "0").await.map(drop);
    let _ = pods.patch("p", &params, &patch).await;
    let _ = pods.patch_status("p", &params, &patch).await;
    let _ = pods.delete("p", &DeleteParams::default()).await;
    let nodes = Api::<Node>::all(client.clone());
    let _ = nodes.get_metadata("n").await;
    let reviews = Api::<TokenReview>::all(client);
    let create = PostParams::default();
    let _ = reviews.create(&create, &TokenReview::default()).await;
    let text = metrics.render(&report());
    for (labels, requests) in [
        ("verb=\"list\",resource=\"pods\"", 1),
        ("verb=\"watch\",resource=\"pods\"", 1),
        ("verb=\"patch\",resource=\"pods\"", 2),
        ("verb=\"delete\",resource=\"pods\"", 1),
        ("verb=\"get\",resource=\"nodes\"", 1),
        ("verb=\"create\",resource=\"tokenreviews\"", 1),
    ] {
        let line =
            format!("headgate_kubernetes_requests_total{{{labels},code=\"200\"}} {requests}");
        assert!(has(&text, &line), "{line}\n{text}");
    }
}

#[test]
fn a_request_to_the_api_server_is_counted_with_its_resource() {
    let metrics = Metrics::new();
    let ok = Some(StatusCode::OK);
    for (uri, resource) in [
        ("/api/v1/pods?&watch=true&allowWatchBookmarks=true", "pods"),
        ("/api/v1/namespaces/a", "namespaces"),
        (
            "https://10.0.0.1:443/apis/events.k8s.io/v1/namespaces/a/events",
            "events",
        ),
        ("/apis/gateway.networking.k8s.io/v1", "none"),
        ("/version", "none"),
    ] {
        let uri: Uri = uri.parse().unwrap();
        metrics.kubernetes.requested("get", &uri, ok);
        let text = metrics.render(&report());
        let series = format!(
            "headgate_kubernetes_requests_total{{verb=\"get\",resource=\"{resource}\",code=\"200\"}} "
        );
        assert!(text.contains(&series), "{uri}: {series}\n{text}");
    }
    let version = "/version".parse().unwrap();
    metrics.kubernetes.requested("get", &version, None);
    let text = metrics.render(&report());
    let line =
        "headgate_kubernetes_requests_total{verb=\"get\",resource=\"none\",code=\"error\"} 1";
    assert!(has(&text, line), "{text}");
}

#[test]
fn a_missing_certificate_has_no_expiry() {
    const NAME: &str = "headgate_xds_certificate_";
    let metrics = Metrics::new();
    let series = || {
        let text = metrics.render(&report());
        let lines = text.lines().filter_map(|line| line.strip_prefix(NAME));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(series(), [""; 0]);
    let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
    let validity = (at(1_899_996_400), at(1_900_000_000));
    metrics.xds.set_certificate_validity(validity);
    let expected = [
        "expiry_timestamp_seconds{} 1900000000",
        "lifetime_seconds{} 3600",
    ];
    assert_eq!(series(), expected);
}

#[test]
fn clones_count_into_the_same_numbers() {
    let metrics = Metrics::new();
    let clone = metrics.clone();
    clone.xds.nacks.inc();
    clone
        .kubernetes
        .wrote("admissionpolicies", WriteResult::Applied);
    clone.kubernetes.watch_restarts("pods").inc();
    clone.modules.served(ServeResult::NotFound);
    clone.plan.set_leader(true);
    let text = metrics.render(&report());
    for line in [
        "headgate_xds_nacks_total 1",
        "headgate_kubernetes_writes_total{resource=\"admissionpolicies\",result=\"applied\"} 1",
        "headgate_kubernetes_watch_restarts_total{resource=\"pods\"} 1",
        "headgate_modules_served_total{result=\"not_found\"} 1",
        "headgate_modules_served_total{result=\"ok\"} 0",
        "headgate_leader 1",
    ] {
        assert!(has(&text, line), "{line}\n{text}");
    }
}
