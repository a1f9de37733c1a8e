//! A client of one Envoy: a kept connection, and bounds on the time and the size of a response.

use std::io;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

use super::place::Place;
use super::pods;
use super::sample::{self, Sample};

/// Time for one response.
pub const TIMEOUT: Duration = Duration::from_secs(5);
/// Largest response, in bytes: 256 types take about 400 kB, and 1,000 workflows as much again.
const MAX_ANSWER: usize = 32 << 20;

/// A proxy's version and name, as it reports them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct About {
    /// Envoy's version, such as `1.40.0`.
    pub version: String,
    /// Node id.
    pub node: String,
}

/// A proxy to ask, and the connection to it.
pub struct Client {
    place: Place,
    /// The client for proxies in Pods.
    pods: Option<kube::Client>,
    sender: Option<SendRequest<Empty<Bytes>>>,
    /// The kubelet's reason for the end of the connection.
    complaint: Option<BoxFuture<'static, Option<String>>>,
}

/// A stream of bytes.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

impl Client {
    /// Returns a client of the proxy at `place`; `pods` reaches those that are Pods.
    #[must_use]
    pub fn new(place: Place, pods: Option<kube::Client>) -> Self {
        Self {
            place,
            pods,
            sender: None,
            complaint: None,
        }
    }

    /// Returns the place of the proxy.
    #[must_use]
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// Returns the proxy's stats now.
    ///
    /// # Errors
    /// Returns one line: the proxy can't be reached, takes longer than [`TIMEOUT`], or is no Envoy.
    pub async fn sample(&mut self) -> anyhow::Result<Sample> {
        let text = self.get(&sample::path()).await?;
        Ok(Sample::parse(&String::from_utf8_lossy(&text)))
    }

    /// Returns the proxy's version and name. The response is large, as it lists all built-in
    /// extensions, so ask once.
    ///
    /// # Errors
    /// As [`Self::sample`].
    pub async fn about(&mut self) -> anyhow::Result<About> {
        let json = self.get("/server_info").await?;
        let info: serde_json::Value = serde_json::from_slice(&json)
            .with_context(|| format!("{} is no Envoy admin address", self.place))?;
        let version = info["version"].as_str().unwrap_or_default();
        let node = info["node"]["id"].as_str().unwrap_or_default();
        let shown = |text: &str| -> String { text.chars().filter(|c| !c.is_control()).collect() };
        Ok(About {
            // `commit/version/state/kind/library`.
            version: shown(version.split('/').nth(1).unwrap_or(version)),
            node: shown(node),
        })
    }

    async fn get(&mut self, path: &str) -> anyhow::Result<Bytes> {
        let answer = tokio::time::timeout(TIMEOUT, self.exchange(path)).await;
        let answer =
            answer.unwrap_or_else(|_| Err(anyhow!("no answer within {} s", TIMEOUT.as_secs())));
        answer.map_err(|error| {
            // After any failure the next attempt begins with a connection.
            self.sender = None;
            let complaint = self.complaint.take();
            match complaint.and_then(FutureExt::now_or_never).flatten() {
                Some(complaint) => anyhow!("{}", complaint.trim()),
                None => error,
            }
        })
    }

    async fn exchange(&mut self, path: &str) -> anyhow::Result<Bytes> {
        let mut sender = match self.sender.take() {
            Some(sender) if !sender.is_closed() => sender,
            _ => self.connect().await?,
        };
        sender.ready().await.context("the connection was closed")?;
        let request = Request::get(path)
            .header(header::HOST, "headgate-top")
            .body(Empty::<Bytes>::new())?;
        let not_ours = || "it is no Envoy admin address".to_owned();
        let response = sender.send_request(request).await.with_context(not_ours)?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_ANSWER)
            .collect()
            .await
            .map_err(|e| anyhow!("reading the answer failed: {e}"))?;
        if status != StatusCode::OK {
            bail!("{}: it answered {status}", not_ours());
        }
        self.sender = Some(sender);
        Ok(body.to_bytes())
    }

    async fn connect(&mut self) -> anyhow::Result<SendRequest<Empty<Bytes>>> {
        let stream: Box<dyn Stream> = match &self.place {
            Place::Tcp(endpoint) => {
                let address = (endpoint.host.as_str(), endpoint.port);
                let connected = TcpStream::connect(address).await;
                Box::new(connected.map_err(|e| refused(&e))?)
            }
            Place::Unix(path) => Box::new(unix(path).await?),
            Place::Pod {
                namespace,
                name,
                port,
            } => {
                let pods = self.pods.as_ref().context("no cluster to reach it in")?;
                let (stream, complaint) = pods::connect(pods, namespace, name, *port).await?;
                self.complaint = Some(complaint);
                Box::new(stream)
            }
        };
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        Ok(sender)
    }
}

async fn unix(path: &Path) -> anyhow::Result<UnixStream> {
    UnixStream::connect(path).await.map_err(|e| refused(&e))
}

fn refused(error: &io::Error) -> anyhow::Error {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => anyhow!("nothing listens there"),
        io::ErrorKind::NotFound => anyhow!("there is no such socket"),
        _ => anyhow!("{error}"),
    }
}
