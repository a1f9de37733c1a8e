//! The handling of one request, from its headers to the end of its response, however it ends.

use headgate_strategies::host::HostError;

use crate::decision::{Decision, Ticket};
use crate::host::Host;
use crate::stage::{Outcome, Stage};

use super::filter::{Asked, upstream};
use super::headers::Headers;
use super::tokens::Tokens;
use super::{BesideHttp, Filter, Map, Property, Stream, answer};

/// One request to the process behind the proxy.
#[derive(Debug, Default)]
pub struct Inbound {
    /// The request's ticket, until it ends.
    ticket: Option<Ticket>,
    asked: Asked,
    /// Whether the request's body hasn't ended.
    uploads: bool,
    /// The outcome to report at the end of the response.
    outcome: Outcome,
    /// Whether the response is known to come from the backend.
    from_backend: bool,
    /// Whether the first byte of the response's body must be reported and hasn't arrived yet.
    awaits_first_byte: bool,
    /// The tokens of the response, if they are counted.
    tokens: Option<Tokens>,
}

/// Returns the response code details, which show which side answered or ended the request.
fn details(stream: &impl Stream) -> Option<Vec<u8>> {
    stream.property(Property::ResponseCodeDetails).ok()?
}

impl Inbound {
    /// Whether the request waits or runs.
    pub fn is_pending(&self) -> bool {
        self.ticket.is_some()
    }

    /// Decides on the request when its headers arrive. The caller then continues the request, holds
    /// it, or calls [`Filter::refuse`].
    pub fn request_headers(
        &mut self,
        filter: &mut Filter<impl Host, impl BesideHttp>,
        stream: &impl Stream,
    ) -> Decision {
        if filter.engine.is_idle() {
            return Decision::PassBy;
        }
        self.request(filter, stream, Headers::of_request(stream))
    }

    /// Decides like [`Inbound::request_headers`], with headers that the caller read before it
    /// locked the filter.
    pub fn request<S: Stream>(
        &mut self,
        filter: &mut Filter<impl Host, impl BesideHttp>,
        stream: &S,
        headers: Result<Headers<'_, S>, HostError>,
    ) -> Decision {
        if filter.engine.is_idle() {
            return Decision::PassBy;
        }
        let decision = headers.and_then(|of| filter.decide(stream, of, &mut self.asked));
        let decision = decision.unwrap_or_else(|error| {
            filter.complain(stream, &error);
            Decision::PassBy
        });
        if let Decision::Forward(ticket) | Decision::Hold(ticket) = decision {
            self.ticket = Some(ticket);
        }
        decision
    }

    /// Records that the request's body follows its headers. The caller calls
    /// [`Inbound::request_end`] when it has ended.
    pub fn body_follows(&mut self, filter: &mut Filter<impl Host, impl BesideHttp>) {
        // An upgrade is answered before the client sends more.
        let ticket = self.ticket.filter(|_| self.asked.upgrade.is_none());
        if let Some(ticket) = ticket {
            self.uploads = true;
            if let Some(stage) = filter.engine.stage_mut(ticket.policy) {
                stage.body_follows(ticket);
            }
        }
    }

    /// Whether the caller must call [`Inbound::request_end`] when the request's body has ended.
    pub fn awaits_request_end(&self) -> bool {
        self.uploads && self.is_pending()
    }

    /// Handles the end of the request's body, or its trailers.
    pub fn request_end(
        &mut self,
        filter: &mut Filter<impl Host, impl BesideHttp>,
        stream: &impl Stream,
    ) {
        self.uploads = false;
        if let Some(ticket) = self.ticket {
            filter.sent(stream, ticket);
        }
    }

