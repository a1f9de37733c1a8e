//! The state that all streams of an engine share.

use std::time::Duration;

use crate::beside::Beside;
use crate::classify::RequestView as _;
use crate::config::{ConfigError, Direction};
use crate::deadline;
use crate::decision::{Action, Decision, Ticket};
use crate::engine::{Engine, Prepared};
use crate::host::{Host, HostError};
use crate::refusal::Refusal;
use crate::rng::Rng;
use crate::stage::{Outcome, Upstream};
use crate::strategy::hint;
use crate::time::Instant;

use super::headers::Headers;
use super::inbound::Asked;
use super::listeners::Listeners;
use super::{Level, LocalReply, Property, Proxy, Stream, answer};

/// Failing host calls are logged at most this often.
const COMPLAIN: Duration = Duration::from_secs(10);

/// The request header with the quality that the application should deliver: 1.00 is full.
const QUALITY: &str = "x-headgate-quality";

/// The header of a gRPC status: in the trailers, or in the headers of an answer that has nothing
/// else.
const GRPC_STATUS: &str = "grpc-status";

/// Returns the host of a stream, if it has one.
fn upstream(stream: &impl Stream) -> Option<Upstream> {
    let address = stream.property(Property::UpstreamAddress).ok()??;
    (!address.is_empty()).then(|| Upstream::at(&address))
}

/// An engine, its host, and the rules for requests and responses.
///
/// `B` is the behaviour beside the engine's stages. After each call the caller carries out
/// [`Filter::actions`].
#[derive(Debug)]
pub struct Filter<H, B = ()> {
    pub(super) host: H,
    pub(super) engine: Engine<B>,
    rng: Rng,
    pub(super) actions: Vec<Action>,
    pub(super) listeners: Listeners,
    configured: bool,
    complained: Option<Instant>,
    /// The time of the last request or end of a request for which the clock could be read.
    last: Instant,
}

impl<H: Host, B: Beside> Filter<H, B> {
    /// A filter without configuration: every request passes by. `seed` differs between the engines
    /// of a process.
    pub fn new(host: H, seed: u64) -> Self {
        Self {
            host,
            engine: Engine::new(seed),
            rng: Rng::new(seed.rotate_left(32)),
            actions: Vec::new(),
            listeners: Listeners::default(),
            configured: false,
            complained: None,
            last: Instant::default(),
        }
    }

    /// The host.
    pub fn host(&self) -> &H {
        &self.host
    }

    /// The engine.
    pub fn engine(&self) -> &Engine<B> {
        &self.engine
    }

    /// The host, the engine, and the pending actions ([`Filter::actions`]).
    pub fn parts(&mut self) -> (&H, &mut Engine<B>, &mut Vec<Action>) {
        (&self.host, &mut self.engine, &mut self.actions)
    }

    /// The proxy's configurations.
    pub fn listeners(&self) -> &Listeners {
        &self.listeners
    }

    /// The policies of the proxy's configurations and of requests under way. A host may forget the
    /// metrics of others: nothing here has their ids.
    pub fn policies(&self) -> impl Iterator<Item = &str> {
        self.listeners.policies().chain(self.engine.policies())
    }

    /// The time of the last request or end of a request.
    pub fn last(&self) -> Instant {
        self.last
    }

    /// Returns the pending actions for held requests, oldest first; the caller takes them out.
    ///
    /// For an [`Action::Resume`] it calls [`Filter::resume`] with the request's stream and lets the
    /// request go on. For an [`Action::Refuse`] it answers with [`Filter::reply`]. For an
    /// [`Action::Send`] it sends the call of the stream, by what is beside the engine's stages.
    pub fn actions(&mut self) -> &mut Vec<Action> {
        &mut self.actions
    }

    /// As [`Filter::take_over`], with a configuration of the control plane.
    ///
    /// # Errors
    /// [`ConfigError`] with the field at fault.
    pub fn configure(
        &mut self,
        proxy: &impl Proxy,
        now: Instant,
        (id, name): (u32, &str),
        json: &[u8],
    ) -> Result<(), ConfigError> {
        let prepared = Prepared::from_json(&self.host, json);
        self.take_over(proxy, now, (id, name), prepared)
    }

