use std::convert::Infallible;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use http::{Request, Response};
use kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::*;

/// An API server that answers `status` for every token, but never for [`HUNG`].
struct Server {
    status: Mutex<Value>,
    asked: AtomicUsize,
    is_away: AtomicBool,
    is_hanging: Notify,
}

fn server(status: Value) -> (ProxyTokens, Arc<Server>) {
    let server = Arc::new(Server {
        status: Mutex::new(status),
        asked: AtomicUsize::new(0),
        is_away: AtomicBool::new(false),
        is_hanging: Notify::new(),
    });
    let state = Arc::clone(&server);
    let answer = move |request: Request<Body>| {
        let server = Arc::clone(&state);
        async move {
            server.asked.fetch_add(1, Ordering::Relaxed);
            let body = request.into_body().collect_bytes().await.unwrap();
            let mut review: Value = serde_json::from_slice(&body).unwrap();
            assert_eq!(review["spec"]["audiences"], json!([AUDIENCE]));
            if review["spec"]["token"] == HUNG {
                server.is_hanging.notify_one();
                return std::future::pending().await;
            }
            review["status"] = server.status.lock().unwrap().clone();
            let code = match server.is_away.load(Ordering::Relaxed) {
                true => 503,
                false => 201,
            };
            let body = Body::from(review.to_string().into_bytes());
            let answer = Response::builder().status(code).body(body).unwrap();
            Ok::<_, Infallible>(answer)
        }
    };
    let client = Client::new(tower::service_fn(answer), "default");
    (ProxyTokens::new(client), server)
}

fn of(username: &str, audiences: &Value) -> Value {
    json!({"authenticated": true, "user": {"username": username}, "audiences": audiences})
}

/// Returns a token that expires an hour from now.
fn token() -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let claims = json!({"exp": now.unwrap().as_secs() + 3_600}).to_string();
    format!("e30.{}.c2ln", BASE64_URL_SAFE_NO_PAD.encode(claims))
}

/// A token whose review gets no answer.
const HUNG: &str = "hung";
const WEB: &str = "system:serviceaccount:shop:web";

#[tokio::test]
async fn the_account_is_what_the_api_server_says() {
    for (status, expected) in [
        (of(WEB, &json!([AUDIENCE])), Ok(("shop", "web"))),
        (
            of(WEB, &json!(["https://kubernetes.default.svc"])),
            Err("is for the API server"),
        ),
        (of(WEB, &Value::Null), Err("is for the API server")),
        (
            of("jane", &json!([AUDIENCE])),
            Err("jane, which is no service account"),
        ),
        (
            of("system:serviceaccount:shop:", &json!([AUDIENCE])),
            Err("no service account"),
        ),
        (
            json!({"authenticated": false, "error": "token audiences [\"x\"]"}),
            Err("doesn't accept the token (token audiences [\"x\"])"),
        ),
        (json!({}), Err("doesn't accept the token;")),
    ] {
        let (tokens, _) = server(status.clone());
        match (tokens.account(&token()).await, expected) {
            (Ok(account), Ok((namespace, name))) => {
                assert_eq!((&*account.namespace, &*account.name), (namespace, name));
            }
            (Err(refusal), Err(says)) => {
                let why = refusal.to_string();
                assert!(
                    why.contains(says) && why.contains("audience \"headgate\""),
                    "{why}"
                );
            }
            (got, _) => panic!("{status}: {got:?}"),
        }
    }
}

#[tokio::test]
async fn a_token_is_reviewed_once_for_many_streams() {
    for status in [of(WEB, &json!([AUDIENCE])), json!({})] {
        let (tokens, server) = server(status);
        let token = token();
        // A sidecar opens its streams for requests and for calls at once.
        let (first, second) = tokio::join!(tokens.account(&token), tokens.account(&token));
        assert_eq!(first, second);
        for _ in 0..3 {
            assert_eq!(tokens.account(&token).await, first);
        }
        assert_eq!(server.asked.load(Ordering::Relaxed), 1);
    }
}

#[tokio::test]
async fn a_hung_review_delays_no_other_token() {
    let (tokens, server) = server(of(WEB, &json!([AUDIENCE])));
    let mut hung = JoinSet::new();
    for _ in 0..2 * MAX_REVIEWS {
        let tokens = tokens.clone();
        hung.spawn(async move { tokens.account(HUNG).await });
    }
    server.is_hanging.notified().await;
    for other in 0..256 {
        let account = tokens.account(&format!("other/{other}")).await;
        assert_eq!(account.unwrap().namespace, "shop", "{other}");
    }
    assert_eq!(server.asked.load(Ordering::Relaxed), 1 + 256);
    // A review that was begun by a stream which has ended leaves nothing behind.
    hung.shutdown().await;
    tokens.account("last").await.unwrap();
    assert_eq!(tokens.running.lock().unwrap().len(), 1);
}

/// A proxy that reconnects while the API server is away keeps its account.
#[tokio::test]
async fn an_older_review_counts_while_the_api_server_is_away() {
    let (tokens, server) = server(of(WEB, &json!([AUDIENCE])));
    let token = token();
    let account = tokens.account(&token).await.unwrap();
    let then = Instant::now().checked_sub(KEEP).unwrap();
    let expire = |life| {
        let known = (account.clone(), then);
        tokens.known.keep(key(&token), "shop", known, then, life);
    };
    server.is_away.store(true, Ordering::Relaxed);
    expire(KEEP * 2);
    assert_eq!(tokens.account(&token).await.as_ref(), Ok(&account));
    assert_eq!(server.asked.load(Ordering::Relaxed), 2, "asked first");
    expire(KEEP);
    let refusal = tokens.account(&token).await.unwrap_err();
    assert!(matches!(refusal, Refusal::Unavailable(_)), "{refusal}");

    // The API server decides again once it is back: the Pod may be gone.
    server.is_away.store(false, Ordering::Relaxed);
    *server.status.lock().unwrap() = json!({});
    expire(KEEP * 2);
    let refusal = tokens.account(&token).await.unwrap_err();
    assert!(matches!(refusal, Refusal::Invalid(_)), "{refusal}");
}

#[tokio::test]
async fn a_long_text_is_not_sent_to_the_api_server() {
    let (tokens, server) = server(of(WEB, &json!([AUDIENCE])));
    let refusal = tokens
        .account(&"x".repeat(MAX_BYTES + 1))
        .await
        .unwrap_err();
    assert!(matches!(refusal, Refusal::Invalid(_)), "{refusal}");
    assert_eq!(server.asked.load(Ordering::Relaxed), 0);
}
