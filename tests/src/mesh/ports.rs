//! Ports that are known before a process listens on them.
//!
//! Every sidecar needs the addresses of others before those have started, and a restarted sidecar
//! must keep its address. A port is reserved by a socket that is bound to it and never listens.
//! With `SO_REUSEPORT`, which Envoy sets on its listeners, another socket of the same user can be
//! bound to the port, too. The kernel passes connections only to listening sockets. Other users
//! can't bind the port.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use anyhow::{Context, Result};
use tokio::net::TcpSocket;

/// Returns a port that is free on all addresses now. Unlike the port of a [`Reserved`], it may be
/// taken by another process.
///
/// # Errors
/// If no port is free.
pub fn free_port() -> Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))?
        .local_addr()?
        .port())
}

/// A port of the loopback interface, reserved until this value is dropped.
#[derive(Debug)]
pub struct Reserved {
    addr: SocketAddr,
    _socket: TcpSocket,
}

impl Reserved {
    /// Reserves any free port.
    ///
    /// # Errors
    /// If no port is free.
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

    /// Returns the address with the reserved port.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }
}
