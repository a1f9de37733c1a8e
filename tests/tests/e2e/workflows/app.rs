//! An application that records its requests, calls another application through its proxy, and
//! answers.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use anyhow::{Context, Result};
use headgate_tests::http::{self, Answer};

/// A request as the application received it.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) path: String,
    /// The headers, with names in lower case.
    pub(crate) headers: Vec<(String, String)>,
}

impl Seen {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(n, _)| n == name);
        found.map(|(_, value)| value.as_str())
    }

    /// Returns the names of Headgate's own headers.
    pub(crate) fn ours(&self) -> Vec<&str> {
        let names = self.headers.iter().map(|(name, _)| name.as_str());
        names.filter(|n| n.starts_with("x-headgate-")).collect()
    }
}

/// The application's reaction to a request.
#[derive(Debug, Clone, Default)]
pub(crate) struct Behaviour {
    /// The address of the proxy's outbound listener, and the names of the services to call before
    /// each response.
    pub(crate) calls: Option<(SocketAddr, Vec<&'static str>)>,
    /// The names of headers that the application copies from a request to its calls.
    pub(crate) copies: Vec<&'static str>,
    /// Headers of the application's responses.
    pub(crate) answers: Vec<(&'static str, String)>,
}

#[derive(Debug, Default)]
struct State {
    behaviour: Behaviour,
    seen: Vec<Seen>,
    answers: Vec<Answer>,
}

/// A running application. Its threads end with the test.
#[derive(Debug, Clone)]
pub(crate) struct App {
    pub(crate) addr: SocketAddr,
    state: Arc<Mutex<State>>,
}

impl App {
    pub(crate) fn start(behaviour: Behaviour) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let app = Self {
            addr: listener.local_addr()?,
            state: Arc::default(),
        };
        app.behave(behaviour);
        let served = app.clone();
        thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                let app = served.clone();
                // An error here means that the proxy has closed its end of the connection, which is
                // no failure.
                thread::spawn(move || app.serve(connection).unwrap_or(()));
            }
        });
        Ok(app)
    }

    fn with<T>(&self, f: impl FnOnce(&mut State) -> T) -> T {
        f(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces the behaviour of the application from the next request on.
    pub(crate) fn behave(&self, behaviour: Behaviour) {
        self.with(|state| state.behaviour = behaviour);
    }

    /// Returns the latest request for `path`.
    pub(crate) fn last(&self, path: &str) -> Result<Seen> {
        let found = self.with(|state| state.seen.iter().rev().find(|s| s.path == path).cloned());
        found.with_context(|| format!("no request for {path}"))
    }

    /// Returns the latest response to a call.
    pub(crate) fn last_answer(&self) -> Result<Answer> {
        self.with(|state| state.answers.last().cloned())
            .context("no call was answered")
    }

    fn serve(&self, connection: TcpStream) -> Result<()> {
        connection.set_nodelay(true)?;
        let mut reader = BufReader::new(connection);
        while let Some(seen) = read(&mut reader)? {
            let behaviour = self.with(|state| {
                state.seen.push(seen.clone());
                state.behaviour.clone()
            });
            let mut status = 200;
            if let Some((proxy, services)) = &behaviour.calls {
                for service in services {
                    let copied = seen.headers.iter();
                    let copied = copied.filter(|(n, _)| behaviour.copies.contains(&n.as_str()));
                    let mut headers = vec![("host", *service)];
                    headers.extend(copied.map(|(n, v)| (n.as_str(), v.as_str())));
                    let answer = http::get_with(*proxy, &seen.path, &headers)?;
                    status = status.max(answer.status);
                    self.with(|state| state.answers.push(answer));
                }
            }
            let mut answer = format!("HTTP/1.1 {status} X\r\ncontent-length: 2\r\n");
            for (name, value) in &behaviour.answers {
                answer.push_str(&format!("{name}: {value}\r\n"));
            }
            answer.push_str("\r\nok");
            reader.get_mut().write_all(answer.as_bytes())?;
        }
        Ok(())
    }
}

fn read(reader: &mut BufReader<TcpStream>) -> Result<Option<Seen>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut headers = Vec::new();
    loop {
        line.clear();
        reader.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(':') else {
            break;
        };
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    let seen = Seen { path, headers };
    let length = seen.header("content-length").and_then(|l| l.parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    reader.read_exact(&mut body)?;
    Ok(Some(seen))
}
