//! A small blocking HTTP/1.1 client for single requests. Each request has a connection of its own.
//! So a test decides when the request is sent, whether its answer is read, and when the client
//! hangs up.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};

/// Timeout of an attempt to connect. If the host no longer exists, the kernel would retry for two
/// minutes.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The duration of a read after which a test counts as stuck.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// A whole answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// The names of headers, in lower case, and their values, in order.
    pub headers: Vec<(String, String)>,
    /// The body as text.
    pub body: String,
}

impl Answer {
    /// Returns the value of the first header with this name in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(n, _)| n == name)
            .map(|(_, v)| v.as_str())
    }

    /// Returns Headgate's reason for a refusal, from `x-headgate-refused`.
    pub fn refusal_reason(&self) -> Option<&str> {
        self.header("x-headgate-refused")?
            .split(';')
            .find_map(|field| field.trim().strip_prefix("reason="))
    }
}

/// A request that has been sent. Dropping it closes the connection.
#[derive(Debug)]
pub struct Pending {
    reader: BufReader<TcpStream>,
    head: bool,
    // This field is dropped after `reader`, which closes the connection. So the strong count of the
    // `Arc` includes every open connection.
    counted: Option<Arc<()>>,
}

/// Sends a request and returns without waiting for the answer.
///
/// # Errors
/// If the connection can't be made or the request can't be written.
pub fn send(
    addr: SocketAddr,
    method: &str,
    target: &str,
    headers: &[(&str, &str)],
    body: Option<&str>,
) -> Result<Pending> {
    let mut stream = TcpStream::connect_timeout(&addr, CONNECT_TIMEOUT)
        .with_context(|| format!("cannot connect to {addr}"))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(READ_TIMEOUT))?;
    let mut request = format!("{method} {target} HTTP/1.1\r\n");
    if !headers
        .iter()
        .any(|(name, _)| name.eq_ignore_ascii_case("host"))
    {
        request.push_str("host: headgate.test\r\n");
    }
    if !headers
        .iter()
        .any(|(name, _)| name.eq_ignore_ascii_case("connection"))
    {
        request.push_str("connection: close\r\n");
    }
    for (name, value) in headers {
        request.push_str(&format!("{name}: {value}\r\n"));
    }
    if let Some(body) = body {
        request.push_str(&format!("content-length: {}\r\n\r\n{body}", body.len()));
    } else {
        request.push_str("\r\n");
    }
    stream.write_all(request.as_bytes())?;
    Ok(Pending {
        reader: BufReader::new(stream),
        head: method == "HEAD",
        counted: None,
    })
}

/// Sends a `GET` and reads the answer.
///
/// # Errors
/// If the request can't be sent or the answer can't be read.
pub fn get(addr: SocketAddr, target: &str) -> Result<Answer> {
    send(addr, "GET", target, &[], None)?.answer()
}

/// Sends a `GET` with headers and reads the answer.
///
/// # Errors
/// If the request can't be sent or the answer can't be read.
pub fn get_with(addr: SocketAddr, target: &str, headers: &[(&str, &str)]) -> Result<Answer> {
    send(addr, "GET", target, headers, None)?.answer()
}

/// Sends a `POST` and reads the answer.
///
/// # Errors
/// If the request can't be sent or the answer can't be read.
pub fn post(addr: SocketAddr, target: &str, body: &str) -> Result<Answer> {
    send(addr, "POST", target, &[], Some(body))?.answer()
}

impl Pending {
    /// Adds an owner to `clients` until the connection of this request is closed.
    #[must_use]
    pub fn counted_by(mut self, clients: &Arc<()>) -> Self {
        self.counted = Some(Arc::clone(clients));
        self
    }

    /// Waits for the whole answer.
    ///
    /// # Errors
    /// If the connection breaks first, or no data arrive for 30 s.
    pub fn answer(mut self) -> Result<Answer> {
        let (status, headers) = self.head()?;
        let body = self.body(status, &headers)?;
        Ok(Answer {
            status,
            headers,
            body: String::from_utf8_lossy(&body).into_owned(),
        })
    }

    /// Waits for the status and the headers. The body can then be read with
    /// [`read_line`](Self::read_line).
    ///
    /// # Errors
    /// If the connection breaks first, or no data arrive for 30 s.
    pub fn head(&mut self) -> Result<(u16, Vec<(String, String)>)> {
        loop {
            let line = self.read_line()?;
            let status = line
                .split_whitespace()
                .nth(1)
                .and_then(|s| s.parse::<u16>().ok());
            let status = status.ok_or_else(|| anyhow!("not a status line: {line:?}"))?;
            let mut headers = Vec::new();
            loop {
                let line = self.read_line()?;
                if line.is_empty() {
                    break;
                }
                let (name, value) = line
                    .split_once(':')
                    .ok_or_else(|| anyhow!("not a header: {line:?}"))?;
                headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
            }
            // Interim answers such as 100 Continue precede the final answer. 101 is a final answer.
            if status == 101 || status >= 200 {
                return Ok((status, headers));
            }
        }
    }

    /// Reads one line and returns it without its end.
    ///
    /// # Errors
    /// If the connection closes first.
    pub fn read_line(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.reader.read_line(&mut line)? == 0 {
            bail!("the connection closed before an answer");
        }
        Ok(line.trim_end_matches(['\r', '\n']).to_owned())
    }

    /// Sends more data on the connection, which must be upgraded.
    ///
    /// # Errors
    /// If the connection is closed.
    pub fn write(&mut self, data: &str) -> Result<()> {
        Ok(self.reader.get_mut().write_all(data.as_bytes())?)
    }

    /// Whether an answer, or the start of an answer, has arrived.
    ///
    /// # Errors
    /// If the connection is broken.
    pub fn has_answer(&self) -> Result<bool> {
        let stream = self.reader.get_ref();
        stream.set_nonblocking(true)?;
        let peeked = stream.peek(&mut [0]);
        stream.set_nonblocking(false)?;
        match peeked {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Closes the connection now, without reading the answer.
    pub fn hang_up(self) {
        let _ = self.reader.get_ref().shutdown(Shutdown::Both);
    }

    fn body(&mut self, status: u16, headers: &[(String, String)]) -> Result<Vec<u8>> {
        let header = |name: &str| {
            headers
                .iter()
                .find(|(n, _)| n == name)
                .map(|(_, v)| v.as_str())
        };
        let mut body = Vec::new();
        if self.head || status == 101 || status == 204 || status == 304 {
            return Ok(body);
        }
        if header("transfer-encoding").is_some_and(|v| v.contains("chunked")) {
            loop {
                let line = self.read_line()?;
                let size =
                    usize::from_str_radix(line.split(';').next().unwrap_or_default().trim(), 16)?;
                let mut chunk = vec![0; size];
                self.reader.read_exact(&mut chunk)?;
                body.extend_from_slice(&chunk);
                self.read_line()?;
                if size == 0 {
                    return Ok(body);
                }
            }
        }
        match header("content-length") {
            Some(length) => {
                body.resize(length.parse()?, 0);
                self.reader.read_exact(&mut body)?;
            }
            None => {
                self.reader.read_to_end(&mut body)?;
            }
        }
        Ok(body)
    }
}
