//! One stream, from its request headers to its end.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use headgate_core::config::Direction;
use headgate_core::decision::{Action, Decision, Refusal};
use headgate_core::http::{Headers, Inbound, Level, Map, Property, Proxy, Stream};
use headgate_mesh::{Engine, Filter, Outbound};
use headgate_strategies::host::HostError;
use headgate_strategies::time::Instant;

use crate::abi::{self, Envoy, Span};
use crate::process::{self, Configuration, Head};
use crate::shared::Host;

thread_local! {
    /// The streams of this worker whose requests wait or are in the backend. Another thread must
    /// not read these streams.
    static PENDING: RefCell<HashMap<u32, Envoy>> = RefCell::default();
}

/// Runs `f` on [`PENDING`], unless the thread ends.
fn with_pending(f: impl FnOnce(&mut HashMap<u32, Envoy>)) {
    let run =
        |all: &RefCell<HashMap<_, _>>| all.try_borrow_mut().map(|mut all| f(&mut all)).is_ok();
    PENDING.try_with(run).unwrap_or(false);
}

/// Reads, for the streams of this worker, the upstream hosts that the last tick requested.
pub(crate) fn look(filter: &mut Filter<Host>, now: Instant) {
    with_pending(|pending| {
        let mut at = 0;
        while let Some(&(ticket, id)) = filter.suspects().get(at) {
            let Some(&envoy) = pending.get(&id) else {
                at += 1;
                continue;
            };
            filter.suspects().swap_remove(at);
            let stream = Attached {
                id,
                now,
                listener: "",
                envoy: Some(envoy),
            };
            filter.look(&stream, ticket);
        }
    });
}

/// The stream of a hook, in the form that the filter uses. `envoy` is `None` after the end of the
/// stream.
struct Attached<'a> {
    id: u32,
    /// The time at which the hook started. With it, a request's time includes the wait for the
    /// lock.
    now: Instant,
    listener: &'a str,
    envoy: Option<Envoy>,
}

impl Attached<'_> {
    fn envoy(&self) -> Result<Envoy, HostError> {
        let (call, status) = ("use a stream that has ended", 0);
        self.envoy.ok_or(HostError::Call { call, status })
    }
}

impl Proxy for Attached<'_> {
    fn now(&self) -> Result<Instant, HostError> {
        Ok(self.now)
    }

    fn log(&self, level: Level, message: &str) {
        abi::log(level, message);
    }
}

impl Stream for Attached<'_> {
    fn id(&self) -> u32 {
        self.id
    }

    fn listener(&self) -> &str {
        self.listener
    }

    fn headers(&self, map: Map) -> Result<Vec<u8>, HostError> {
        Ok(self.envoy()?.headers(map))
    }

    fn header(&self, map: Map, name: &str) -> Result<Option<Vec<u8>>, HostError> {
        Ok(self.envoy()?.header(map, name))
    }

    fn response_body(&self, each: &mut dyn FnMut(&[u8])) -> Result<(), HostError> {
        self.envoy()?.response_body(each);
        Ok(())
    }

    fn set_header(&self, map: Map, name: &str, value: &[u8]) -> Result<(), HostError> {
        self.envoy()?.set_header(map, name.as_bytes(), Some(value))
    }

    fn remove_header(&self, map: Map, name: &[u8]) -> Result<(), HostError> {
        self.envoy()?.set_header(map, name, None)
    }

    fn clear_route_cache(&self) -> Result<(), HostError> {
        self.envoy()?.clear_route_cache();
        Ok(())
    }

    fn property(&self, property: Property<'_>) -> Result<Option<Vec<u8>>, HostError> {
        Ok(self.envoy()?.property(property))
    }
}

/// Panics in the hook that a request header names. This function is for builds that test panics.
#[cfg(feature = "trap")]
#[allow(clippy::panic)] // the purpose of the feature
fn trap(envoy: Envoy, hook: &str) {
    let wanted = envoy.header(Map::Request, "x-headgate-trap");
    if wanted.is_some_and(|wanted| wanted == hook.as_bytes()) {
        panic!("trapped on {hook}");
    }
}

#[cfg(not(feature = "trap"))]
fn trap(_envoy: Envoy, _hook: &str) {}

/// The span tag with the request's type.
const TYPE: &str = "headgate.type";
/// The span tag with the decision, [`ADMITTED`] or [`REFUSED`].
const DECISION: &str = "headgate.decision";
/// The span tag with the reason for a refusal.
const REASON: &str = "headgate.reason";
/// The span tag with the time for which the request was held, ms.
const QUEUE_WAIT: &str = "headgate.queue_wait_ms";
const ADMITTED: &str = "admitted";
const REFUSED: &str = "refused";

