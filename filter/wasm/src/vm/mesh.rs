//! Workflows: what requests and calls say in Headgate's headers, and what they are told.
//!
//! Reading and writing headers is what costs here, so that nothing is asked for that the map of a request's headers
//! doesn't show to be there, and nothing is removed that isn't.

use headgate_core::config::{Direction, ResourceReport};
use headgate_core::decision::Ticket;
use headgate_core::engine::{Calling, Reply};
use headgate_core::host::HostError;
use headgate_core::workflows::{Token, resource, wire};

use super::{Vm, now};
use crate::ffi;
use crate::headers::{Headers, Response};

/// Whose Headgate headers a request has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// None, or nobody here knows workflows: they stay as they are.
    Plain,
    /// Those of a sidecar that is believed, or of a stranger whose headers are hidden. They are to be removed.
    Mesh,
}

impl Vm {
    /// Who speaks in Headgate's headers of a request. A stranger's are hidden from all that follows.
    pub(super) fn standing(&self, headers: &mut Headers) -> Standing {
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
    pub(super) fn strip(&mut self, headers: &Headers, standing: Standing) {
        if standing == Standing::Plain {
            return;
        }
        for name in headers.internal() {
            let removed = ffi::remove_request_header(name);
            self.check(removed);
        }
        if headers.token_in_baggage().is_some() {
            self.strip_baggage(headers);
        }
    }

    /// Takes tokens out of the baggage.
    fn strip_baggage(&mut self, headers: &Headers) {
        headers.baggage_without(&mut self.baggage);
        let stripped = if self.baggage.is_empty() {
            ffi::remove_request_header(wire::BAGGAGE.as_bytes())
        } else {
            ffi::set_request_header(wire::BAGGAGE, &self.baggage)
        };
        self.check(stripped);
    }

    /// The request of `stream`, the effective one, goes on: tells the application the token by which its calls will be
    /// known; at a gateway it is the call. Without `headers` they are read again: those of a request that was held are
    /// gone.
    pub(super) fn hand_on(&mut self, stream: u32, ticket: Ticket, headers: Option<&Headers>) {
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
                    read = Headers::parse(ffi::request_headers()?);
                    &read
                }
            };
            if self.engine.is_gateway() {
                return self.forward(stream, headers, &token);
            }
            ffi::set_request_header(wire::REQUEST, token.as_bytes())?;
            if headers.baggage_with(token.as_bytes(), &mut self.baggage) {
                ffi::set_request_header(wire::BAGGAGE, &self.baggage)?;
            }
            Ok(())
        })();
        self.check(told);
    }

    /// The request of `stream`, the effective one, is the gateway's call.
    fn forward(&mut self, stream: u32, headers: &Headers, token: &Token) -> Result<(), HostError> {
        let cluster = ffi::property(b"xds\0cluster_name")?.unwrap_or_default();
        let cluster = String::from_utf8_lossy(&cluster);
        let mut told: Result<(), HostError> = Ok(());
        let set = |name: &'static str, value: &str| {
            let set = ffi::set_request_header(name, value.as_bytes());
            told = std::mem::replace(&mut told, Ok(())).and(set);
        };
        let call = (headers, Some(token.as_bytes()));
        // Of its own, as we may be amid others.
        let mut actions = Vec::new();
        let calling = self
            .engine
            .call(&self.host, now()?, call, &cluster, &mut actions, set);
        self.check(told);
        self.act(&mut actions, stream);
        if let Some(calling) = calling? {
            self.forwarded.insert(stream, calling);
        }
        Ok(())
    }

    /// The response to a request that a gateway forwarded begins.
    pub(crate) fn forwarded_answered(&mut self, stream: u32) {
        if let Some(calling) = self.forwarded.remove(&stream) {
            self.answered(calling);
        }
    }

    /// A request that a gateway may have forwarded ended; if it wasn't answered by then, it is lost.
    pub(crate) fn forwarded_ended(&mut self, stream: u32) {
        if let Some(calling) = self.forwarded.remove(&stream) {
            self.unanswered(calling);
        }
    }

    /// The response of the backend to the request of `ticket` begins: tells the sender what it may send, and
    /// learns what the request used.
    pub(crate) fn answer(&mut self, ticket: Ticket) {
        if !self.engine.has_workflow(ticket) {
            return;
        }
        let Ok(now) = now() else { return };
        self.learn_use(ticket);
        let mut told = Ok(());
        let Some(answer) = self.engine.answer(&self.host, now, ticket) else {
            return;
        };
        self.engine.tell(&answer, |name, value| {
            let set = ffi::set_response_header(name, value.as_bytes());
            told = std::mem::replace(&mut told, Ok(())).and(set);
        });
        self.check(told);
    }

    fn learn_use(&mut self, ticket: Ticket) {
        let used = match self.engine.resource_report(ticket) {
            None => return,
            Some(ResourceReport::Orca { metric }) => ffi::response_header(resource::ORCA)
                .map(|value| value.and_then(|value| resource::orca(&value, metric))),
            Some(ResourceReport::ServerTiming { metric }) => {
                ffi::response_header(resource::SERVER_TIMING)
                    .map(|value| value.and_then(|value| resource::server_timing(&value, metric)))
            }
        };
        match used {
            Ok(Some(amount)) => self.engine.resource_used(ticket, amount),
            Ok(None) => {}
            Err(error) => self.complain(&error),
        }
    }

    /// The application makes a call: `stream` carries it.
    pub(crate) fn call(&mut self, stream: u32) -> Option<Calling> {
        let served = self.roots.newest(Direction::Inbound).is_some();
        // At a gateway the request was its own call already.
        if !self.workflows || !served || !self.engine.has_outbound() || self.engine.is_gateway() {
            return None;
        }
        match self.describe(stream) {
            Ok(calling) => calling,
            Err(error) => {
                self.complain(&error);
                None
            }
        }
    }

    fn describe(&mut self, stream: u32) -> Result<Option<Calling>, HostError> {
        let headers = Headers::parse(ffi::request_headers()?);
        let cluster = ffi::property(b"xds\0cluster_name")?.unwrap_or_default();
        let cluster = String::from_utf8_lossy(&cluster);
        let now = now()?;
        // What the application copied from the request it got, or made up: only what follows counts.
        let mut told: Result<(), HostError> = Ok(());
        for name in headers.internal() {
            told = told.and(ffi::remove_request_header(name));
        }
        let mut actions = std::mem::take(&mut self.actions);
        let set = |name: &'static str, value: &str| {
            let set = ffi::set_request_header(name, value.as_bytes());
            told = std::mem::replace(&mut told, Ok(())).and(set);
        };
        let calling = self.engine.call(
            &self.host,
            now,
            (&headers, None),
            &cluster,
            &mut actions,
            set,
        );
        self.check(told);
        self.act(&mut actions, stream);
        self.actions = actions;
        self.attend(stream);
        if headers.token_in_baggage().is_some() {
            self.strip_baggage(&headers);
        }
        calling
    }

    /// The response to a call begins.
    pub(crate) fn answered(&mut self, calling: Calling) {
        let Ok(now) = now() else { return };
        let response = match ffi::response_headers() {
            Ok(bytes) => Response::parse(bytes),
            Err(error) => {
                self.complain(&error);
                return self.unanswered(calling);
            }
        };
        let (rate, progress) = (response.header(wire::RATE), response.header(wire::PROGRESS));
        let said = rate.is_some() || progress.is_some();
        let peer = if said && self.engine.asks_who_answers() {
            ffi::property(b"upstream\0uri_san_peer_certificate").unwrap_or_default()
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
                let removed = ffi::remove_response_header(name.as_bytes());
                self.check(removed);
            }
        }
    }

    /// A call ended without a response.
    pub(crate) fn unanswered(&mut self, calling: Calling) {
        if let Ok(now) = now() {
            self.engine.answered(&self.host, now, calling, None);
        }
    }
}
