//! A check that a URL serves the right module, before objects refer proxies to it.
//!
//! During a rollout of a new version of this operator, its Service also routes to Pods without the
//! new module. A control plane that requests the URL too early caches the failure for a while, and
//! its proxies have no filter.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use http::{Request, StatusCode, Uri, header};
use http_body_util::Empty;
use tokio::net::TcpStream;

use crate::http_client::exchange;
use crate::object::ModuleRef;
use headgate_xds::digest::sha256;

/// The timeout of the whole exchange.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The number of connections for one check of a URL. A Service may route each connection to any of
/// its Pods, and some Pods may lack the module. If one of two Pods lacks it, one check in 256
/// doesn't notice.
const CONNECTIONS: usize = 8;
/// The size of the largest module, in bytes.
const MAX_BYTES: usize = 64 << 20;

/// Checks that the module's URL serves content with its SHA-256 on each of several connections.
///
/// # Errors
/// Returns one line with the URL and the problem.
pub(crate) async fn check_all(module: &ModuleRef) -> Result<(), String> {
    for _ in 0..CONNECTIONS {
        check(module, false).await?;
    }
    Ok(())
}

/// Checks that the module's URL serves content with its SHA-256. If `is_known`, the server may
/// answer that the module is unchanged instead of sending it.
///
/// # Errors
/// Returns one line with the URL and the problem.
pub(crate) async fn check(module: &ModuleRef, is_known: bool) -> Result<(), String> {
    let digest = match tokio::time::timeout(TIMEOUT, digest(module, is_known)).await {
        Ok(digest) => digest.map_err(|why| format!("{}: {why:#}", module.url))?,
        Err(_) => {
            return Err(format!(
                "{}: no answer within {} s",
                module.url,
                TIMEOUT.as_secs()
            ));
        }
    };
    match digest == module.sha256 {
        true => Ok(()),
        false => Err(format!(
            "{}: serves another file, with SHA-256 {digest}",
            module.url
        )),
    }
}

async fn digest(module: &ModuleRef, is_known: bool) -> anyhow::Result<String> {
    let uri: Uri = module.url.parse()?;
    let authority = uri.authority().context("no host")?;
    // URLs have brackets around an IPv6 address, and `connect` accepts none.
    let host = authority.host().trim_matches(['[', ']']);
    let address = (host, authority.port_u16().unwrap_or(80));
    let stream = TcpStream::connect(address).await?;
    let mut request = Request::get(uri.path()).header(header::HOST, authority.as_str());
    if is_known {
        request = request.header(header::IF_NONE_MATCH, format!("\"{}\"", module.sha256));
    }
    let response = exchange(stream, request.body(Empty::new())?, MAX_BYTES).await?;
    let status = response.status();
    if is_known && status == StatusCode::NOT_MODIFIED {
        return Ok(module.sha256.clone());
    }
    ensure!(status == StatusCode::OK, "answers {status}");
    Ok(sha256(response.body()))
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    async fn checked(answer: &'static str, sha256: &str) -> Result<(), String> {
        checked_at("127.0.0.1:0", answer, sha256).await
    }

    async fn checked_at(at: &str, answer: &'static str, sha256: &str) -> Result<(), String> {
        let listener = TcpListener::bind(at).await.unwrap();
        let url = format!("http://{}/m.wasm", listener.local_addr().unwrap());
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 1024];
            let n = stream.read(&mut request).await.unwrap();
            assert!(request[..n].starts_with(b"GET /m.wasm HTTP/1.1\r\n"));
            stream.write_all(answer.as_bytes()).await.unwrap();
        });
        let module = ModuleRef {
            url: url.clone(),
            sha256: sha256.to_owned(),
        };
        let checked = check(&module, false).await;
        server.await.unwrap();
        checked.map_err(|e| e.replace(&url, "URL"))
    }

    #[tokio::test]
    async fn only_the_module_itself_will_do() {
        let abc = "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc";
        assert_eq!(checked(abc, ABC).await, Ok(()));
        let other = checked(abc, "00").await.unwrap_err();
        assert_eq!(
            other,
            format!("URL: serves another file, with SHA-256 {ABC}")
        );
        let missing = checked("HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n", ABC).await;
        assert_eq!(missing, Err("URL: answers 404 Not Found".into()));
        let short = checked("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc", ABC).await;
        assert!(short.is_err());
        let nobody = ModuleRef {
            url: "http://127.0.0.1:1/m.wasm".into(),
            sha256: ABC.into(),
        };
        assert!(check(&nobody, false).await.unwrap_err().contains("refused"));
    }

    /// One of two replicas has the module already.
    #[tokio::test]
    async fn a_replica_without_the_module_is_noticed() {
        let abc = "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc";
        let missing = "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n";
        for (others, is_served) in [(abc, true), (missing, false)] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let url = format!("http://{}/m.wasm", listener.local_addr().unwrap());
            let server = tokio::spawn(async move {
                for answer in [abc, others].into_iter().cycle() {
                    let (mut stream, _) = listener.accept().await.unwrap();
                    let _request = stream.read(&mut [0; 1024]).await.unwrap();
                    stream.write_all(answer.as_bytes()).await.unwrap();
                }
            });
            let sha256 = ABC.to_owned();
            let checked = check_all(&ModuleRef { url, sha256 }).await;
            assert_eq!(checked.is_ok(), is_served, "{checked:?}");
            server.abort();
        }
    }

    #[tokio::test]
    async fn a_server_need_not_send_an_unchanged_module_again() {
        for (sha256, is_served) in [(ABC, true), (&"0".repeat(64), false)] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let url = format!("http://{}/m.wasm", listener.local_addr().unwrap());
            let server = tokio::spawn(async move {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = [0; 1024];
                let n = stream.read(&mut request).await.unwrap();
                let request = String::from_utf8_lossy(&request[..n]).to_lowercase();
                let answer = match request.contains(&format!("if-none-match: \"{ABC}\"\r\n")) {
                    true => "HTTP/1.1 304 Not Modified\r\n\r\n",
                    false => "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc",
                };
                stream.write_all(answer.as_bytes()).await.unwrap();
            });
            let sha256 = sha256.to_owned();
            let seen = check(&ModuleRef { url, sha256 }, true).await;
            assert_eq!(seen.is_ok(), is_served, "{seen:?}");
            server.await.unwrap();
        }
    }

    #[tokio::test]
    async fn an_ipv6_address_is_reached() {
        let abc = "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc";
        assert_eq!(checked_at("[::1]:0", abc, ABC).await, Ok(()));
    }
}