/// Tags the span with the decision on a held request, and with the time that the request waited.
fn tag_turn(span: Span, action: &Action, waited: Duration) {
    match action {
        Action::Resume { .. } => span.tag(DECISION, ADMITTED),
        Action::Refuse { refusal, .. } => {
            span.tag(DECISION, REFUSED);
            span.tag(REASON, &refusal.reason.to_string());
        }
        Action::Send { .. } => return,
    }
    span.tag(QUEUE_WAIT, &waited.as_millis().to_string());
}

/// Answers a refused request, or lets it continue to another route.
fn refuse(process: &mut process::Process, stream: &Attached<'_>, refusal: &Refusal) -> Head {
    let reply = process.filter.refuse(stream, refusal);
    reply.map_or(Head::Continue, Head::Reply)
}

/// The direction of a stream, with its state.
enum Side {
    Inbound(Inbound),
    Outbound(Outbound),
}

/// One stream. Its hooks run on its worker's thread. One hook runs inside another when Envoy sends
/// a local reply.
pub(crate) struct Request {
    id: u32,
    /// The name of the stream's configuration.
    listener: Arc<str>,
    /// The epoch of the stream's engine ([`process::Process::epoch`]).
    epoch: Cell<u32>,
    /// Whether the process keeps the request among those that it holds.
    held: Cell<bool>,
    /// The time since which the request is held, if Envoy traces the request.
    traced: Cell<Option<Instant>>,
    side: RefCell<Side>,
}

impl Request {
    pub(crate) fn new(configuration: &Configuration) -> Self {
        Self {
            id: process::next_stream(),
            listener: Arc::clone(configuration.name()),
            epoch: Cell::new(0),
            held: Cell::new(false),
            traced: Cell::new(None),
            side: RefCell::new(match configuration.direction() {
                Direction::Inbound => Side::Inbound(Inbound::default()),
                Direction::Outbound => Side::Outbound(Outbound::default()),
            }),
        }
    }

