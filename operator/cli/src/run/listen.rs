//! The addresses that an operator listens on.

use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr};

use anyhow::anyhow;
use tokio::net::{TcpListener, TcpSocket};

/// The number of connections that may wait to be accepted. When an operator restarts, all its
/// proxies connect at once, and connection attempts beyond this number are retried only after a
/// second or more. The kernel may allow fewer (`net.core.somaxconn`).
const BACKLOG: u32 = 4_096;

/// Listens on `address`, the value of `argument`. `[::]` means all addresses of both families, and
/// all IPv4 addresses on a host without IPv6.
pub(super) fn listen(argument: &str, address: SocketAddr) -> anyhow::Result<TcpListener> {
    let bound = || -> io::Result<TcpListener> {
        let v4 = SocketAddr::from((Ipv4Addr::UNSPECIFIED, address.port()));
        let (socket, address) = match (address, TcpSocket::new_v6()) {
            (SocketAddr::V4(_), _) => (TcpSocket::new_v4()?, address),
            (SocketAddr::V6(v6), Err(_)) if v6.ip().is_unspecified() => (TcpSocket::new_v4()?, v4),
            (SocketAddr::V6(_), socket) => (socket?, address),
        };
        // After a restart, connections of the previous process may still be in TIME_WAIT.
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        socket.listen(BACKLOG)
    };
    bound().map_err(|error| {
        let advice = match error.kind() {
            ErrorKind::AddrInUse => {
                "; another headgate may be running (headgate status shows it), or choose a free \
                 port with :0"
            }
            ErrorKind::PermissionDenied => "; ports below 1024 need privileges",
            ErrorKind::AddrNotAvailable => "; this host has no such address",
            _ => "",
        };
        anyhow!("{argument} {address}: {error}{advice}")
    })
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn all_proxies_may_come_at_once() {
        let allowed = std::fs::read_to_string("/proc/sys/net/core/somaxconn");
        let allowed = allowed.ok().and_then(|n| n.trim().parse().ok());
        let listener = listen("--xds", "127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        // No connection is accepted. Beyond the backlog the kernel leaves connection attempts
        // unanswered.
        let mut connections = Vec::new();
        for _ in 0..allowed.unwrap_or(500).min(500) {
            let patience = Duration::from_secs(20);
            connections.push(TcpStream::connect_timeout(&address, patience).unwrap());
        }
    }

    #[tokio::test]
    async fn any_address_is_one_of_either_family() {
        let listener = listen("--admin", "[::]:0".parse().unwrap()).unwrap();
        let port = listener.local_addr().unwrap().port();
        TcpStream::connect(("127.0.0.1", port)).unwrap();
        // This connection is possible only if the host has IPv6.
        if TcpSocket::new_v6().is_ok_and(|s| s.bind("[::1]:0".parse().unwrap()).is_ok()) {
            TcpStream::connect(("::1", port)).unwrap();
        }
    }

    #[tokio::test]
    async fn a_port_that_is_taken_is_named_with_advice() {
        let first = listen("--xds", "127.0.0.1:0".parse().unwrap()).unwrap();
        let address = first.local_addr().unwrap();
        let error = listen("--xds", address).unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("--xds {address}: "))
                && error.contains("another headgate may be running"),
            "{error}"
        );
    }
}
