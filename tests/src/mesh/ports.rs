//! Ports that are known before a process listens on them.
//!
//! Every sidecar must know the addresses of others before those have started, and a sidecar that is
//! restarted must be found where it was. A port is kept by a socket that is bound to it and never
//! listens: with `SO_REUSEPORT`, which Envoy sets on its listeners, another socket of the same user
//! may be bound to the port too, and the kernel gives connections only to those that listen. No
//! other user on the machine can get the port meanwhile.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::{Context, Result};
use tokio::net::TcpSocket;

/// A port of the loopback interface, kept until this is dropped.
#[derive(Debug)]
pub struct Reserved {
    addr: SocketAddr,
    _socket: TcpSocket,
}

impl Reserved {
    /// Any free port.
    ///
    /// # Errors
    /// If there is none.
    pub fn new() -> Result<Self> {
        let socket = TcpSocket::new_v4()?;
        socket.set_reuseport(true)?;
        socket
            .bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
            .context("no free port")?;
        Ok(Self {
            addr: socket.local_addr()?,
            _socket: socket,
        })
    }

    /// Its address.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }
}