    fn attached(&self, envoy: impl Into<Option<Envoy>>) -> Attached<'_> {
        Attached {
            id: self.id,
            now: process::now(),
            listener: &self.listener,
            envoy: envoy.into(),
        }
    }

    /// Whether the filter needs the rest of the stream.
    fn is_pending(&self) -> bool {
        match self.side.try_borrow().as_deref() {
            Ok(Side::Inbound(inbound)) => inbound.is_pending(),
            Ok(Side::Outbound(outbound)) => outbound.is_pending(),
            Err(_) => false,
        }
    }

    pub(crate) fn request_headers(&self, envoy: Envoy, end_of_stream: bool) -> Head {
        let stream = self.attached(envoy);
        let Ok(mut side) = self.side.try_borrow_mut() else {
            return Head::Continue;
        };
        let decided = match &mut *side {
            Side::Inbound(inbound) => {
                // The headers are copied and parsed before the lock is taken, because that takes
                // time.
                let headers = Headers::of_request(&stream);
                let span = envoy.span();
                process::with(|process| {
                    self.epoch.set(process.epoch);
                    trap(envoy, "request");
                    let decision = inbound.request(&mut process.filter, &stream, headers);
                    if !end_of_stream {
                        inbound.body_follows(&mut process.filter);
                    }
                    if let Some(span) = span {
                        self.tag_decision(span, process.filter.engine(), &decision, stream.now);
                    }
                    match decision {
                        Decision::PassBy | Decision::Forward(_) => Head::Continue,
                        Decision::Hold(_) => {
                            self.hold(process, envoy);
                            Head::Hold
                        }
                        Decision::Refuse(refusal) => refuse(process, &stream, &refusal),
                    }
                })
            }
            Side::Outbound(outbound) => process::with(|process| {
                self.epoch.set(process.epoch);
                trap(envoy, "request");
                if outbound.request_headers(&mut process.filter, &stream) {
                    return Head::Continue;
                }
                self.hold(process, envoy);
                Head::Hold
            }),
        };
        if matches!(&*side, Side::Inbound(inbound) if inbound.is_pending()) {
            with_pending(|pending| {
                pending.insert(self.id, envoy);
            });
        }
        decided.unwrap_or(Head::Continue)
    }

    fn hold(&self, process: &mut process::Process, envoy: Envoy) {
        process.hold(self.id, envoy);
        self.held.set(true);
    }

    /// Makes the process forget a held request that ends, or that Envoy answers itself, as after a
    /// timeout. The engine may already have forgotten it.
    fn let_go(&self) {
        if self.held.take() {
            process::with(|process| process.forget(self.id));
        }
    }

    /// Tags the span with the decision at the request's arrival.
    fn tag_decision(&self, span: Span, engine: &Engine, decision: &Decision, now: Instant) {
        match decision {
            Decision::PassBy => {}
            Decision::Forward(ticket) => {
                span.tag(TYPE, engine.type_name(*ticket).unwrap_or_default());
                span.tag(DECISION, ADMITTED);
                span.tag(QUEUE_WAIT, "0");
            }
            Decision::Hold(ticket) => {
                span.tag(TYPE, engine.type_name(*ticket).unwrap_or_default());
                self.traced.set(Some(now));
            }
            Decision::Refuse(refusal) => {
                span.tag(TYPE, engine.words(refusal).kind);
                span.tag(DECISION, REFUSED);
                span.tag(REASON, &refusal.reason.to_string());
            }
        }
    }

    /// Handles the turn of a held request. Returns `None` if the request must wait longer.
    pub(crate) fn scheduled(&self, envoy: Envoy) -> Option<Head> {
        let stream = self.attached(envoy);
        let decided = process::with(|process| {
            // If the engine that held the request failed, no other engine would resume the request.
            if process.epoch != self.epoch.get() {
                return Some(Head::Continue);
            }
            trap(envoy, "scheduled");
            let action = process.decided(self.id)?;
            self.held.set(false);
            if let Some(since) = self.traced.get()
                && let Some(span) = envoy.span()
            {
                tag_turn(span, &action, stream.now.since(since));
            }
            match action {
                Action::Resume { ticket, .. } => {
                    process.filter.resume(&stream, ticket);
                    Some(Head::Continue)
                }
                Action::Refuse { refusal, .. } => Some(refuse(process, &stream, &refusal)),
                Action::Send { .. } => {
                    headgate_mesh::send(&mut process.filter, &stream);
                    Some(Head::Continue)
                }
            }
        });
        decided.unwrap_or(Some(Head::Continue))
    }

    /// Handles the end of the request's body, or its trailers.
    pub(crate) fn request_end(&self, envoy: Envoy) {
        if self.awaits(Inbound::awaits_request_end) {
            self.on_inbound(envoy, Inbound::request_end);
        }
    }

    pub(crate) fn response_headers(&self, envoy: Envoy, end_of_stream: bool) {
        let stream = self.attached(envoy);
        self.let_go();
        self.on(|side, process| {
            trap(envoy, "response");
            match side {
                Side::Inbound(inbound) => {
                    inbound.response_headers(&mut process.filter, &stream, end_of_stream);
                }
                Side::Outbound(outbound) => {
                    outbound.response_headers(&mut process.filter, &stream);
                }
            }
        });
    }

    /// Handles a part of the response's body other than the last.
    pub(crate) fn response_part(&self, envoy: Envoy) {
        if self.awaits(Inbound::awaits_part) && !envoy.is_body_empty() {
            self.on_inbound(envoy, Inbound::response_part);
        }
    }

    pub(crate) fn response_end(&self, envoy: Envoy) {
        self.on_inbound(envoy, Inbound::response_end);
    }

    pub(crate) fn response_trailers(&self, envoy: Envoy) {
        self.on_inbound(envoy, Inbound::response_trailers);
    }

    pub(crate) fn done(&self, envoy: Envoy) {
        self.end(&self.attached(envoy));
    }

    /// Handles the last hook. It ends the stream only if Envoy skipped the hook for the end of the
    /// stream.
    pub(crate) fn destroyed(&self) {
        self.end(&self.attached(None::<Envoy>));
    }

    fn end(&self, stream: &Attached<'_>) {
        with_pending(|pending| {
            pending.remove(&self.id);
        });
        self.let_go();
        self.on(|side, process| match side {
            Side::Inbound(inbound) => inbound.done(&mut process.filter, stream),
            Side::Outbound(outbound) => outbound.done(&mut process.filter, stream),
        });
    }

    /// Whether this is a request that awaits `what`.
    fn awaits(&self, what: fn(&Inbound) -> bool) -> bool {
        let side = self.side.try_borrow();
        matches!(side.as_deref(), Ok(Side::Inbound(inbound)) if what(inbound))
    }

    /// Runs `f` if this is a request, rather than a call.
    fn on_inbound<'a>(
        &'a self,
        envoy: Envoy,
        f: impl FnOnce(&mut Inbound, &mut Filter<Host>, &Attached<'a>),
    ) {
        let stream = self.attached(envoy);
        self.on(|side, process| {
            if let Side::Inbound(inbound) = side {
                f(inbound, &mut process.filter, &stream);
            }
        });
    }

    fn on(&self, f: impl FnOnce(&mut Side, &mut process::Process)) {
        if !self.is_pending() {
            return;
        }
        let Ok(mut side) = self.side.try_borrow_mut() else {
            return;
        };
        process::with(|process| {
            if process.epoch == self.epoch.get() {
                f(&mut side, process);
            }
        });
    }
}