    /// Handles the response's headers.
    pub fn response_headers<B: BesideHttp>(
        &mut self,
        filter: &mut Filter<impl Host, B>,
        stream: &impl Stream,
        end_of_stream: bool,
    ) {
        let Some(ticket) = self.ticket else {
            return;
        };
        if filter.has_left(ticket) {
            // This response is the answer to a refused request, or the answer of another backend.
            self.ticket = None;
            return;
        }
        // Call `answers` before Headgate's own headers overwrite the headers of the process behind
        // a gateway.
        B::answers(filter, stream, ticket, self.asked.by_peer);
        filter.hint(stream, ticket);
        let stage = filter.engine.stage(ticket.policy);
        self.awaits_first_byte = stage.is_some();
        let counts_tokens = stage.is_some_and(|stage| stage.counts_tokens(ticket));
        let is_answer = || answer::of_details(details(stream).as_deref()) == Outcome::Completed;
        if stage.is_some_and(Stage::watches_hosts) && is_answer() {
            filter.answered_by(stream, ticket);
        }
        let stage = filter.engine.stage(ticket.policy);
        if stage.is_some_and(|stage| !stage.wants_answer(ticket)) {
            self.outcome = Outcome::Unsampled;
        } else {
            self.outcome = answer::of_response(details(stream).as_deref(), self.uploads);
            if self.outcome == Outcome::Completed {
                self.outcome = filter.judge(stream, ticket, end_of_stream);
                self.from_backend = true;
            }
        }
        let answered = matches!(self.outcome, Outcome::Completed | Outcome::Unsampled);
        // The body of an error isn't output.
        let is_success = || {
            let status = stream.header(Map::Response, ":status").ok().flatten();
            status.is_some_and(|status| status.starts_with(b"2"))
        };
        if counts_tokens && answered && is_success() {
            self.tokens = Some(Tokens::of_response(stream));
        }
        // The backend no longer works on a request that Envoy answers itself.
        let local = self.outcome != Outcome::Unsampled && !self.from_backend;
        // After an upgrade, the rest of the connection doesn't belong to the request.
        let switched = self.asked.upgrade.is_some_and(|upgrade| {
            let status = stream.header(Map::Response, ":status").ok().flatten();
            status.is_some_and(|status| upgrade.happened(&status))
        });
        if end_of_stream || local || switched {
            self.finish(filter, stream, self.outcome);
        }
    }

    /// Whether the caller must call [`Inbound::response_part`] when a part of the response's body
    /// arrives.
    pub fn awaits_part(&self) -> bool {
        (self.awaits_first_byte || self.tokens.is_some()) && self.is_pending()
    }

    /// Handles a part of the response's body that is neither the last part nor empty.
    pub fn response_part(
        &mut self,
        filter: &mut Filter<impl Host, impl BesideHttp>,
        stream: &impl Stream,
    ) {
        self.count_tokens(filter, stream);
        let Some(ticket) = self.ticket.filter(|_| self.awaits_first_byte) else {
            return;
        };
        self.awaits_first_byte = false;
        let stage = filter.engine.stage(ticket.policy);
        if stage.is_some_and(|stage| stage.releases_at_first_byte(ticket)) {
            self.finish(filter, stream, self.outcome);
        } else {
            self.outcome = filter.first_byte(stream, ticket, self.outcome);
        }
    }

    fn count_tokens(
        &mut self,
        filter: &mut Filter<impl Host, impl BesideHttp>,
        stream: &impl Stream,
    ) {
        let Some(tokens) = &mut self.tokens else {
            return;
        };
        if let Err(error) = tokens.read(stream) {
            self.tokens = None;
            filter.complain(stream, &error);
        } else if let Some(ticket) = self.ticket {
            filter.grows(stream, ticket, tokens);
        }
    }

    /// Handles the last part of the body of a response without trailers. The part may be empty.
    pub fn response_end(
        &mut self,
        filter: &mut Filter<impl Host, impl BesideHttp>,
        stream: &impl Stream,
    ) {
        self.count_tokens(filter, stream);
        self.finish(filter, stream, self.outcome);
    }

    /// Handles the response's trailers.
    pub fn response_trailers(
        &mut self,
        filter: &mut Filter<impl Host, impl BesideHttp>,
        stream: &impl Stream,
    ) {
        if let Some(ticket) = self.ticket
            && self.outcome == Outcome::Completed
        {
            self.outcome = filter.judge_trailers(stream, ticket);
        }
        self.finish(filter, stream, self.outcome);
    }

    /// Records the end of the stream. The end comes after the response, or earlier if the client
    /// left or the backend failed. A second call has no effect.
    pub fn done<B: BesideHttp>(&mut self, filter: &mut Filter<impl Host, B>, stream: &impl Stream) {
        B::ends(filter, stream);
        if self.ticket.is_some() {
            let details = details(stream);
            let outcome = match details.as_deref() {
                // The backend answered with a redirect that Envoy follows itself, on a new stream.
                // Without a host, another filter has replaced the stream.
                Some(b"internal_redirect") if upstream(stream).is_some() => self.outcome,
                // `custom_response` in front of this filter has replaced the response, and left the
                // details empty. Wasm's calls don't return an empty text.
                None | Some(b"") if self.from_backend || self.outcome == Outcome::Unsampled => {
                    self.outcome
                }
                // The response is incomplete, because the backend aborted it or the client left.
                details => answer::of_end(details),
            };
            self.finish(filter, stream, outcome);
        }
    }

    fn finish(
        &mut self,
        filter: &mut Filter<impl Host, impl BesideHttp>,
        stream: &impl Stream,
        outcome: Outcome,
    ) {
        if let Some(ticket) = self.ticket.take() {
            filter.finish(stream, ticket, outcome, self.tokens.as_ref());
        }
    }
}
