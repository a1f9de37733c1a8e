use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::*;
use crate::inject::tests::settings;
use crate::inject::{INJECT_ANNOTATION, names, uninject};

fn pod(spec: &str) -> Value {
    let yaml = format!(
        "
apiVersion: v1
kind: Pod
metadata: {{generateName: search-, namespace: shop, uid: '7'}}
spec: {{{spec}, containers: [{{name: c, image: c, ports: [{{name: http, containerPort: 8080}}]}}]}}
"
    );
    serde_saphyr::from_str(&yaml).unwrap()
}

fn respond(pod: &Value) -> Value {
    let review = json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {"uid": "u", "namespace": "shop", "object": pod},
    });
    let answer = answer(review, &settings()).unwrap();
    assert_eq!(answer["apiVersion"], "admission.k8s.io/v1");
    assert_eq!(answer["kind"], "AdmissionReview");
    let response = answer["response"].clone();
    assert_eq!(
        (&response["uid"], &response["allowed"]),
        (&json!("u"), &json!(true))
    );
    response
}

/// Applies the patch of a response. Only the operation `add` of an object's field is implemented.
fn patched(pod: &Value, response: &Value) -> Value {
    assert_eq!(response["patchType"], "JSONPatch");
    let patch = BASE64_STANDARD
        .decode(response["patch"].as_str().unwrap())
        .unwrap();
    let patch: Vec<Value> = serde_json::from_slice(&patch).unwrap();
    let mut pod = pod.clone();
    for operation in patch {
        assert_eq!(operation["op"], "add");
        let (parent, key) = operation["path"]
            .as_str()
            .unwrap()
            .rsplit_once('/')
            .unwrap();
        pod.pointer_mut(parent).unwrap()[key] = operation["value"].clone();
    }
    pod
}

fn not_injected(pod: &Value) -> String {
    let response = respond(pod);
    assert_eq!(response["patch"], Value::Null);
    response["warnings"][0].as_str().unwrap().to_owned()
}

#[test]
fn a_pod_gets_what_headgate_inject_adds() {
    let pod = pod("nodeName: n");
    let response = respond(&pod);
    assert_eq!(response["warnings"], Value::Null);
    let injected = patched(&pod, &response);
    let mut expected = pod.clone();
    inject(&mut expected, &settings()).unwrap();
    assert_eq!(injected, expected);
    assert_eq!(
        names(&injected["spec"]["initContainers"]),
        ["headgate", "envoy"]
    );
    // The injection changed nothing else.
    let mut restored = injected;
    assert!(uninject(&mut restored).unwrap());
    assert_eq!(restored, pod);
}

#[test]
fn a_pod_whose_port_no_service_can_name_gets_a_warning_with_its_envoy() {
    let mut pod = pod("nodeName: n");
    pod["spec"]["containers"][0]["ports"][0]
        .as_object_mut()
        .unwrap()
        .remove("name");
    let response = respond(&pod);
    let injected = patched(&pod, &response);
    assert_eq!(
        names(&injected["spec"]["initContainers"]),
        ["headgate", "envoy"]
    );
    let warning = response["warnings"][0].as_str().unwrap();
    let expected = "headgate: Pod shop/search-: port 8080 has no name, so Services reach Envoy \
                    only as targetPort headgate-http; name the port";
    assert_eq!(warning, expected);
}

#[test]
fn a_pod_with_a_host_port_gets_a_warning_with_its_envoy() {
    let mut pod = pod("nodeName: n");
    pod["spec"]["containers"][0]["ports"][0]["hostPort"] = json!(80);
    let response = respond(&pod);
    assert_eq!(response["patchType"], "JSONPatch");
    let warning = response["warnings"][0].as_str().unwrap();
    let expected = "headgate: Pod shop/search-: clients that connect to hostPort 80 of its nodes \
                    bypass Envoy; remove the hostPort";
    assert_eq!(warning, expected);
}

