//! Endpoints of a cluster, to which the proxy sends admitted requests round robin.
//!
//! With outlier detection, an endpoint is ejected after a number of consecutive failures, as with
//! Envoy's `consecutive_gateway_failure`. The route's timeout is one of these failures. The
//! endpoint keeps the requests that it has.

use headgate_simulator::backend::Backend;
use headgate_simulator::source::Request;

use super::faulty::Faulty;

/// An endpoint, and the number of its consecutive failures.
#[derive(Debug)]
struct Endpoint {
    backend: Faulty,
    failures: u32,
}

/// The endpoints of a cluster, used round robin.
#[derive(Debug)]
pub(crate) struct Endpoints {
    endpoints: Vec<Endpoint>,
    /// The number of consecutive failures after which an endpoint is ejected for the rest of the
    /// run; `None` for never.
    ejects: Option<u32>,
    next: usize,
    failed: bool,
    /// The endpoint of each job.
    of: Vec<u32>,
}

impl Endpoints {
    /// Creates a cluster of these endpoints. An endpoint is ejected after `ejects` consecutive
    /// failures; `None` means no outlier detection.
    pub(crate) fn new(endpoints: impl IntoIterator<Item = Faulty>, ejects: Option<u32>) -> Self {
        let endpoint = |backend| Endpoint {
            backend,
            failures: 0,
        };
        Self {
            endpoints: endpoints.into_iter().map(endpoint).collect(),
            ejects,
            next: 0,
            failed: false,
            of: Vec::new(),
        }
    }

    fn is_ejected(&self, endpoint: &Endpoint) -> bool {
        self.ejects.is_some_and(|most| endpoint.failures >= most)
    }
}

impl Backend for Endpoints {
    fn take(&mut self, now: u64, job: u32, request: &Request) {
        let count = self.endpoints.len();
        let mut turns = (self.next..self.next + count).map(|turn| turn % count);
        // If all endpoints are ejected, the proxy uses all of them, as below Envoy's panic
        // threshold.
        let at = turns
            .find(|at| !self.is_ejected(&self.endpoints[*at]))
            .unwrap_or(self.next);
        self.next = (at + 1) % count;
        let len = self.of.len().max(job as usize + 1);
        self.of.resize(len, 0);
        self.of[job as usize] = at as u32;
        self.endpoints[at].backend.take(now, job, request);
    }

    fn next_end(&self) -> u64 {
        let ends = self.endpoints.iter().map(|of| of.backend.next_end());
        ends.min().unwrap_or(u64::MAX)
    }

    fn end(&mut self, now: u64) -> Option<u32> {
        let is_over = |of: &&mut Endpoint| of.backend.next_end() <= now;
        let most = self.ejects.unwrap_or(u32::MAX);
        let endpoint = self.endpoints.iter_mut().find(is_over)?;
        let job = endpoint.backend.end(now);
        self.failed = endpoint.backend.failed();
        endpoint.failures = if endpoint.failures >= most {
            most
        } else if self.failed {
            endpoint.failures + 1
        } else {
            0
        };
        job
    }

    fn failed(&self) -> bool {
        self.failed
    }

    fn endpoint(&self, job: u32) -> Option<u32> {
        self.of.get(job as usize).copied()
    }

    fn busy(&self) -> u32 {
        self.endpoints.iter().map(|of| of.backend.busy()).sum()
    }

    fn servers(&self) -> u32 {
        self.endpoints.iter().map(|of| of.backend.servers()).sum()
    }
}
