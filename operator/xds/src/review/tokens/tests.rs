use std::net::Ipv4Addr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::*;
use headgate_fakes::api_server;

/// An API server that answers `status` for every token. It doesn't answer for a token from
/// [`hung`].
struct Server {
    status: Mutex<Value>,
    asked: AtomicUsize,
    is_away: AtomicBool,
    hanging: watch::Sender<usize>,
}

fn server(status: Value) -> (ProxyTokens, Arc<Server>) {
    let server = Arc::new(Server {
        status: Mutex::new(status),
        asked: AtomicUsize::new(0),
        is_away: AtomicBool::new(false),
        hanging: watch::Sender::new(0),
    });
    let state = Arc::clone(&server);
    let client = api_server(move |_, _, mut review| {
        state.asked.fetch_add(1, Ordering::Relaxed);
        assert_eq!(review["spec"]["audiences"], json!([AUDIENCE]));
        if review["spec"]["token"].as_str().unwrap().ends_with(HUNG) {
            state.hanging.send_modify(|hanging| *hanging += 1);
            return None;
        }
        review["status"] = state.status.lock().unwrap().clone();
        let is_away = state.is_away.load(Ordering::Relaxed);
        Some((if is_away { 503 } else { 201 }, review))
    });
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

/// The signature of tokens whose review gets no answer.
const HUNG: &str = "hung";
const CLIENT: IpAddr = address(0);

const fn address(number: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, number))
}

/// Returns a token that claims to be of `namespace` and whose review gets no answer.
fn hung(namespace: &str, number: u8) -> String {
    let claims = json!({"kubernetes.io": {"namespace": namespace}, "number": number}).to_string();
    format!("e30.{}.{HUNG}", BASE64_URL_SAFE_NO_PAD.encode(claims))
}
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
        match (tokens.account(&token(), CLIENT).await, expected) {
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
        let (first, second) = tokio::join!(
            tokens.account(&token, CLIENT),
            tokens.account(&token, CLIENT)
        );
        assert_eq!(first, second);
        for _ in 0..3 {
            assert_eq!(tokens.account(&token, CLIENT).await, first);
        }
        assert_eq!(server.asked.load(Ordering::Relaxed), 1);
    }
}

#[tokio::test]
async fn a_hung_review_delays_no_other_token() {
    let (tokens, server) = server(of(WEB, &json!([AUDIENCE])));
    let mut streams = JoinSet::new();
    let mut hang = |namespace: &str, number: u8, client: IpAddr| {
        let (tokens, token) = (tokens.clone(), hung(namespace, number));
        streams.spawn(async move { tokens.account(&token, client).await });
    };
    // There are many streams with one token, many proxies of one namespace, and a client that lies
    // about its namespace.
    for number in 0..=u8::MAX {
        hang("one", 0, address(number));
        hang("many", number, address(number));
        hang(&number.to_string(), number, address(1));
    }
    let mut hanging = server.hanging.subscribe();
    // One review hangs for the shared token, eight for namespace `many`, and two for address 1. One
    // of the eight may be for address 1.
    let _ = hanging.wait_for(|hanging| *hanging >= 10).await;
    for other in 0..=u8::MAX {
        let account = tokens.account(&format!("other/{other}"), address(2)).await;
        assert_eq!(account.unwrap().namespace, "shop", "{other}");
    }
    assert!(*hanging.borrow() <= 1 + 8 + 2, "{}", *hanging.borrow());
    // Reviews of streams that have ended leave no entries behind.
    streams.shutdown().await;
    for last in 0..=u8::MAX {
        tokens
            .account(&format!("last/{last}"), CLIENT)
            .await
            .unwrap();
    }
    assert!(tokens.running.len() <= 2, "{}", tokens.running.len());
}

/// A proxy that reconnects while the API server is away keeps its account.
#[tokio::test]
async fn an_older_review_counts_while_the_api_server_is_away() {
    let (tokens, server) = server(of(WEB, &json!([AUDIENCE])));
    let token = token();
    let account = tokens.account(&token, CLIENT).await.unwrap();
    let then = Instant::now().checked_sub(KEEP).unwrap();
    let expire = |life| {
        let known = (account.clone(), then);
        tokens.known.keep(key(&token), "shop", known, then, life);
    };
    server.is_away.store(true, Ordering::Relaxed);
    expire(KEEP * 2);
    assert_eq!(tokens.account(&token, CLIENT).await.as_ref(), Ok(&account));
    assert_eq!(server.asked.load(Ordering::Relaxed), 2, "asked first");
    expire(KEEP);
    let refusal = tokens.account(&token, CLIENT).await.unwrap_err();
    assert!(matches!(refusal, Refusal::Unavailable(_)), "{refusal}");

    // The API server decides again once it is back, because the Pod may be gone.
    server.is_away.store(false, Ordering::Relaxed);
    *server.status.lock().unwrap() = json!({});
    expire(KEEP * 2);
    let refusal = tokens.account(&token, CLIENT).await.unwrap_err();
    assert!(matches!(refusal, Refusal::Invalid(_)), "{refusal}");
}

#[tokio::test]
async fn a_long_text_is_not_sent_to_the_api_server() {
    let (tokens, server) = server(of(WEB, &json!([AUDIENCE])));
    let refusal = tokens
        .account(&"x".repeat(MAX_BYTES + 1), CLIENT)
        .await
        .unwrap_err();
    assert!(matches!(refusal, Refusal::Invalid(_)), "{refusal}");
    assert_eq!(server.asked.load(Ordering::Relaxed), 0);
}
