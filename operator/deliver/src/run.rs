//! The reconcile loop. A round follows each new plan and each change to Headgate's own objects.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use kube::Client;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, sleep_until};
use tokio_util::task::AbortOnDropHandle;

use crate::cluster::PlannedCluster;
use crate::leftovers;
use crate::observed::{Observed, Source, follow};
use crate::reconcile::Reconciler;
use crate::report::Delivered;
use crate::settings::Settings;
use crate::watch::send_if_changed;
use headgate_xds::module::Modules;

/// The longest time that deliveries and statuses wait for the first lists of all kinds. After it,
/// only the objects that need the other lists wait.
const FIRST_ANSWERS: Duration = Duration::from_secs(10);
/// The capacity of the queue of changes. Watches wait while it is full.
const BACKLOG: usize = 64;
/// The pause between quick checks of the module's URL. Istio's agent requests it five times, over
/// at least two seconds, and then gives up.
const GLANCES: Duration = Duration::from_secs(1);

/// Delivers `views` and the Wasm filter of `modules` until `views` has no sender left. Only the
/// leader may run this, and must drop it when it loses the Lease. A write in flight at that moment
/// is harmless, because the next leader would make the same write.
///
/// `outage` is true if no operator may have served the module for a while. It becomes false once
/// all of Istio's plugins announce that the module is served again, so a later term announces what
/// an earlier one couldn't. `delivered` receives the outcomes when they change. It keeps the last
/// outcomes when the delivery ends.
pub async fn run(
    client: Client,
    settings: Settings,
    outage: Arc<AtomicBool>,
    mut views: watch::Receiver<Option<PlannedCluster>>,
    mut modules: watch::Receiver<Arc<Modules>>,
    delivered: watch::Sender<Arc<Delivered>>,
) {
    // The outcomes of an earlier term as the leader may be wrong by now.
    send_if_changed(&delivered, Arc::default());
    let sources = Source::needed(&settings);
    let (news, mut seen) = mpsc::channel(BACKLOG);
    let _watches = follow(&client, &sources, &settings, &news);
    let mut observed = Observed::new(&sources);
    let leftovers = leftovers::remove(client.clone(), settings.clone());
    let _leftovers = AbortOnDropHandle::new(tokio::spawn(leftovers));
    let retry = settings.retry;
    let mut reconciler = Reconciler::new(client, settings, outage);
    // This is an instant rather than a pause, because a pause would restart at each tick of
    // `looks`.
    let mut again: Option<Instant> = None;
    let mut looks = tokio::time::interval(retry);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut glances = tokio::time::interval(GLANCES.min(retry));
    glances.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut patience = pin!(tokio::time::sleep(FIRST_ANSWERS));
    let mut waits = true;
    views.mark_changed();
    loop {
        tokio::select! {
            changed = views.changed() => if changed.is_err() {
                return;
            },
            Ok(()) = modules.changed() => {}
            Some(event) = seen.recv() => observed.see(event),
            () = sleep_until(again.unwrap_or_else(Instant::now)), if again.is_some() => {}
            () = &mut patience, if waits => waits = false,
            _ = looks.tick(), if !waits || observed.complete() => {
                let sha256 = modules.borrow().wasm.sha256.clone();
                if !reconciler.look(&sha256, &observed).await {
                    continue;
                }
            }
            _ = glances.tick(), if !waits || observed.complete() => {
                let sha256 = modules.borrow().wasm.sha256.clone();
                if !reconciler.glance(&sha256, &observed).await {
                    continue;
                }
            }
        }
        // One round handles all queued events.
        while let Ok(event) = seen.try_recv() {
            observed.see(event);
        }
        if waits && !observed.complete() {
            continue;
        }
        let Some(view) = views.borrow_and_update().clone() else {
            continue;
        };
        let sha256 = modules.borrow_and_update().wasm.sha256.clone();
        let report;
        (report, again) = reconciler.round(&view, &sha256, &mut observed).await;
        send_if_changed(&delivered, Arc::new(report));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use http::Method;
    use serde_json::{Value, json};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;
    use crate::object::{MANAGED_BY, OPERATOR_ANNOTATION};
    use crate::report::ObjectState;
    use crate::tests::{Example, SHA256, settings};
    use headgate_fakes::api_server;
    use headgate_xds::module::Module;

    /// Returns an API server without objects that serves all kinds. It answers the first write with
    /// the status code `first`, if given.
    fn server(first: Option<u16>) -> Client {
        let is_first = AtomicBool::new(true);
        api_server(move |method, uri, mut object| {
            if uri.query().unwrap_or_default().contains("watch=true") {
                return None;
            }
            if *method != Method::PATCH {
                let list = json!({"metadata": {"resourceVersion": "1"}, "items": []});
                return Some((200, list));
            }
            if let Some(first) = first
                && is_first.swap(false, Ordering::Relaxed)
            {
                let message = "exceeded quota: configmaps";
                let status = json!({
                    "kind": "Status", "status": "Failure", "code": first, "message": message,
                });
                return Some((first, status));
            }
            object["metadata"]["uid"] = json!("u");
            object["metadata"]["managedFields"] = json!([{"time": "9999-12-31T00:00:00Z"}]);
            object["metadata"]["resourceVersion"] = json!("2");
            Some((200, object))
        })
    }

    /// No event follows the failed write, so only a timer can trigger the retry.
    #[tokio::test]
    async fn a_write_that_fails_or_is_refused_is_tried_again() {
        for code in [500, 400, 403, 413, 422] {
            let example = Example::default()
                .policy("a/p", "Service/a/search", ("a", "app=search"), &[])
                .mounting("a", "1", "headgate-service-search");
            let settings = Settings {
                istio: false,
                envoy_gateway: false,
                config_map_module: Some("/headgate.wasm".to_owned()),
                retry: Duration::from_millis(20),
                ..settings()
            };
            let (_run, delivered) = start(server(Some(code)), settings, example);
            let is_delivered = |now: &Arc<Delivered>| {
                let objects = now.policies.get("a/p");
                objects.is_some_and(|o| o.iter().all(|o| o.state == ObjectState::Delivered))
            };
            assert!(becomes(delivered, is_delivered).await, "{code}");
        }
    }

    /// Returns settings with modules at this listener, which are checked fully only once.
    fn with_modules_at(listener: &TcpListener) -> Settings {
        Settings {
            envoy_gateway: false,
            modules_url: format!("http://{}", listener.local_addr().unwrap()),
            retry: Duration::from_secs(3600),
            ..settings()
        }
    }

    /// Istio's agents give up long before the next full check of the module.
    #[tokio::test]
    async fn a_short_outage_of_the_module_is_noticed() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let settings = with_modules_at(&listener);
        let answers = Arc::new(AtomicBool::new(true));
        let serves = Arc::clone(&answers);
        let (asked, requests) = watch::channel(0);
        let _modules = AbortOnDropHandle::new(tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let _request = stream.read(&mut [0; 1024]).await.unwrap();
                let answer = match serves.load(Ordering::Relaxed) {
                    true => "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello",
                    false => "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n",
                };
                stream.write_all(answer.as_bytes()).await.unwrap();
                asked.send_modify(|requests| *requests += 1);
            }
        }));
        let example =
            Example::default().policy("a/p", "Service/a/search", ("a", "app=search"), &[]);
        let (_run, delivered) = start(server(None), settings, example);
        // The first eight requests precede the write of the plugin. The next request checks the
        // module that the plugin names.
        assert!(becomes(requests, |&requests: &u32| requests > 8).await);
        answers.store(false, Ordering::Relaxed);
        assert!(becomes(delivered, |now: &Arc<Delivered>| now.unserved.is_some()).await);
    }

    /// A starting API server, or a role without the right, denies the list of GatewayClasses.
    #[tokio::test]
    async fn objects_for_gateways_stay_while_gateway_classes_are_unknown() {
        let is_deleted = Arc::new(AtomicBool::new(false));
        let deleted = Arc::clone(&is_deleted);
        let client = api_server(move |method, uri, _| {
            let is = |kind: &str| uri.path().contains(kind);
            if uri.query().unwrap_or_default().contains("watch=true") {
                return None;
            }
            if *method == Method::DELETE {
                deleted.store(true, Ordering::Relaxed);
                return Some((200, json!({"kind": "Status", "status": "Success"})));
            }
            if is("gatewayclasses") {
                let status = json!({"kind": "Status", "status": "Failure", "code": 403});
                return Some((403, status));
            }
            let metadata = json!({
                "name": "edge", "namespace": "a", "uid": "u", "resourceVersion": "1",
            });
            let items = match is("envoyextensionpolicies") {
                true => json!([{"metadata": metadata, "spec": {}}]),
                false => json!([]),
            };
            let list = json!({"metadata": {"resourceVersion": "1"}, "items": items});
            Some((200, list))
        });
        let example = Example::default().gateway("a/edge", "eg");
        let example = example.at_gateway("a/p", "Gateway/a/edge", "a/edge", &[]);
        let (_run, delivered) = start(client, settings(), example);
        assert!(becomes(delivered, |now: &Arc<Delivered>| now.complete).await);
        assert!(!is_deleted.load(Ordering::Relaxed));
    }

    /// Returns an API server with these objects of one kind, and no others. It sends the name of
    /// each object that it deletes or overwrites.
    fn server_with(
        kind: &'static str,
        objects: Value,
    ) -> (Client, mpsc::UnboundedReceiver<String>) {
        let (changed, changes) = mpsc::unbounded_channel();
        let client = api_server(move |method, uri, mut object| {
            if uri.query().unwrap_or_default().contains("watch=true") {
                return None;
            }
            let last = uri.path().rsplit('/').next().unwrap_or_default();
            if *method != Method::GET {
                changed.send(last.to_owned()).unwrap();
            }
            let items = match last == kind {
                true => objects.clone(),
                false => json!([]),
            };
            let body = match *method {
                Method::GET => json!({"metadata": {"resourceVersion": "1"}, "items": items}),
                Method::DELETE => json!({"kind": "Status", "status": "Success"}),
                _ => {
                    object["metadata"]["uid"] = json!("u");
                    object["metadata"]["resourceVersion"] = json!("2");
                    object
                }
            };
            Some((200, body))
        });
        (client, changes)
    }

    /// Returns an object in namespace `a`. Operators before 0.2 wrote no `operator`.
    fn object(name: &str, operator: Option<&str>) -> Value {
        let mut metadata = json!({
            "name": name, "namespace": "a", "uid": name, "resourceVersion": "1",
            "labels": {MANAGED_BY.0: MANAGED_BY.1},
        });
        if let Some(operator) = operator {
            metadata["annotations"] = json!({OPERATOR_ANNOTATION: operator});
        }
        json!({"metadata": metadata, "spec": {}})
    }

    /// Two releases may watch namespaces by different labels. The objects of both are listed in all
    /// namespaces.
    #[tokio::test]
    async fn an_object_of_another_operator_is_not_deleted() {
        let all = json!([
            object("theirs", Some("b/headgate")),
            object("before-0.2", None)
        ]);
        let (client, mut changes) = server_with("wasmplugins", all);
        let (_run, delivered) = start(client, settings(), Example::default());
        assert!(becomes(delivered, |now: &Arc<Delivered>| now.complete).await);
        assert_eq!(changes.try_recv().as_deref(), Ok("before-0.2"));
        assert!(changes.try_recv().is_err());
    }

    /// Two releases may watch the same namespace by mistake.
    #[tokio::test]
    async fn an_object_of_another_operator_is_not_overwritten() {
        let theirs = object("headgate-service-search", Some("b/headgate"));
        let (client, mut changes) = server_with("configmaps", json!([theirs]));
        let example =
            Example::default().policy("a/p", "Service/a/search", ("a", "app=search"), &[]);
        let settings = Settings {
            istio: false,
            envoy_gateway: false,
            config_map_module: Some("/headgate.wasm".to_owned()),
            ..settings()
        };
        let (_run, delivered) = start(client, settings, example);
        let is_refused = |now: &Arc<Delivered>| {
            let mut states = now.policies.values().flatten().map(|object| &object.state);
            states.any(|s| matches!(s, ObjectState::Failed(why) if why.contains("b/headgate")))
        };
        assert!(becomes(delivered, is_refused).await);
        assert!(changes.try_recv().is_err());
    }

    /// A check of a URL that hangs takes long to fail.
    #[tokio::test]
    async fn a_module_that_is_not_served_is_checked_once_a_round() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let settings = with_modules_at(&listener);
        let (asked, requests) = watch::channel(0);
        let _modules = AbortOnDropHandle::new(tokio::spawn(async move {
            loop {
                let _refused = listener.accept().await.unwrap();
                asked.send_modify(|requests| *requests += 1);
            }
        }));
        let example = ["a", "b", "c"]
            .iter()
            .fold(Example::default(), |all, name| {
                let (target, label) = (format!("Service/a/{name}"), format!("app={name}"));
                all.policy(&format!("a/{name}"), &target, ("a", &label), &[])
            });
        let (_run, delivered) = start(server(None), settings, example);
        let are_pending = |now: &Arc<Delivered>| {
            let states = now.policies.values().flatten().map(|object| &object.state);
            states
                .filter(|s| matches!(s, ObjectState::Pending(_)))
                .count()
                == 3
        };
        assert!(becomes(delivered, are_pending).await);
        assert_eq!(*requests.borrow(), 1);
    }

    /// Otherwise statuses would report what was right long ago.
    #[tokio::test]
    async fn a_later_term_begins_without_outcomes() {
        let client = api_server(|_, _, _| None);
        let (_views, view) = watch::channel(None);
        let (_modules, modules) = watch::channel(Arc::new(Module::default().into()));
        let former = Delivered {
            complete: true,
            ..Delivered::default()
        };
        let (send, delivered) = watch::channel(Arc::new(former));
        let run = run(client, settings(), Arc::default(), view, modules, send);
        let _run = AbortOnDropHandle::new(tokio::spawn(run));
        assert!(becomes(delivered, |now: &Arc<Delivered>| !now.complete).await);
    }

    fn start(
        client: Client,
        settings: Settings,
        example: Example,
    ) -> (AbortOnDropHandle<()>, watch::Receiver<Arc<Delivered>>) {
        let (views, view) = watch::channel(Some(PlannedCluster {
            cluster: Arc::new(example.cluster),
            plan: Arc::new(example.plan),
        }));
        let wasm = Module {
            sha256: SHA256.to_owned(),
            ..Module::default()
        };
        let (_, modules) = watch::channel(Arc::new(wasm.into()));
        let (send, delivered) = watch::channel(Arc::default());
        let run = async move {
            let _views = views;
            run(client, settings, Arc::default(), view, modules, send).await;
        };
        (AbortOnDropHandle::new(tokio::spawn(run)), delivered)
    }

    async fn becomes<T>(mut values: watch::Receiver<T>, so: impl FnMut(&T) -> bool) -> bool {
        let wait = values.wait_for(so);
        let waited = tokio::time::timeout(Duration::from_secs(60), wait).await;
        waited.is_ok_and(|value| value.is_ok())
    }
}