#[test]
fn a_pod_that_cannot_be_injected_is_admitted_unchanged_with_the_reason() {
    for (spec, why) in [
        ("hostNetwork: true", "with hostNetwork"),
        ("os: {name: windows}", "Envoy's image is for Linux"),
        (
            "nodeSelector: {kubernetes.io/os: windows}",
            "Envoy's image is for Linux",
        ),
        (
            "initContainers: [{name: i, ports: [{containerPort: 10000}]}]",
            "container i has port 10000, which Envoy needs",
        ),
    ] {
        let warning = not_injected(&pod(spec));
        assert!(
            warning.starts_with("headgate: Pod shop/search-: "),
            "{warning}"
        );
        assert!(warning.contains(why), "{warning}");
        // The API server may truncate longer warnings.
        assert!(warning.len() <= 256, "{warning}");
    }
    for (annotation, value, why) in [
        (
            INJECT_ANNOTATION,
            "disabled",
            "its annotation headgate.dev/inject disables it",
        ),
        (MIRROR_ANNOTATION, "hash", "the kubelet runs it from a file"),
        (INJECTED_ANNOTATION, "{}", "already injected"),
        ("headgate.dev/app-port", "no", "\"no\" is no port"),
    ] {
        let mut pod = pod("nodeName: n");
        pod["metadata"]["annotations"] = json!({annotation: value});
        let warning = not_injected(&pod);
        assert!(warning.contains(why), "{warning}");
    }
    let mut without_ports = pod("nodeName: n");
    without_ports["spec"]["containers"][0]["ports"] = json!([]);
    let warning = not_injected(&without_ports);
    assert!(warning.contains("its containers have no port"), "{warning}");
    assert!(warning.len() <= 256, "{warning}");
    let mut taken = pod("nodeName: n");
    taken["spec"]["containers"][0]["ports"][0]["name"] = json!("envoy-stats");
    let warning = not_injected(&taken);
    assert!(warning.contains("give it another name"), "{warning}");
    for odd in [
        json!(null),
        json!({}),
        json!({"kind": "Pod", "metadata": 7}),
    ] {
        not_injected(&odd);
    }
}

#[test]
fn containers_of_the_names_stay_beside_those_that_are_added() {
    let pod = pod("initContainers: [{name: envoy, image: e}, {name: headgate, image: h}]");
    let injected = patched(&pod, &respond(&pod));
    assert_eq!(
        names(&injected["spec"]["initContainers"]),
        ["headgate-2", "envoy-2", "envoy", "headgate"]
    );
}

/// The API server refuses a Pod whose containers ask for more than the whole Pod does.
#[test]
fn envoy_shares_the_resources_of_a_pod_that_has_some_for_all_of_its_containers() {
    let pod = pod("resources: {requests: {memory: 64Mi}}");
    let injected = patched(&pod, &respond(&pod));
    for container in injected["spec"]["initContainers"].as_array().unwrap() {
        assert_eq!(container["resources"], Value::Null, "{container}");
    }
}

#[test]
fn an_invalid_review_gets_an_error() {
    for review in [json!(null), json!([]), json!({"request": {"uid": ""}})] {
        let problem = answer(review, &settings()).unwrap_err();
        assert_eq!(problem, "request.uid: missing; an AdmissionReview has it");
    }
}

async fn reviewed(mut app: Router, review: String) -> Response {
    let request = http::Request::post(PATH).body(review).unwrap();
    tower::Service::call(&mut app, request).await.unwrap()
}

#[tokio::test]
async fn a_review_waits_for_its_turn_and_is_bounded_in_size() {
    let turn = Arc::new(Mutex::new(settings()));
    let app = app(Arc::clone(&turn));
    let review = json!({"request": {"uid": "u", "object": pod("nodeName: n")}}).to_string();
    let other = turn.lock().await;
    let mut waiting = std::pin::pin!(reviewed(app.clone(), review));
    let early = tokio::time::timeout(Duration::from_millis(50), &mut waiting).await;
    assert!(early.is_err(), "beside another one");
    drop(other);
    assert_eq!(waiting.await.status(), StatusCode::OK);
    for (bytes, expected) in [
        (MAX_BYTES, StatusCode::BAD_REQUEST),
        (MAX_BYTES + 1, StatusCode::PAYLOAD_TOO_LARGE),
    ] {
        let answer = reviewed(app.clone(), " ".repeat(bytes)).await;
        assert_eq!(answer.status(), expected, "{bytes}");
    }
}

/// All reviews of an API server come from one address. A review that the webhook closes is a Pod
/// without Envoy.
#[tokio::test]
async fn reviews_wait_while_others_of_the_same_address_are_open() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address: SocketAddr = listener.local_addr().unwrap();
    let (_shutdown, stop) = watch::channel(false);
    let app = app(Arc::new(Mutex::new(settings())));
    tokio::spawn(serve(listener, "test", LIMITS, None, app, || {}, stop));
    let review = json!({"request": {"uid": "u", "object": pod("nodeName: n")}}).to_string();
    let request = format!(
        "POST {PATH} HTTP/1.1\r\nhost: h\r\ncontent-length: {}\r\n\r\n{review}",
        review.len()
    );
    let (most, last) = request.split_at(request.len() - 1);
    let mut open = Vec::new();
    for _ in 0..2 * LIMITS.connections {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(most.as_bytes()).await.unwrap();
        open.push(stream);
    }
    for (at, mut stream) in open.into_iter().enumerate() {
        stream.write_all(last.as_bytes()).await.unwrap();
        let mut answer = String::new();
        let read = stream.read_to_string(&mut answer).await;
        let is_patched = answer.starts_with("HTTP/1.1 200") && answer.contains("JSONPatch");
        assert!(read.is_ok() && is_patched, "review {at}: {read:?} {answer}");
    }
}
