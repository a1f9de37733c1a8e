//! Requests to one Envoy's admin interface over a kept connection, with limits on the time and the
//! size of a response.

use std::fmt;
use std::future::pending;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use headgate_command::cluster;
use headgate_command::table::one_line;
use headgate_controller::endpoint::Endpoint;
use headgate_deliver::http_client::whole;
use http::{Request, StatusCode, header};
use http_body_util::Empty;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use serde_json::Value;
use tokio::net::{TcpStream, UnixStream};
use tokio_util::either::Either::{Left, Right};

use crate::sample::{self, About, Sample};

/// The timeout of one response.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(5);
/// The size of the largest response, in bytes. A response with 256 types has about 400 kB, and
/// 1,000 workflows add as much.
const MAX_ANSWER: usize = 32 << 20;
const NO_ENVOY: &str = "it is no Envoy admin address";

/// The address of an Envoy's admin interface.
#[derive(Debug, Clone)]
pub enum AdminAddress {
    /// A TCP address.
    Tcp(Endpoint),
    /// A Unix domain socket, which Envoy calls a pipe.
    Unix(PathBuf),
    /// A port of a Pod. It may be open only on the Pod's loopback address.
    Pod {
        /// The API of the Pod's namespace.
        api: Box<Api<Pod>>,
        /// The Pod's name.
        name: String,
        /// Port of the admin interface.
        port: u16,
    },
}

impl FromStr for AdminAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let place = match text.strip_prefix("unix:") {
            Some("") => None,
            Some(path) => Some(Self::Unix(path.into())),
            None => text.parse().ok().map(Self::Tcp),
        };
        place.ok_or_else(|| {
            format!(
                "{text:?} is no admin address; write HOST:PORT, such as 127.0.0.1:9901, or \
                 unix:/PATH"
            )
        })
    }
}

impl fmt::Display for AdminAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(endpoint) => endpoint.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Pod { api, name, .. } => {
                write!(f, "{}/{name}", api.namespace().unwrap_or_default())
            }
        }
    }
}

/// A connection to a proxy's admin interface.
pub struct Connection {
    sender: SendRequest<Empty<Bytes>>,
    /// The kubelet's reason for ending a forwarded connection.
    complaint: BoxFuture<'static, Option<String>>,
    about: About,
}

/// Requests the current stats of the proxy at `place`. Uses the connection `kept` from the request
/// before, or a new one.
///
/// # Errors
/// Returns an error of one line if the proxy can't be reached, takes longer than [`TIMEOUT`], or
/// isn't an Envoy.
pub async fn sample(place: &AdminAddress, kept: &mut Option<Connection>) -> anyhow::Result<Sample> {
    let answer = async {
        // The connection is kept only after a complete response. After any failure, the next
        // attempt reconnects.
        let mut connection = match kept.take() {
            Some(connection) if !connection.sender.is_closed() => connection,
            _ => Connection::open(place).await?,
        };
        let text = connection.get(&sample::path()).await?;
        let mut sample = Sample::parse(&String::from_utf8_lossy(&text));
        sample.about = connection.about.clone();
        *kept = Some(connection);
        Ok(sample)
    };
    let answer = tokio::time::timeout(TIMEOUT, answer).await;
    answer.with_context(|| format!("no answer within {} s", TIMEOUT.as_secs()))?
}

impl Connection {
    async fn open(place: &AdminAddress) -> anyhow::Result<Self> {
        let mut complaint = pending().boxed();
        let stream = match place {
            AdminAddress::Tcp(Endpoint { host, port }) => {
                Left(TcpStream::connect((host.as_str(), *port)).await?)
            }
            AdminAddress::Unix(path) => Right(Left(UnixStream::connect(path).await?)),
            AdminAddress::Pod { api, name, port } => {
                let forwarded = api.portforward(name, &[*port]).await;
                let mut forwarded = forwarded.map_err(|error| cluster::refused(&error))?;
                let errors = forwarded.take_error(*port);
                complaint = errors.context("no channel for errors")?.fuse().boxed();
                Right(Right(forwarded.take_stream(*port).context("no stream")?))
            }
        };
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        let mut connection = Self {
            sender,
            complaint,
            about: About::default(),
        };
        // The server's information is requested once for each connection, because the response
        // lists all built-in extensions. After a restart of Envoy, the connection is new.
        let info = connection.get("/server_info").await?;
        let info: Value = serde_json::from_slice(&info).context(NO_ENVOY)?;
        let text = |value: &Value| one_line(value.as_str().unwrap_or_default());
        // The format is `commit/version/state/kind/library`.
        let version = text(&info["version"]);
        connection.about = About {
            version: version.split('/').nth(1).unwrap_or(&version).to_owned(),
            node: text(&info["node"]["id"]),
        };
        Ok(connection)
    }

    async fn get(&mut self, path: &str) -> anyhow::Result<Bytes> {
        let request = Request::get(path)
            .header(header::HOST, "headgate-top")
            .body(Empty::<Bytes>::new())?;
        let sender = &mut self.sender;
        let exchange = async {
            sender.ready().await?;
            whole(sender.send_request(request).await?, MAX_ANSWER).await
        };
        let answer = tokio::select! {
            biased;
            Some(complaint) = &mut self.complaint => bail!("{}", complaint.trim()),
            answer = exchange => answer,
        };
        let answer = answer.context(NO_ENVOY)?;
        match answer.status() {
            StatusCode::OK => Ok(answer.into_body()),
            status => bail!("{NO_ENVOY}: it answered {status}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_read_back_what_they_print() {
        for text in [
            "127.0.0.1:9901",
            "[::1]:9901",
            "envoy:9901",
            "unix:/run/envoy.sock",
        ] {
            assert_eq!(text.parse::<AdminAddress>().unwrap().to_string(), text);
        }
        for text in ["", "9901", "unix:", "/run/envoy.sock", "a:b"] {
            let error = text.parse::<AdminAddress>().unwrap_err();
            assert!(error.ends_with("or unix:/PATH"), "{error}");
        }
    }
}
