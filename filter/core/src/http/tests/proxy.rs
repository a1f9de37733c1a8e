//! A proxy in memory. The tests of `headgate-mesh` also include this file.

use std::time::Duration;

use super::*;

/// The id of the inbound configuration.
pub(super) const IN: u32 = 1;
pub(super) const VIA_UPSTREAM: &str = "via_upstream";

/// Returns a configuration with one slot and one place in the queue. `more` is added to the stage.
pub(super) fn stage(more: &str) -> String {
    format!(
        r#"{{"revision":"r","stages":[{{"policy":"ns/p","parallelism":1,
        "queue":{{"max_length":1,"timeout_us":1000000}},"types":[{{"name":"default"}}],
        {more}}}]}}"#
    )
}

pub(super) const MAX_QUEUE_LENGTH: &str = r#""strategy":{"type":"MaxQueueLength"}"#;

pub(super) struct Request {
    pub(super) stream: MemoryStream,
    pub(super) inbound: Inbound,
}

impl Request {
    /// Handles response headers with `status`. The response hasn't ended yet unless `alone`.
    pub(super) fn answered(&mut self, filter: &mut Filter<MemoryHost>, status: &str, alone: bool) {
        self.stream.set(Property::ResponseCodeDetails, VIA_UPSTREAM);
        let status = (":status".to_owned(), status.to_owned());
        self.stream.response.borrow_mut().push(status);
        self.inbound.response_headers(filter, &self.stream, alone);
    }
}

pub(super) struct Proxy {
    pub(super) filter: Filter<MemoryHost>,
    pub(super) streams: u32,
    pub(super) ms: u64,
}

impl Proxy {
    pub(super) fn new(config: &str) -> Self {
        let mut filter = Filter::new(MemoryHost::new(), 1);
        let stream = MemoryStream::of(&[]);
        let configured = filter.configure(&stream, Instant::default(), (IN, ""), config.as_bytes());
        assert_eq!(configured, Ok(()));
        Self {
            filter,
            streams: 0,
            ms: 0,
        }
    }

    pub(super) fn stream(&mut self, headers: &[(&str, &str)]) -> MemoryStream {
        self.streams += 1;
        let stream = MemoryStream {
            id: self.streams,
            ..MemoryStream::of(headers)
        };
        let now = Instant::default() + Duration::from_millis(self.ms);
        stream.now.set(Some(now));
        stream
    }

    pub(super) fn arrive(&mut self, headers: &[(&str, &str)]) -> (Request, Decision) {
        let (stream, mut inbound) = (self.stream(headers), Inbound::default());
        let decision = inbound.request_headers(&mut self.filter, &stream);
        (Request { stream, inbound }, decision)
    }

    /// Sends a request that must be forwarded, and returns it.
    pub(super) fn forwarded(&mut self, headers: &[(&str, &str)]) -> Request {
        let (request, decision) = self.arrive(headers);
        assert!(matches!(decision, Decision::Forward(_)), "{decision:?}");
        request
    }

    /// Sends a request that must wait, and returns it.
    pub(super) fn held(&mut self, headers: &[(&str, &str)]) -> Request {
        let (request, decision) = self.arrive(headers);
        assert!(matches!(decision, Decision::Hold(_)), "{decision:?}");
        request
    }

    pub(super) fn done(&mut self, request: &mut Request) {
        request.inbound.done(&mut self.filter, &request.stream);
    }

    /// Executes the only action, which must resume `held`.
    pub(super) fn resume(&mut self, held: &Request) {
        let actions = std::mem::take(self.filter.actions());
        let [Action::Resume { stream, ticket }] = actions[..] else {
            panic!("{actions:?}")
        };
        assert_eq!(stream, held.stream.id);
        self.filter.resume(&held.stream, ticket);
    }

    /// Returns a stat of the policy after the next tick.
    pub(super) fn stat(&mut self, name: &str) -> u64 {
        self.ms += 1_000;
        let stream = self.stream(&[]);
        self.filter.tick(&stream);
        let value = self
            .filter
            .host()
            .value(&format!("headgate.policy.ns/p.{name}"));
        value.unwrap_or_else(|| panic!("no stat {name}"))
    }

    pub(super) fn in_use(&self) -> u64 {
        let slots = self
            .filter
            .host()
            .value("headgate.policy.ns/p.slots_in_use");
        slots.unwrap()
    }
}