    /// Takes configuration `id` over, which is for `name`, and logs which. On error, nothing: the
    /// last good one stays, and `id` is unknown unless the caller says that it was
    /// [`Filter::refused`]. Configurations of one name follow each other; those of different names
    /// are in force side by side, each for the streams that say so ([`Stream::listener`]).
    ///
    /// # Errors
    /// [`ConfigError`]: that of `prepared`, or of the host.
    pub fn take_over(
        &mut self,
        proxy: &impl Proxy,
        now: Instant,
        (id, name): (u32, &str),
        prepared: Result<Prepared, ConfigError>,
    ) -> Result<(), ConfigError> {
        let applied = prepared.and_then(|prepared| {
            let direction = prepared.config.direction;
            let mut listeners = self.listeners.clone();
            listeners.configured((id, name), prepared);
            self.apply(proxy, now, &listeners, direction)?;
            self.listeners = listeners;
            Ok(())
        });
        if let Err(error) = &applied {
            self.tell_refused(proxy, error);
        }
        applied
    }

    /// Makes the configurations that are in force by `listeners` those of the engine.
    fn apply(
        &mut self,
        proxy: &impl Proxy,
        now: Instant,
        listeners: &Listeners,
        direction: Direction,
    ) -> Result<(), ConfigError> {
        let in_force = listeners.in_force(direction);
        let in_force: Vec<(&str, &Prepared)> = in_force
            .iter()
            .map(|(name, prepared)| (*name, &***prepared))
            .collect();
        let Some((_, Prepared { config, .. })) = in_force.last() else {
            return Ok(());
        };
        let (engine, actions) = (&mut self.engine, &mut self.actions);
        match direction {
            Direction::Inbound => engine.listen(&self.host, now, &in_force, actions)?,
            Direction::Outbound => engine.call_by(&self.host, config)?,
        }
        self.configured = true;
        let (revision, stages) = (&config.revision, config.stages.len());
        let what = match &config.outbound {
            Some(outbound) => format!("calls of {}", outbound.policy),
            None => format!("{stages} policies"),
        };
        let message = format!("headgate: revision {revision:?}, {what}");
        proxy.log(Level::Info, &message);
        Ok(())
    }

    fn tell_refused(&self, proxy: &impl Proxy, error: &ConfigError) {
        let kept = if self.configured {
            "; the last good one stays"
        } else {
            ""
        };
        let message = format!("headgate: configuration refused: {error}{kept}");
        proxy.log(Level::Error, &message);
    }

    /// The proxy keeps the listener of configuration `id` for `name`, which was refused.
    pub fn refused(&mut self, (id, name): (u32, &str), direction: Direction) {
        self.listeners.refused((id, name), direction);
    }

    /// Removes configuration `id`: after its last stream, or because the proxy's update failed
    /// elsewhere. The newest remaining one of its name is then in force. With the last one for
    /// requests the filter leaves the process, if no request is under way.
    pub fn gone(&mut self, proxy: &impl Proxy, id: u32) {
        let mut left = self.listeners.clone();
        let Some(direction) = left.gone(id) else {
            return;
        };
        let before = std::mem::replace(&mut self.listeners, left.clone());
        if left.newest(direction).is_none() {
            match direction {
                Direction::Inbound => self.leave(proxy),
                Direction::Outbound => self.engine.forget_calls(),
            }
        } else if left.configs(direction) != before.configs(direction) {
            self.apply_again(proxy, direction);
        }
    }

    /// Applies the configurations in force to the engine. They were taken over before, so only the
    /// host may refuse.
    fn apply_again(&mut self, proxy: &impl Proxy, direction: Direction) {
        let now = match proxy.now() {
            Ok(now) => now,
            Err(error) => return self.complain(proxy, &error),
        };
        let listeners = self.listeners.clone();
        if let Err(error) = self.apply(proxy, now, &listeners, direction) {
            self.tell_refused(proxy, &error);
        }
    }

    /// As [`Filter::gone`], for a filter whose engine failed: [`Filter::restart`] must not find it.
    pub fn forget(&mut self, id: u32) {
        self.listeners.gone(id);
    }

    /// Whether a configuration was ever taken over.
    pub fn is_configured(&self) -> bool {
        self.configured
    }

    /// Joins the process now rather than with the first request.
    pub fn join(&mut self, proxy: &impl Proxy) {
        if self.engine.worker().is_some() {
            return;
        }
        let joined = proxy
            .now()
            .and_then(|now| self.engine.join(&self.host, now, &mut self.actions));
        self.check(proxy, joined);
    }

