//! Connections of the load generator.
//!
//! Idle HTTP/1.1 connections are reused in the order in which they became idle. This order spreads
//! requests evenly over all connections, and so over the worker threads of a proxy. Each worker
//! owns the connections that it has accepted.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::SocketAddr;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tokio::task::AbortHandle;

use super::spec::Protocol;

/// Connections to some addresses, equally many to each.
#[derive(Debug)]
pub(super) struct Pool {
    /// The addresses. There is at least one.
    targets: Vec<SocketAddr>,
    protocol: Protocol,
    idle: RefCell<VecDeque<Connection>>,
    opened: Cell<u64>,
}

/// A connection. It is closed when its last handle is dropped.
#[derive(Debug)]
pub(super) struct Connection {
    sender: Sender,
    /// The connection's task, only with HTTP/1.1. A shared HTTP/2 connection ends when its last
    /// sender is dropped.
    task: Option<AbortHandle>,
}

#[derive(Debug)]
enum Sender {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

impl Pool {
    pub(super) fn new(targets: Vec<SocketAddr>, protocol: Protocol) -> Self {
        Self {
            targets,
            protocol,
            idle: RefCell::default(),
            opened: Cell::new(0),
        }
    }

    /// Opens `count` connections in advance.
    pub(super) async fn fill(&self, count: usize) -> Result<()> {
        for _ in 0..count {
            let connection = self.open().await?;
            self.idle.borrow_mut().push_back(connection);
        }
        Ok(())
    }

    /// Returns the number of connections opened so far.
    pub(super) fn opened(&self) -> u64 {
        self.opened.get()
    }

    /// Sends on a free connection, or a new one. Once the answer's body has been read,
    /// [`give_back`](Self::give_back) must get the connection. Dropping the connection closes it.
    pub(super) async fn send(
        &self,
        mut request: Request<Full<Bytes>>,
    ) -> Result<(Response<Incoming>, Connection)> {
        loop {
            let idle = self.take_idle();
            let reused = idle.is_some();
            let mut connection = match idle {
                Some(connection) => connection,
                None => self.open().await?,
            };
            match connection.send(request).await {
                Ok(response) => return Ok((response, connection)),
                // The server may close an idle connection at any time, so an unsent request may use
                // another connection.
                Err(Some(unsent)) if reused => request = unsent,
                Err(_) => bail!("the connection broke"),
            }
        }
    }

    /// Makes a connection available for other requests.
    pub(super) fn give_back(&self, connection: Connection) {
        let shared = self.protocol == Protocol::Http2 && !self.idle.borrow().is_empty();
        if !shared && !connection.is_closed() {
            self.idle.borrow_mut().push_back(connection);
        }
    }

    fn take_idle(&self) -> Option<Connection> {
        let mut idle = self.idle.borrow_mut();
        loop {
            let connection = idle.pop_front()?;
            if connection.is_closed() {
                continue;
            }
            if let Sender::Http2(sender) = &connection.sender {
                let shared = Connection {
                    sender: Sender::Http2(sender.clone()),
                    task: None,
                };
                idle.push_back(connection);
                return Some(shared);
            }
            return Some(connection);
        }
    }

    async fn open(&self) -> Result<Connection> {
        let turn = usize::try_from(self.opened.get()).unwrap_or(0);
        let target = self.targets[turn % self.targets.len()];
        // The count includes failed attempts, because the next target may be reachable.
        self.opened.set(self.opened.get() + 1);
        let stream = TcpStream::connect(target)
            .await
            .with_context(|| format!("cannot connect to {target}"))?;
        stream.set_nodelay(true)?;
        let io = TokioIo::new(stream);
        match self.protocol {
            Protocol::Http1 => {
                let (sender, connection) = http1::handshake(io).await?;
                let task = tokio::task::spawn_local(async move {
                    let _ = connection.await;
                });
                Ok(Connection {
                    sender: Sender::Http1(sender),
                    task: Some(task.abort_handle()),
                })
            }
            Protocol::Http2 => {
                let mut builder = http2::Builder::new(TokioExecutor::new());
                builder.initial_max_send_streams(1_000);
                let (sender, connection) = builder.handshake(io).await?;
                tokio::task::spawn_local(async move {
                    let _ = connection.await;
                });
                Ok(Connection {
                    sender: Sender::Http2(sender),
                    task: None,
                })
            }
        }
    }
}

impl Connection {
    /// Sends a request. On failure, returns the request if no part of it was sent.
    async fn send(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, Option<Request<Full<Bytes>>>> {
        match &mut self.sender {
            Sender::Http1(sender) => {
                if sender.ready().await.is_err() {
                    return Err(Some(request));
                }
                sender
                    .try_send_request(request)
                    .await
                    .map_err(|mut e| e.take_message())
            }
            Sender::Http2(sender) => {
                if sender.ready().await.is_err() {
                    return Err(Some(request));
                }
                sender
                    .try_send_request(request)
                    .await
                    .map_err(|mut e| e.take_message())
            }
        }
    }

    fn is_closed(&self) -> bool {
        match &self.sender {
            Sender::Http1(sender) => sender.is_closed(),
            Sender::Http2(sender) => sender.is_closed(),
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if let Some(task) = self.task.take() {
            task.abort();
        }
    }
}
