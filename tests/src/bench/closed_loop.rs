//! The request rate of a closed loop: every client sends its next request as soon as it has an
//! answer.
//!
//! A closed loop says nothing about latency in overload, but it measures a proxy's maximum rate.
//! Clients and backend use as little CPU as possible (one blocking thread a connection, fixed
//! bytes), so that Envoy's one worker uses most of the machine's two cores.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

const REQUEST: &[u8] = b"GET /q/fast HTTP/1.1\r\nhost: headgate.test\r\n\r\n";
const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

/// Starts a backend that answers every request at once with the same bytes. It serves until the
/// process ends.
///
/// # Errors
/// If no port can be bound.
pub fn start_responder() -> Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let addr = listener.local_addr()?;
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || respond(stream));
        }
    });
    Ok(addr)
}

fn respond(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = [0; 8_192];
    let mut filled = 0;
    loop {
        match stream.read(&mut buffer[filled..])? {
            0 => return Ok(()),
            n => filled += n,
        }
        // Envoy sends its next request on a connection only once this one is answered.
        if buffer[..filled].ends_with(b"\r\n\r\n") {
            stream.write_all(RESPONSE)?;
            filled = 0;
        }
        if filled == buffer.len() {
            return Ok(());
        }
    }
}

/// Returns the answers with status 200 per second over `measured`, after `warmup`, with `clients`
/// connections.
///
/// # Errors
/// If a connection can't be made, or an answer isn't 200.
pub fn requests_per_second(
    target: SocketAddr,
    clients: usize,
    warmup: Duration,
    measured: Duration,
) -> Result<f64> {
    let count = Arc::new(AtomicU64::new(0));
    let stop = Arc::new(AtomicBool::new(false));
    let threads: Vec<_> = (0..clients)
        .map(|_| {
            let (count, stop) = (Arc::clone(&count), Arc::clone(&stop));
            std::thread::spawn(move || client(target, &count, &stop))
        })
        .collect();
    std::thread::sleep(warmup);
    let (started, before) = (Instant::now(), count.load(Ordering::Relaxed));
    std::thread::sleep(measured);
    let answered = count.load(Ordering::Relaxed) - before;
    let elapsed = started.elapsed();
    stop.store(true, Ordering::Relaxed);
    for thread in threads {
        if let Ok(result) = thread.join() {
            result?;
        }
    }
    Ok(answered as f64 / elapsed.as_secs_f64())
}

fn client(target: SocketAddr, count: &AtomicU64, stop: &AtomicBool) -> Result<()> {
    let mut stream = TcpStream::connect(target)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    let mut buffer = [0; 8_192];
    while !stop.load(Ordering::Relaxed) {
        stream.write_all(REQUEST)?;
        let mut filled = 0;
        while !buffer[..filled].ends_with(b"\r\n\r\nok") {
            match stream.read(&mut buffer[filled..])? {
                0 => bail!(
                    "the connection closed: {}",
                    String::from_utf8_lossy(&buffer[..filled])
                ),
                n => filled += n,
            }
            if filled > 12 && &buffer[9..12] != b"200" {
                bail!(
                    "not answered: {}",
                    String::from_utf8_lossy(&buffer[..filled])
                );
            }
        }
        count.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}