    /// Starts over on the same host after the engine panicked. The old engine may be inconsistent,
    /// so none of its state is reused. The new engine takes over the configurations in force, joins
    /// the process, and gives back the old one's bookings. It doesn't know the old one's requests:
    /// the caller lets them go on and doesn't report their ends. `seed` must differ from the
    /// previous one.
    pub fn restart(&mut self, proxy: &impl Proxy, seed: u64) {
        let failed = self.engine.worker();
        self.engine = Engine::new(seed);
        self.rng = Rng::new(seed.rotate_left(32));
        self.actions.clear();
        self.configured = false;
        let now = match proxy.now() {
            Ok(now) => now,
            Err(error) => return self.complain(proxy, &error),
        };
        for direction in [Direction::Inbound, Direction::Outbound] {
            self.apply_again(proxy, direction);
        }
        self.join(proxy);
        if let Some(failed) = failed {
            let buried = self.engine.bury(&self.host, now, failed, &mut self.actions);
            self.check(proxy, buried);
        }
    }

    /// Leaves the process, if no request is under way: ticks come no more.
    fn leave(&mut self, proxy: &impl Proxy) {
        let beside = self.engine.beside_mut();
        beside.send_calls(None, &mut self.actions);
        let left = proxy
            .now()
            .and_then(|now| self.engine.leave(&self.host, now));
        self.check(proxy, left);
    }

    /// Point 1: request headers. Records in `asked` the properties of the request that its response
    /// depends on.
    pub(super) fn request<S: Stream>(
        &mut self,
        stream: &S,
        headers: Result<Headers<'_, S>, HostError>,
        asked: &mut Asked,
    ) -> Decision {
        let decision = headers.and_then(|headers| self.decide(stream, headers, asked));
        decision.unwrap_or_else(|error| {
            self.complain(stream, &error);
            Decision::PassBy
        })
    }

    fn decide<S: Stream>(
        &mut self,
        stream: &S,
        mut headers: Headers<'_, S>,
        asked: &mut Asked,
    ) -> Result<Decision, HostError> {
        if self.engine.degrades() && headers.any_of_ours() && headers.header(QUALITY).is_some() {
            // For any decision: only Headgate may set qualities, no client.
            let removed = stream.remove_request_header(QUALITY.as_bytes());
            self.check(stream, removed);
        }
        let now = stream.now()?;
        self.last = now;
        let standing = B::standing(self, &mut headers);
        asked.upgrade = headers.upgrade();
        asked.by_peer = standing.by_peer;
        let own_deadline = if headers.has_timeout() {
            deadline::own_deadline(&headers)
        } else {
            None
        };
        let decision = self.engine.arrive(
            &self.host,
            now,
            stream.id(),
            &headers,
            own_deadline,
            &mut self.actions,
        );
        if standing.strip && !matches!(decision, Ok(Decision::Refuse(_))) {
            B::strip(self, stream, &headers);
        }
        let decision = decision?;
        match decision {
            Decision::PassBy | Decision::Refuse(_) => {}
            Decision::Forward(ticket) => {
                self.tell_quality(stream, ticket);
                B::goes_on(self, stream, ticket, Some(&headers));
            }
            Decision::Hold(ticket) => self.tell_quality(stream, ticket),
        }
        Ok(decision)
    }

    /// Sets the header with the quality for the application.
    fn tell_quality(&mut self, stream: &impl Stream, ticket: Ticket) {
        if let Some(quality) = self.engine.quality(ticket) {
            let told = stream.set_request_header(QUALITY, format!("{quality:.2}").as_bytes());
            self.check(stream, told);
        }
    }

    /// Prepares the headers of a held request for the application when it goes on.
    pub fn resume(&mut self, stream: &impl Stream, ticket: Ticket) {
        B::goes_on(self, stream, ticket, None);
    }

    /// Returns the requests, with their streams, that [`Filter::look`] is to be called for after a
    /// tick; the caller takes them out.
    pub fn suspects(&mut self) -> &mut Vec<(Ticket, u32)> {
        self.engine.suspects()
    }

    /// Reads the host of the request of `ticket`, which is that of `stream`.
    pub fn look(&mut self, stream: &impl Stream, ticket: Ticket) {
        if let (Ok(now), Some(upstream)) = (stream.now(), upstream(stream)) {
            let looked =
                (self.engine).at_host(&self.host, now, ticket, upstream, &mut self.actions);
            self.check(stream, looked);
        }
    }

    /// Reads the host that answered the request of `ticket`, while hosts are watched.
    pub(super) fn answered_by(&mut self, stream: &impl Stream, ticket: Ticket) {
        if let (Ok(now), Some(upstream)) = (stream.now(), upstream(stream)) {
            let noted = (self.engine).answered_by(&self.host, now, ticket, upstream);
            self.check(stream, noted);
        }
    }

