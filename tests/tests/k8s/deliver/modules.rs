//! A server of modules in place of the operator's.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use anyhow::Result;
use sha2::{Digest as _, Sha256};

/// A server of modules. It answers 404 while `serves` is false.
pub(crate) struct Modules {
    pub(crate) address: SocketAddr,
    pub(crate) serves: Arc<AtomicBool>,
    /// The number of requests that got no module.
    pub(crate) missed: Arc<AtomicU32>,
}

pub(crate) const MODULE: &[u8] = b"a module";

pub(crate) fn sha256() -> String {
    let digest = Sha256::digest(MODULE);
    digest.iter().map(|b| format!("{b:02x}")).collect()
}

impl Modules {
    pub(crate) fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let serves = Arc::new(AtomicBool::new(true));
        let serving = Arc::clone(&serves);
        let missed = Arc::new(AtomicU32::new(0));
        let missing = Arc::clone(&missed);
        let path = format!("GET /modules/{}.wasm HTTP/1.1\r\n", sha256());
        // The thread ends with the test's process.
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { return };
                let mut request = [0; 2_048];
                let length = stream.read(&mut request).unwrap_or(0);
                let known = request[..length].starts_with(path.as_bytes());
                let answer = match known && serving.load(Ordering::Relaxed) {
                    true => [
                        format!(
                            "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n",
                            MODULE.len()
                        )
                        .as_bytes(),
                        MODULE,
                    ]
                    .concat(),
                    false => {
                        missing.fetch_add(1, Ordering::Relaxed);
                        b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n".to_vec()
                    }
                };
                let _ = stream.write_all(&answer);
            }
        });
        Ok(Self {
            address,
            serves,
            missed,
        })
    }
}
