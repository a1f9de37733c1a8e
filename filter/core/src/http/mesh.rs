//! Workflows and class admission: reading and writing Headgate's headers of requests, calls and
//! responses.
//!
//! Reading and writing headers dominates the cost here. So a header is only read or removed if the
//! map of the request's headers shows that it is present.

use crate::config::{Direction, ResourceReport};
use crate::decision::Ticket;
use crate::engine::{Calling, Reply};
use crate::host::{Host, HostError};
use crate::refusal::Reason;
use crate::stage::Outcome;
use crate::strategy::hint;
use crate::workflows::{Token, resource, wire};

use super::headers::{Headers, Response};
use super::outbound::Called;
use super::reply::REFUSED;
use super::{Filter, Property, Stream, answer};

/// The origin of a request's Headgate headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// No headers, or ones that the application may see: they stay as they are.
    Plain,
    /// Headers of a trusted sidecar, or hidden ones of an untrusted client. They must be removed.
    Mesh,
}

impl<H: Host> Filter<H> {
    /// Returns the origin of a request's Headgate headers. Those of an untrusted client are hidden
    /// from all later rules.
    pub(super) fn standing(&self, headers: &mut Headers<'_, impl Stream>) -> Standing {
        let speaks = || headers.any_of_ours() || headers.token_in_baggage().is_some();
        if !(self.workflows || self.classes) || !speaks() {
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

    /// Removes Headgate's headers from a request before the application sees it.
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

    /// Sets the token for the application's calls when the request of `stream` goes on; at a
    /// gateway the request is the call. Without `headers` they are read again, since those of a
    /// held request are gone.
    pub(super) fn hand_on<S: Stream>(
        &mut self,
        stream: &S,
        ticket: Ticket,
        headers: Option<&Headers<'_, S>>,
    ) {
        let token = match self.workflows {
            true => self.engine.token(ticket),
            false => None,
        };
        let is_call = self.engine.is_gateway() && (token.is_some() || self.engine.admits_calls());
        if token.is_none() && !is_call {
            return;
        }
        let told = (|| {
            let read;
            let headers = match headers {
                Some(headers) => headers,
                None => {
                    read = Headers::of_request(stream)?;
                    &read
                }
            };
            if is_call {
                return self.forward(stream, headers, token.as_ref());
            }
            let Some(token) = &token else { return Ok(()) };
            stream.set_request_header(wire::REQUEST, token.as_bytes())?;
            if headers.baggage_with(token.as_bytes(), &mut self.baggage) {
                stream.set_request_header(wire::BAGGAGE, &self.baggage)?;
            }
            Ok(())
        })();
        self.check(stream, told);
    }

    /// Makes the request of `stream` the gateway's call.
    fn forward<S: Stream>(
        &mut self,
        stream: &S,
        headers: &Headers<'_, S>,
        token: Option<&Token>,
    ) -> Result<(), HostError> {
        let cluster = stream.property(Property::ClusterName)?.unwrap_or_default();
        let cluster = String::from_utf8_lossy(&cluster);
        let mut told: Result<(), HostError> = Ok(());
        let set = |name: &'static str, value: &str| {
            let set = stream.set_request_header(name, value.as_bytes());
            told = std::mem::replace(&mut told, Ok(())).and(set);
        };
        let call = (headers, token.map(Token::as_bytes));
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

    /// Handles the begin of the response to a call that was held, or to a request that a gateway
    /// forwarded.
    pub(super) fn forwarded_answered(&mut self, stream: &impl Stream) {
        if let Some(calling) = self.forwarded.remove(&stream.id()) {
            self.answered(stream, calling);
        }
    }

    /// Records the end of a request that a gateway may have forwarded; if it wasn't answered by
    /// then, it is lost.
    pub(super) fn forwarded_ended(&mut self, stream: &impl Stream) {
        if let Some(calling) = self.forwarded.remove(&stream.id()) {
            self.unanswered(stream, calling);
        }
    }

    /// Records the end of a call that may still have been delayed.
    pub(super) fn held_ended(&mut self, stream: &impl Stream) {
        self.engine.forget_call(stream.id());
        self.forwarded_ended(stream);
    }

    /// Announces the rate to the sender when the backend's response to the request of `ticket`
    /// begins, and records the request's use of the second resource. `peer` means that the sender
    /// named itself and is trusted.
    pub(super) fn answer(&mut self, stream: &impl Stream, ticket: Ticket, peer: bool) {
        let has_workflow = self.engine.has_workflow(ticket);
        if !has_workflow && !peer {
            return;
        }
        let Ok(now) = stream.now() else { return };
        let mut answer = None;
        if has_workflow {
            self.learn_use(stream, ticket);
            answer = self.engine.answer(&self.host, now, ticket);
        }
        let spent = match peer {
            true => self.engine.spent(now, ticket),
            false => None,
        };
        let mut told = Ok(());
        self.engine
            .tell(answer.as_ref(), spent.as_ref(), |name, value| {
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
    pub(super) fn call(&mut self, stream: &impl Stream) -> Called {
        self.called(stream, true)
    }

    /// Sends a call that was held.
    pub fn send(&mut self, stream: &impl Stream) {
        if let Called::Sent(Some(calling)) = self.called(stream, false) {
            self.forwarded.insert(stream.id(), calling);
        }
    }

    fn called(&mut self, stream: &impl Stream, may_wait: bool) -> Called {
        let matters = self.workflows && self.engine.has_outbound()
            || self.engine.admits_calls()
            || self.engine.smooths_calls();
        // Ticks, which send calls that wait, are those of a listener for requests. At a gateway the
        // request was its own call already.
        let served = self.listeners.newest(Direction::Inbound).is_some();
        if !matters || !served || self.engine.is_gateway() {
            return Called::Sent(None);
        }
        self.describe(stream, may_wait).unwrap_or_else(|error| {
            self.complain(stream, &error);
            Called::Sent(None)
        })
    }

    fn describe(&mut self, stream: &impl Stream, may_wait: bool) -> Result<Called, HostError> {
        let headers = Headers::of_request(stream)?;
        let cluster = stream.property(Property::ClusterName)?.unwrap_or_default();
        let cluster = String::from_utf8_lossy(&cluster);
        let now = stream.now()?;
        if may_wait && self.engine.smooths_calls() {
            let call = (stream.id(), &headers);
            let actions = &mut self.actions;
            match self.engine.delay(&self.host, now, call, &cluster, actions) {
                Ok(true) => return Ok(Called::Held),
                Ok(false) => {}
                Err(error) => self.complain(stream, &error),
            }
        }
        // Headers that the application copied from its own request, or made up. Only those set
        // below count.
        let mut told: Result<(), HostError> = Ok(());
        for name in headers.internal().take_while(|_| self.workflows) {
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
        if self.workflows && headers.token_in_baggage().is_some() {
            self.strip_baggage(stream, &headers);
        }
        calling.map(Called::Sent)
    }

    /// Handles the begin of the response to a call.
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
        let rejection = match self.engine.smooths_calls() {
            true => response.header(hint::HEADER),
            false => None,
        };
        let said = rate.is_some() || progress.is_some() || rejection.is_some();
        let peer = if said && self.engine.asks_who_answers() {
            stream.property(Property::UpstreamPeer).unwrap_or_default()
        } else {
            None
        };
        // At a gateway no application made the call.
        let downgraded = self.engine.downgraded(&calling);
        let downgraded = downgraded.filter(|_| !self.engine.is_gateway());
        let is_downgraded = downgraded.is_some();
        if let Some(class) = downgraded {
            let told = stream.set_response_header(wire::DOWNGRADED, class.as_bytes());
            self.check(stream, told);
        }
        let reply = Reply {
            rate,
            progress,
            rejection,
            peer: peer.as_deref().filter(|id| !id.is_empty()),
            failed: self.engine.admits_calls() && has_failed(stream, &response),
        };
        let heard = self.engine.answered(&self.host, now, calling, Some(&reply));
        self.check(stream, heard);
        // Headers that the called application copied from a call of its own.
        let copied = (!is_downgraded).then_some(wire::DOWNGRADED);
        // With this header, an application that delays its requests too would delay them twice.
        let obeyed = self.engine.delays_calls().then_some(hint::HEADER);
        let hidden = [wire::RATE, wire::PROGRESS].into_iter();
        for name in hidden.chain(copied).chain(obeyed) {
            if response.header(name).is_some() {
                let removed = stream.remove_response_header(name.as_bytes());
                self.check(stream, removed);
            }
        }
    }

    /// Records the end of a call without a response.
    pub(super) fn unanswered(&mut self, stream: &impl Stream, calling: Calling) {
        if let Ok(now) = stream.now() {
            let heard = self.engine.answered(&self.host, now, calling, None);
            self.check(stream, heard);
        }
    }
}

/// Whether the call was refused for lack of room or not answered in time. Not if it exceeded the
/// rate of its workflow. Not if it was served either: then the application passes on a refusal that
/// it received itself.
fn has_failed(stream: &impl Stream, response: &Response) -> bool {
    if response.header(wire::PROGRESS).is_some() {
        return false;
    }
    if let Some(refused) = response.header(REFUSED) {
        return !refused.ends_with(format!("reason={}", Reason::RateLimited).as_bytes());
    }
    let details = stream.property(Property::ResponseCodeDetails);
    answer::of_details(details.ok().flatten().as_deref()) == Outcome::Failed
}
