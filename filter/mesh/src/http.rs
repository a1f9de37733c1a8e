//! The HTTP side of workflows and class admission: Headgate's headers in requests, calls and
//! responses.
//!
//! Reading and writing headers dominates the cost. So a header is only read or removed if the map
//! of the request's headers contains the header.

mod headers;
mod outbound;
mod report;

use headgate_core::classify::RequestView as _;
use headgate_core::config::{Direction, ResourceReport};
use headgate_core::decision::{Refusal, Ticket};
use headgate_core::host::Host;
use headgate_core::http::{
    BY_RATE, BesideHttp, Headers, Map, Property, REFUSED, Standing, Stream, answer, header, values,
};
use headgate_core::stage::Outcome;
use headgate_strategies::host::HostError;
use headgate_strategies::reason::Reason;
use headgate_strategies::strategy::hint;
use headgate_strategies::time::Instant;

use crate::engine::{self, Calling, Reply};
use crate::workflows::{Token, baggage, resource, wire};
use crate::{Filter, Mesh};
use headers::{internal, token_in_baggage};

pub use outbound::Outbound;
pub use report::{report, reported};

fn mesh<H: Host>(filter: &mut Filter<H>) -> &mut Mesh {
    filter.parts().1.beside_mut()
}

impl BesideHttp for Mesh {
    fn announce(&mut self, refusal: &Refusal, mut set: impl FnMut(&'static str, &str)) {
        // Clients outside the mesh get no announcement.
        let workflows = self.workflows(refusal.policy);
        let workflows = workflows.filter(|_| refusal.origin.sender.is_some());
        let Some(said) = workflows.map(|workflows| workflows.announcement(refusal.origin)) else {
            return;
        };
        let value = &mut self.scratch.value;
        value.clear();
        wire::put_rate(value, &said);
        set(wire::RATE, value);
    }

    /// All later rules ignore the headers of an untrusted sender.
    fn standing<H: Host>(filter: &Filter<H>, headers: &mut Headers<'_, impl Stream>) -> Standing {
        let mesh = filter.engine().beside();
        let speaks = || headers.any_of_ours() || token_in_baggage(headers).is_some();
        if !(mesh.workflows || mesh.classes) || !speaks() {
            return Standing::default();
        }
        let trusted = engine::trusts(filter.engine(), headers);
        if trusted == Some(false) {
            headers.disown();
        }
        Standing {
            strip: trusted.is_some(),
            by_peer: mesh.classes && headers.header(wire::PROCESS).is_some(),
        }
    }

    fn strip<H: Host, S: Stream>(filter: &mut Filter<H>, stream: &S, headers: &Headers<'_, S>) {
        for name in internal(headers) {
            let removed = stream.remove_header(Map::Request, name);
            filter.check(stream, removed);
        }
        if token_in_baggage(headers).is_some() {
            strip_baggage(filter, stream, headers);
        }
    }

    /// Sets the token for the application's calls. At a gateway, the request itself becomes the
    /// call. If `headers` is `None`, the headers are read again, because the headers of a held
    /// request are not kept.
    fn goes_on<H: Host, S: Stream>(
        filter: &mut Filter<H>,
        stream: &S,
        ticket: Ticket,
        headers: Option<&Headers<'_, S>>,
    ) {
        let mesh = filter.engine().beside();
        let token = match mesh.workflows {
            true => engine::token(filter.engine(), ticket),
            false => None,
        };
        let is_call = mesh.is_gateway() && (token.is_some() || mesh.admits_calls());
        if token.is_none() && !is_call {
            return;
        }
        let set = (|| {
            let read;
            let headers = match headers {
                Some(headers) => headers,
                None => {
                    read = Headers::of_request(stream)?;
                    &read
                }
            };
            if is_call {
                let cluster = stream.property(Property::ClusterName)?.unwrap_or_default();
                let call = (headers, token.as_ref().map(Token::as_bytes), None);
                return begin(filter, stream, call, &String::from_utf8_lossy(&cluster));
            }
            let Some(token) = &token else { return Ok(()) };
            stream.set_header(Map::Request, wire::REQUEST, token.as_bytes())?;
            let out = &mut self::mesh(filter).scratch.baggage;
            if baggage::with_token(headers.values(wire::BAGGAGE), token.as_bytes(), out) {
                stream.set_header(Map::Request, wire::BAGGAGE, out)?;
            }
            Ok(())
        })();
        filter.check(stream, set);
    }

    /// Also sets the rate and the request's times as response headers for the sender, and records
    /// the request's use of the second resource.
    fn answers<H: Host>(
        filter: &mut Filter<H>,
        stream: &impl Stream,
        ticket: Ticket,
        by_peer: bool,
    ) {
        call_answered(filter, stream);
        let has_workflow = engine::has_workflow(filter.engine(), ticket);
        if !has_workflow && !by_peer {
            return;
        }
        let Ok(now) = stream.now() else { return };
        let mut answer = None;
        if has_workflow {
            learn_use(filter, stream, ticket);
            let (host, engine, _) = filter.parts();
            answer = engine::answer(engine, host, now, ticket);
        }
        let spent = match by_peer {
            true => engine::spent(filter.engine(), now, ticket),
            false => None,
        };
        let mut result = Ok(());
        let set = setter(&mut result, |name, value| {
            stream.set_header(Map::Response, name, value)
        });
        mesh(filter).write_answer(answer.as_ref(), spent.as_ref(), set);
        filter.check(stream, result);
    }

    fn ends<H: Host>(filter: &mut Filter<H>, stream: &impl Stream) {
        call_ended(filter, stream);
    }
}

fn learn_use(filter: &mut Filter<impl Host>, stream: &impl Stream, ticket: Ticket) {
    let used = match filter.engine().beside().resource_report(ticket) {
        None => return,
        Some(ResourceReport::Orca { metric }) => stream
            .header(Map::Response, resource::ORCA)
            .map(|value| value.and_then(|value| resource::orca(&value, metric))),
        Some(ResourceReport::ServerTiming { metric }) => stream.headers(Map::Response).map(|all| {
            values(&all, resource::SERVER_TIMING)
                .find_map(|value| resource::server_timing(value, metric))
        }),
    };
    match used {
        Ok(Some(amount)) => engine::resource_used(filter.parts().1, ticket, amount),
        Ok(None) => {}
        Err(error) => filter.complain(stream, &error),
    }
}

/// Removes tokens from the baggage.
fn strip_baggage<H: Host, S: Stream>(filter: &mut Filter<H>, stream: &S, headers: &Headers<'_, S>) {
    let out = &mut mesh(filter).scratch.baggage;
    baggage::without_token(headers.values(wire::BAGGAGE), out);
    let stripped = if out.is_empty() {
        stream.remove_header(Map::Request, wire::BAGGAGE.as_bytes())
    } else {
        stream.set_header(Map::Request, wire::BAGGAGE, out)
    };
    filter.check(stream, stripped);
}

/// Returns a function that sets headers by `set`, and keeps the first error in `result`.
fn setter(
    result: &mut Result<(), HostError>,
    set: impl Fn(&'static str, &[u8]) -> Result<(), HostError>,
) -> impl FnMut(&'static str, &str) {
    move |name, value| {
        let set = set(name, value.as_bytes());
        if result.is_ok() {
            *result = set;
        }
    }
}

/// Sets the headers of a call on `stream`, and keeps the call's state until the answer. `since` is
/// the time of the call's arrival if the call was delayed.
fn begin<H: Host, S: Stream>(
    filter: &mut Filter<H>,
    stream: &S,
    (headers, token, since): (&Headers<'_, S>, Option<&[u8]>, Option<Instant>),
    cluster: &str,
) -> Result<(), HostError> {
    let mut result = Ok(());
    let set = setter(&mut result, |name, value| {
        stream.set_header(Map::Request, name, value)
    });
    let now = stream.now()?;
    let call = (headers, token, since);
    let (host, engine, actions) = filter.parts();
    let calling = engine::call(engine, host, now, call, cluster, actions, set);
    filter.check(stream, result);
    if let Some(calling) = calling? {
        mesh(filter).calls.insert(stream.id(), calling);
    }
    Ok(())
}

/// Handles the start of the response to a call. If the call is still held for its delay, the proxy
/// has answered the call itself, such as after a timeout, and the call isn't sent.
pub(crate) fn call_answered(filter: &mut Filter<impl Host>, stream: &impl Stream) {
    let mesh = mesh(filter);
    mesh.forget_call(stream.id());
    if let Some(calling) = mesh.calls.remove(&stream.id()) {
        answered(filter, stream, calling);
    }
}

/// Records the end of a stream. If the stream has a call without an answer, the call counts as
/// unanswered.
pub(crate) fn call_ended(filter: &mut Filter<impl Host>, stream: &impl Stream) {
    let mesh = mesh(filter);
    mesh.forget_call(stream.id());
    if let Some(calling) = mesh.calls.remove(&stream.id()) {
        unanswered(filter, stream, calling);
    }
}

/// Sends a call that was held. Does nothing if the call has been answered or has ended.
pub fn send(filter: &mut Filter<impl Host>, stream: &impl Stream) {
    if let Some(since) = mesh(filter).held.take(stream.id()) {
        call(filter, stream, Some(since));
    }
}

/// Handles a call of the application on `stream`, at the call's arrival or after its delay. `since`
/// is the time of the arrival if the call was delayed. Returns false if the call is held.
fn call(filter: &mut Filter<impl Host>, stream: &impl Stream, since: Option<Instant>) -> bool {
    let mesh = filter.engine().beside();
    let matters =
        mesh.workflows && mesh.has_outbound() || mesh.admits_calls() || mesh.smooths_calls();
    // The ticks that send delayed calls need a listener for requests. At a gateway, the request was
    // itself the call.
    let served = filter.listeners().newest(Direction::Inbound).is_some();
    if !matters || !served || mesh.is_gateway() {
        return true;
    }
    delay_or_begin(filter, stream, since).unwrap_or_else(|error| {
        filter.complain(stream, &error);
        true
    })
}

/// Delays a call, or sets its headers and keeps its state. Returns false if the call is held.
fn delay_or_begin(
    filter: &mut Filter<impl Host>,
    stream: &impl Stream,
    since: Option<Instant>,
) -> Result<bool, HostError> {
    let headers = Headers::of_request(stream)?;
    let cluster = stream.property(Property::ClusterName)?.unwrap_or_default();
    let cluster = String::from_utf8_lossy(&cluster);
    let now = stream.now()?;
    let mesh = filter.engine().beside();
    let workflows = mesh.workflows;
    // The token may be in any of several `baggage` headers.
    let token = headers.header(wire::REQUEST);
    let token = token.or_else(|| token_in_baggage(&headers));
    if since.is_none() && mesh.smooths_calls() {
        let mut result = Ok(());
        let call = (stream.id(), &headers, token);
        let set = setter(&mut result, |name, value| {
            stream.set_header(Map::Request, name, value)
        });
        let (host, engine, actions) = filter.parts();
        let delayed = engine::delay(engine, host, now, call, &cluster, actions, set);
        filter.check(stream, result);
        match delayed {
            Ok(true) => return Ok(false),
            Ok(false) => {}
            Err(error) => filter.complain(stream, &error),
        }
    }
    // Remove the headers that the application copied from a request, or set itself. Only the
    // headers set below count.
    if workflows {
        Mesh::strip(filter, stream, &headers);
    }
    begin(filter, stream, (&headers, token, since), &cluster)?;
    Ok(true)
}

/// Reads the headers of the response to a call.
fn answered(filter: &mut Filter<impl Host>, stream: &impl Stream, calling: Calling) {
    let Ok(now) = stream.now() else { return };
    let response = match stream.headers(Map::Response) {
        Ok(response) => response,
        Err(error) => {
            filter.complain(stream, &error);
            return unanswered(filter, stream, calling);
        }
    };
    let mesh = filter.engine().beside();
    let (rate, progress) = (
        header(&response, wire::RATE),
        header(&response, wire::PROGRESS),
    );
    let rejection = match mesh.smooths_calls() {
        true => header(&response, hint::HEADER),
        false => None,
    };
    let said = rate.is_some() || progress.is_some() || rejection.is_some();
    let peer = if said && mesh.asks_who_answers() {
        stream.property(Property::UpstreamPeer).unwrap_or_default()
    } else {
        None
    };
    // At a gateway the call isn't the application's, so the header isn't set.
    let downgraded = mesh.downgraded(&calling);
    let downgraded = downgraded.filter(|_| !mesh.is_gateway());
    let is_downgraded = downgraded.is_some();
    let set = downgraded.map_or(Ok(()), |class| {
        stream.set_header(Map::Response, wire::DOWNGRADED, class.as_bytes())
    });
    let reply = Reply {
        rate,
        progress,
        rejection,
        peer: peer.as_deref().filter(|id| !id.is_empty()),
        outcome: mesh.admits_calls().then(|| outcome(stream, &response)),
    };
    // Remove this header from the answers to calls that are delayed here. Otherwise an application
    // that delays its own requests would delay them again.
    let obeyed = calling.is_delayed().then_some(hint::HEADER);
    filter.check(stream, set);
    let (host, engine, _) = filter.parts();
    let heard = engine
        .beside_mut()
        .answered(host, now, calling, Some(&reply));
    filter.check(stream, heard);
    // The called application may have copied this header from a call that it made.
    let copied = (!is_downgraded).then_some(wire::DOWNGRADED);
    let hidden = [wire::RATE, wire::PROGRESS].into_iter();
    for name in hidden.chain(copied).chain(obeyed) {
        if header(&response, name).is_some() {
            let removed = stream.remove_header(Map::Response, name.as_bytes());
            filter.check(stream, removed);
        }
    }
}

/// Records the end of a call without a response.
fn unanswered(filter: &mut Filter<impl Host>, stream: &impl Stream, calling: Calling) {
    if let Ok(now) = stream.now() {
        let (host, engine, _) = filter.parts();
        let heard = engine.beside_mut().answered(host, now, calling, None);
        filter.check(stream, heard);
    }
}

/// Returns [`Outcome::Failed`] for a call that was refused for lack of room or not answered in
/// time, and [`Outcome::Completed`] for an answer of the called application. A response with
/// progress comes from the application. A refusal in such a response was only passed on. A refusal
/// because of the workflow's rate is neither.
fn outcome(stream: &impl Stream, response: &[u8]) -> Outcome {
    if header(response, wire::PROGRESS).is_some() {
        return Outcome::Completed;
    }
    if let Some(refused) = header(response, REFUSED) {
        let limited = refused.ends_with(format!("reason={}", Reason::RateLimited).as_bytes());
        let mut members = refused.windows(BY_RATE.len());
        return match limited || members.any(|part| part == BY_RATE.as_bytes()) {
            true => Outcome::Unmeasured,
            false => Outcome::Failed,
        };
    }
    let details = stream.property(Property::ResponseCodeDetails);
    answer::of_details(details.ok().flatten().as_deref())
}

#[cfg(test)]
mod tests;
