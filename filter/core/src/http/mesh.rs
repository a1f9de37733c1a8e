//! Workflows: what requests and calls say in Headgate's headers, and what they are told.
//!
//! Reading and writing headers is what costs here, so that nothing is asked for that the map of a request's headers
//! doesn't show to be there, and nothing is removed that isn't.

use crate::config::ResourceReport;
use crate::decision::Ticket;
use crate::engine::{Calling, Reply};
use crate::host::{Host, HostError};
use crate::workflows::{Token, resource, wire};

use super::headers::{Headers, Response};
use super::{Filter, Property, Stream};

/// Whose Headgate headers a request has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// None, or nobody here knows workflows: they stay as they are.
    Plain,
    /// Those of a sidecar that is believed, or of a stranger whose headers are hidden. They are to be removed.
    Mesh,
}

impl<H: Host> Filter<H> {
    /// Who speaks in Headgate's headers of a request. A stranger's are hidden from all that follows.
    pub(super) fn standing(&self, headers: &mut Headers<'_, impl Stream>) -> Standing {
        let speaks = || headers.any_of_ours() || headers.token_in_baggage().is_some();
        if !self.workflows || !speaks() {
            return Standing::Plain;
        }
        match self.engine.believes(headers) {
            None => Standing::Plain,
            Some(believed) => {
                if !believed {
                    headers.disown();
                }
                Standing::Mesh
            }
        }
    }

    /// Takes from a request what is none of the application's business.
    pub(super) fn strip<S: Stream>(
        &mut self,
        stream: &S,
        headers: &Headers<'_, S>,
        standing: Standing,
    ) {
        if standing == Standing::Plain {
            return;
        }
        for name in headers.internal() {
            let removed = stream.remove_request_header(name);
            self.check(stream, removed);
        }
        if headers.token_in_baggage().is_some() {
            self.strip_baggage(stream, headers);
        }
    }

    /// Takes tokens out of the baggage.
    fn strip_baggage<S: Stream>(&mut self, stream: &S, headers: &Headers<'_, S>) {
        headers.baggage_without(&mut self.baggage);
        let stripped = if self.baggage.is_empty() {
            stream.remove_request_header(wire::BAGGAGE.as_bytes())
        } else {
            stream.set_request_header(wire::BAGGAGE, &self.baggage)
        };
        self.check(stream, stripped);
    }

    /// The request of `stream` goes on: tells the application the token by which its calls will be
    /// known; at a gateway it is the call. Without `headers` they are read again: those of a request that was held are
    /// gone.
    pub(super) fn hand_on<S: Stream>(
        &mut self,
        stream: &S,
        ticket: Ticket,
        headers: Option<&Headers<'_, S>>,
    ) {
        if !self.workflows {
            return;
        }
        let Some(token) = self.engine.token(ticket) else {
            return;
        };
        let told = (|| {
            let read;
            let headers = match headers {
                Some(headers) => headers,
                None => {
                    read = Headers::of_request(stream)?;
                    &read
                }
            };
            if self.engine.is_gateway() {
                return self.forward(stream, headers, &token);
            }
            stream.set_request_header(wire::REQUEST, token.as_bytes())?;
            if headers.baggage_with(token.as_bytes(), &mut self.baggage) {
                stream.set_request_header(wire::BAGGAGE, &self.baggage)?;
            }
            Ok(())
        })();
        self.check(stream, told);
    }