    /// Point 3: the request of `ticket`, which is that of `stream`, ended.
    pub(super) fn finish(&mut self, stream: &impl Stream, ticket: Ticket, outcome: Outcome) {
        // A slot comes back even if the clock fails; the times of such a request are wrong, so it
        // isn't measured.
        let (now, outcome) = match stream.now() {
            Ok(now) => (now, outcome),
            Err(error) => {
                self.complain(stream, &error);
                (self.last, Outcome::Unmeasured)
            }
        };
        self.last = now;
        let done = self
            .engine
            .finish(&self.host, now, ticket, outcome, &mut self.actions);
        self.check(stream, done);
    }

    /// Ends the processing time of the request of `ticket` at the first byte of its response's
    /// body; its slot stays held. Returns the outcome for the end of the response.
    pub(super) fn first_byte(
        &mut self,
        stream: &impl Stream,
        ticket: Ticket,
        outcome: Outcome,
    ) -> Outcome {
        match stream.now() {
            Ok(now) => {
                let done = self.engine.first_byte(&self.host, now, ticket, outcome);
                self.check(stream, done);
                outcome
            }
            Err(error) => {
                self.complain(stream, &error);
                Outcome::Unmeasured
            }
        }
    }

    /// Sets the rejection rate on the response to the request of `ticket`, if its policy announces
    /// it.
    pub(super) fn hint(&mut self, stream: &impl Stream, ticket: Ticket) {
        if let Some(rate) = self.engine.rejection_rate(ticket.policy) {
            // The backend's own header, if any, is about another queue than ours.
            let set = stream.set_response_header(hint::HEADER, hint::value(rate).as_bytes());
            self.check(stream, set);
        }
    }

    /// Returns the outcome of the request of `ticket` by the headers of the backend's answer.
    /// `alone` means that nothing comes after them; gRPC then has its status there.
    pub(super) fn judge(&self, stream: &impl Stream, ticket: Ticket, alone: bool) -> Outcome {
        let Some(errors) = self.engine.errors(ticket) else {
            return Outcome::Completed;
        };
        let header = |name| stream.response_header(name).ok().flatten();
        match answer::of_status(header(":status").as_deref(), errors) {
            Outcome::Completed if alone => {
                answer::of_grpc_status(header(GRPC_STATUS).as_deref(), errors)
            }
            outcome => outcome,
        }
    }

    /// Returns the outcome of the request of `ticket` by the trailers of the backend's answer.
    pub(super) fn judge_trailers(&self, stream: &impl Stream, ticket: Ticket) -> Outcome {
        let Some(errors) = self.engine.errors(ticket) else {
            return Outcome::Completed;
        };
        let status = stream.response_trailer(GRPC_STATUS).ok().flatten();
        answer::of_grpc_status(status.as_deref(), errors)
    }

    /// Another worker left a slot to us.
    pub fn woken(&mut self, proxy: &impl Proxy) {
        let done = proxy
            .now()
            .and_then(|now| self.engine.woken(&self.host, now, &mut self.actions));
        self.check(proxy, done);
    }

    /// Housekeeping, as often as the engine asks for it.
    pub fn tick(&mut self, proxy: &impl Proxy) {
        let done = proxy
            .now()
            .and_then(|now| self.engine.tick(&self.host, now, &mut self.actions));
        self.check(proxy, done);
    }

    /// Returns a refusal as a response, with the headers for clients.
    pub fn reply(&mut self, refusal: &Refusal) -> LocalReply {
        let mut announced = None;
        self.engine.beside_mut().announce(refusal, |name, value| {
            announced = Some((name, value.to_owned()));
        });
        let hint = self.engine.rejection_rate(refusal.policy).map(hint::value);
        let hint = hint.map(|rate| (hint::HEADER, rate));
        let told = hint.into_iter().chain(announced);
        let words = self.engine.words(refusal);
        LocalReply::new(words, refusal, told, &mut self.rng)
    }

    /// As [`Filter::complain`], unless it succeeded.
    pub fn check(&mut self, proxy: &impl Proxy, done: Result<(), HostError>) {
        if let Err(error) = done {
            self.complain(proxy, &error);
        }
    }

    /// Logs a host call that failed, now and then.
    pub fn complain(&mut self, proxy: &impl Proxy, error: &HostError) {
        let now = proxy.now().unwrap_or_default();
        if self.complained.is_none_or(|at| now.since(at) >= COMPLAIN) {
            self.complained = Some(now);
            let effect = match error {
                HostError::HotRestart => "the limit is wrong",
                HostError::Conflict | HostError::Call { .. } => "requests pass unmanaged",
            };
            let message = format!("headgate: {error}; {effect} while it lasts");
            proxy.log(Level::Warn, &message);
        }
    }
}