    /// The request of `stream` is the gateway's call.
    fn forward<S: Stream>(
        &mut self,
        stream: &S,
        headers: &Headers<'_, S>,
        token: &Token,
    ) -> Result<(), HostError> {
        let cluster = stream.property(Property::ClusterName)?.unwrap_or_default();
        let cluster = String::from_utf8_lossy(&cluster);
        let mut told: Result<(), HostError> = Ok(());
        let set = |name: &'static str, value: &str| {
            let set = stream.set_request_header(name, value.as_bytes());
            told = std::mem::replace(&mut told, Ok(())).and(set);
        };
        let call = (headers, Some(token.as_bytes()));
        let now = stream.now()?;
        let calling = self
            .engine
            .call(&self.host, now, call, &cluster, &mut self.actions, set);
        self.check(stream, told);
        if let Some(calling) = calling? {
            self.forwarded.insert(stream.id(), calling);
        }
        Ok(())
    }

    /// The response to a request that a gateway forwarded begins.
    pub(super) fn forwarded_answered(&mut self, stream: &impl Stream) {
        if let Some(calling) = self.forwarded.remove(&stream.id()) {
            self.answered(stream, calling);
        }
    }

    /// A request that a gateway may have forwarded ended; if it wasn't answered by then, it is lost.
    pub(super) fn forwarded_ended(&mut self, stream: &impl Stream) {
        if let Some(calling) = self.forwarded.remove(&stream.id()) {
            self.unanswered(stream, calling);
        }
    }

    /// The response of the backend to the request of `ticket` begins: tells the sender what it may send, and
    /// learns what the request used.
    pub(super) fn answer(&mut self, stream: &impl Stream, ticket: Ticket) {
        if !self.engine.has_workflow(ticket) {
            return;
        }
        let Ok(now) = stream.now() else { return };
        self.learn_use(stream, ticket);
        let mut told = Ok(());
        let Some(answer) = self.engine.answer(&self.host, now, ticket) else {
            return;
        };
        self.engine.tell(&answer, |name, value| {
            let set = stream.set_response_header(name, value.as_bytes());
            told = std::mem::replace(&mut told, Ok(())).and(set);
        });
        self.check(stream, told);
    }

    fn learn_use(&mut self, stream: &impl Stream, ticket: Ticket) {
        let used = match self.engine.resource_report(ticket) {
            None => return,
            Some(ResourceReport::Orca { metric }) => stream
                .response_header(resource::ORCA)
                .map(|value| value.and_then(|value| resource::orca(&value, metric))),
            Some(ResourceReport::ServerTiming { metric }) => stream
                .response_header(resource::SERVER_TIMING)
                .map(|value| value.and_then(|value| resource::server_timing(&value, metric))),
        };
        match used {
            Ok(Some(amount)) => self.engine.resource_used(ticket, amount),
            Ok(None) => {}
            Err(error) => self.complain(stream, &error),
        }
    }

    /// The application makes a call: `stream` carries it.
    pub(super) fn call(&mut self, stream: &impl Stream) -> Option<Calling> {
        // At a gateway the request was its own call already.
        if !self.workflows || !self.engine.has_outbound() || self.engine.is_gateway() {
            return None;
        }
        match self.describe(stream) {
            Ok(calling) => calling,
            Err(error) => {
                self.complain(stream, &error);
                None
            }
        }
    }

    fn describe(&mut self, stream: &impl Stream) -> Result<Option<Calling>, HostError> {
        let headers = Headers::of_request(stream)?;
        let cluster = stream.property(Property::ClusterName)?.unwrap_or_default();
        let cluster = String::from_utf8_lossy(&cluster);
        let now = stream.now()?;
        // What the application copied from the request it got, or made up: only what follows counts.
        let mut told: Result<(), HostError> = Ok(());
        for name in headers.internal() {
            told = told.and(stream.remove_request_header(name));
        }
        let set = |name: &'static str, value: &str| {
            let set = stream.set_request_header(name, value.as_bytes());
            told = std::mem::replace(&mut told, Ok(())).and(set);
        };
        let calling = self.engine.call(
            &self.host,
            now,
            (&headers, None),
            &cluster,
            &mut self.actions,
            set,
        );
        self.check(stream, told);
        if headers.token_in_baggage().is_some() {
            self.strip_baggage(stream, &headers);
        }
        calling
    }

    /// The response to a call begins.
    pub(super) fn answered(&mut self, stream: &impl Stream, calling: Calling) {
        let Ok(now) = stream.now() else { return };
        let response = match stream.response_headers() {
            Ok(bytes) => Response::parse(bytes),
            Err(error) => {
                self.complain(stream, &error);
                return self.unanswered(stream, calling);
            }
        };
        let (rate, progress) = (response.header(wire::RATE), response.header(wire::PROGRESS));
        let said = rate.is_some() || progress.is_some();
        let peer = if said && self.engine.asks_who_answers() {
            stream.property(Property::UpstreamPeer).unwrap_or_default()
        } else {
            None
        };
        let reply = Reply {
            rate,
            progress,
            peer: peer.as_deref().filter(|id| !id.is_empty()),
        };
        self.engine.answered(&self.host, now, calling, Some(&reply));
        for name in [wire::RATE, wire::PROGRESS] {
            if response.header(name).is_some() {
                let removed = stream.remove_response_header(name.as_bytes());
                self.check(stream, removed);
            }
        }
    }

    /// A call ended without a response.
    pub(super) fn unanswered(&mut self, stream: &impl Stream, calling: Calling) {
        if let Ok(now) = stream.now() {
            self.engine.answered(&self.host, now, calling, None);
        }
    }
}
