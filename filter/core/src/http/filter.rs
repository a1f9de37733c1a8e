//! The filter, which is the state that all streams of an engine share.

use std::time::Duration;

use headgate_strategies::host::HostError;
use headgate_strategies::rng::Rng;
use headgate_strategies::strategy::hint;
use headgate_strategies::time::Instant;

use crate::classify::RequestView as _;
use crate::config::{ConfigError, Direction};
use crate::deadline;
use crate::decision::{Action, Decision, Refusal, Ticket};
use crate::engine::{Engine, Prepared};
use crate::host::Host;
use crate::requests::Upstream;
use crate::stage::{Outcome, Stage};

use super::headers::{Headers, Upgrade};
use super::listeners::Listeners;
use super::tokens::Tokens;
use super::{BesideHttp, Level, LocalReply, Map, Property, Proxy, Stream, answer};

/// Shortest time between two log lines about failing host calls.
const COMPLAIN: Duration = Duration::from_secs(10);

/// The request header with the quality that the application should deliver: 1.00 is full.
const QUALITY: &str = "x-headgate-quality";

/// The header with the gRPC status. It is in the trailers, or in the headers of a response that has
/// only headers.
const GRPC_STATUS: &str = "grpc-status";

/// Returns the upstream host of a stream, if it has one.
pub(super) fn upstream(stream: &impl Stream) -> Option<Upstream> {
    let address = stream.property(Property::UpstreamAddress).ok()??;
    (!address.is_empty()).then(|| Upstream::at(&address))
}

/// The properties of a request that its response depends on.
#[derive(Debug, Default)]
pub(super) struct Asked {
    /// The kind of upgrade that the request asks for.
    pub(super) upgrade: Option<Upgrade>,
    /// Whether a trusted sidecar sent the request. The response then reports the request's times.
    pub(super) by_peer: bool,
}

/// Connects an engine to HTTP: reads requests and responses, sets headers, and builds replies.
///
/// `B` is the behaviour beside the engine's stages. After each call the caller executes
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
    /// The time of the last arrival or end of a request for which the clock could be read.
    last: Instant,
}

impl<H: Host, B: BesideHttp> Filter<H, B> {
    /// Creates a filter without configuration, which lets all requests through. `seed` must differ
    /// between the engines of a process.
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

    /// Returns the host.
    pub fn host(&self) -> &H {
        &self.host
    }

    /// Returns the engine.
    pub fn engine(&self) -> &Engine<B> {
        &self.engine
    }

    /// Returns the host, the engine, and the pending actions ([`Filter::actions`]).
    pub fn parts(&mut self) -> (&H, &mut Engine<B>, &mut Vec<Action>) {
        (&self.host, &mut self.engine, &mut self.actions)
    }

    /// Returns the proxy's configurations.
    pub fn listeners(&self) -> &Listeners {
        &self.listeners
    }

    /// Yields the policies of the proxy's configurations and of unfinished requests. A host may
    /// forget the metrics of other policies, because the filter has no ids of these metrics.
    pub fn policies(&self) -> impl Iterator<Item = &str> {
        self.listeners.policies().chain(self.engine.policies())
    }

    /// Returns the time of the last arrival or end of a request.
    pub fn last(&self) -> Instant {
        self.last
    }

    /// Returns the pending actions for held requests, oldest first. The caller drains the list.
    ///
    /// For an [`Action::Resume`] the caller calls [`Filter::resume`] with the request's stream and
    /// continues the request. For an [`Action::Refuse`] it calls [`Filter::refuse`]. For an
    /// [`Action::Send`] the caller sends the stream's outbound call, which the behaviour beside the
    /// stages held.
    pub fn actions(&mut self) -> &mut Vec<Action> {
        &mut self.actions
    }

    /// Parses a configuration from the control plane, and adopts it like [`Filter::take_over`].
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

    /// Adopts configuration `id`, which is for listener `name`, and logs it. If an error is
    /// returned, the last valid configuration stays in force, and `id` is unknown unless the caller
    /// calls [`Filter::refused`]. Configurations of one name replace each other. Configurations of
    /// different names are in force side by side, each for its listener's streams
    /// ([`Stream::listener`]). The caller calls [`Filter::settle`] when the proxy's update can't
    /// fail any more.
    ///
    /// # Errors
    /// [`ConfigError`] of `prepared`, or of the host.
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
            self.log_refused(proxy, error);
        }
        applied
    }

    /// Applies the configurations of `listeners` that are in force to the engine.
    fn apply(
        &mut self,
        proxy: &impl Proxy,
        now: Instant,
        listeners: &Listeners,
        direction: Direction,
    ) -> Result<(), ConfigError> {
        let in_force = listeners.in_force(direction);
        let Some((_, Prepared { config, .. })) = in_force.last() else {
            return Ok(());
        };
        let (engine, actions) = (&mut self.engine, &mut self.actions);
        match direction {
            Direction::Inbound => {
                engine.listen(&self.host, &in_force)?;
                let built = engine.build(&self.host, now, actions);
                self.check(proxy, built);
            }
            Direction::Outbound => engine.beside_mut().call_by(&self.host, config)?,
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

    fn log_refused(&self, proxy: &impl Proxy, error: &ConfigError) {
        let kept = if self.configured {
            "; the last good one stays"
        } else {
            ""
        };
        let message = format!("headgate: configuration refused: {error}{kept}");
        proxy.log(Level::Error, &message);
    }

    /// Records that configuration `id` for `name` was refused, although the proxy keeps its
    /// listener.
    pub fn refused(&mut self, (id, name): (u32, &str), direction: Direction) {
        self.listeners.refused((id, name), direction);
    }

    /// Removes configuration `id`, after its last stream, or because another part of the proxy's
    /// update failed. The newest remaining configuration of the same name is then in force. When
    /// the last inbound configuration is removed, the filter leaves the process, if no request
    /// waits or runs. The caller calls [`Filter::settle`] later, as after [`Filter::take_over`].
    pub fn gone(&mut self, proxy: &impl Proxy, id: u32) {
        let before = self.listeners.clone();
        let Some(direction) = self.listeners.gone(id) else {
            return;
        };
        if self.listeners.newest(direction).is_none() {
            match direction {
                Direction::Inbound => self.leave(proxy),
                Direction::Outbound => self.engine.beside_mut().forget_calls(),
            }
        } else if self.listeners.configs(direction) != before.configs(direction) {
            self.apply_again(proxy, direction);
        }
    }

    /// Sends the waiting requests of removed policies to the backend. Until then these requests
    /// wait for slots, because a failed update of the proxy brings their policies back.
    pub fn settle(&mut self, proxy: &impl Proxy) {
        self.run(proxy, Engine::retire_removed);
    }

    /// Calls `f` on the engine, with the current time. Logs an error.
    fn run(
        &mut self,
        proxy: &impl Proxy,
        f: impl FnOnce(&mut Engine<B>, &H, Instant, &mut Vec<Action>) -> Result<(), HostError>,
    ) {
        let now = proxy.now();
        let done = now.and_then(|now| f(&mut self.engine, &self.host, now, &mut self.actions));
        self.check(proxy, done);
    }

    /// Applies the configurations in force to the engine again. The configurations were valid
    /// before, so only the host may fail.
    fn apply_again(&mut self, proxy: &impl Proxy, direction: Direction) {
        let now = match proxy.now() {
            Ok(now) => now,
            Err(error) => return self.complain(proxy, &error),
        };
        let listeners = self.listeners.clone();
        if let Err(error) = self.apply(proxy, now, &listeners, direction) {
            self.log_refused(proxy, &error);
        }
    }

    /// Removes configuration `id` while the engine is unusable, so that [`Filter::restart`] doesn't
    /// apply it.
    pub fn forget(&mut self, id: u32) {
        self.listeners.gone(id);
    }

    /// Whether the engine has ever had a configuration.
    pub fn is_configured(&self) -> bool {
        self.configured
    }

    /// Joins the process now, without waiting for the first request.
    pub fn join(&mut self, proxy: &impl Proxy) {
        if self.engine.worker().is_none() {
            self.run(proxy, Engine::join);
        }
    }

    /// Replaces the engine after it panicked, on the same host. The old engine may be inconsistent,
    /// so none of its state is reused. The new engine adopts the configurations in force, joins the
    /// process, and releases the bookings of the old engine. The new engine doesn't know the
    /// requests of the old one, so the caller continues these requests and doesn't report their
    /// ends. `seed` must differ from the previous seed.
    pub fn restart(&mut self, proxy: &impl Proxy, seed: u64) {
        let failed = self.engine.worker();
        self.engine = Engine::new(seed);
        self.rng = Rng::new(seed.rotate_left(32));
        self.actions.clear();
        self.configured = false;
        for direction in [Direction::Inbound, Direction::Outbound] {
            self.apply_again(proxy, direction);
        }
        self.join(proxy);
        if let Some(failed) = failed {
            self.run(proxy, |engine, host, now, actions| {
                engine.bury(host, now, failed, actions)
            });
        }
    }

    /// Leaves the process, if no request waits or runs. The filter then gets no further ticks.
    fn leave(&mut self, proxy: &impl Proxy) {
        let beside = self.engine.beside_mut();
        beside.send_calls(None, &mut self.actions);
        self.run(proxy, |engine, host, now, _| engine.leave(host, now));
    }

    /// Handles request headers (point 1 of Bouncer's Figure 1). Records in `asked` the properties
    /// of the request that its response depends on.
    pub(super) fn decide<S: Stream>(
        &mut self,
        stream: &S,
        mut headers: Headers<'_, S>,
        asked: &mut Asked,
    ) -> Result<Decision, HostError> {
        if self.engine.degrades() && headers.any_of_ours() && headers.header(QUALITY).is_some() {
            // Clients must not set a quality, so a client's quality header is removed before the
            // decision.
            let removed = stream.remove_header(Map::Request, QUALITY.as_bytes());
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
        if standing.strip {
            B::strip(self, stream, &headers);
        }
        let decision = decision?;
        match decision {
            Decision::PassBy | Decision::Refuse(_) => {}
            Decision::Forward(ticket) => {
                self.set_quality(stream, ticket);
                self.sample(ticket);
                B::goes_on(self, stream, ticket, Some(&headers));
            }
            Decision::Hold(ticket) => self.set_quality(stream, ticket),
        }
        Ok(decision)
    }

    /// Sets the header with the quality for the application.
    fn set_quality(&mut self, stream: &impl Stream, ticket: Ticket) {
        let stage = self.engine.stage(ticket.policy);
        if let Some(quality) = stage.and_then(|stage| stage.quality(ticket)) {
            let set = stream.set_header(Map::Request, QUALITY, format!("{quality:.2}").as_bytes());
            self.check(stream, set);
        }
    }

    fn sample(&mut self, ticket: Ticket) {
        if let Some(stage) = self.engine.stage_mut(ticket.policy) {
            stage.sample(ticket);
        }
    }

    /// Sets the headers of a held request before the caller continues it.
    pub fn resume(&mut self, stream: &impl Stream, ticket: Ticket) {
        self.sample(ticket);
        B::goes_on(self, stream, ticket, None);
    }

    /// Records that the proxy has received the whole request `ticket`, which belongs to `stream`.
    pub(super) fn sent(&mut self, stream: &impl Stream, ticket: Ticket) {
        let stage = self.engine.stage_mut(ticket.policy);
        let sent = stream.now().map(|now| {
            if let Some(stage) = stage {
                stage.sent(ticket, now);
            }
        });
        self.check(stream, sent);
    }

    /// Returns the requests, with their streams, for which the caller must call [`Filter::look`]
    /// after a tick. The caller drains the list.
    pub fn suspects(&mut self) -> &mut Vec<(Ticket, u32)> {
        self.engine.suspects()
    }

    /// Reports the upstream host of request `ticket`, which belongs to `stream`.
    pub fn look(&mut self, stream: &impl Stream, ticket: Ticket) {
        if let (Ok(now), Some(upstream)) = (stream.now(), upstream(stream)) {
            let looked =
                (self.engine).at_host(&self.host, now, ticket, upstream, &mut self.actions);
            self.check(stream, looked);
        }
    }

    /// Reports the upstream host that answered request `ticket`, if the policy watches hosts.
    pub(super) fn answered_by(&mut self, stream: &impl Stream, ticket: Ticket) {
        if let (Ok(now), Some(upstream)) = (stream.now(), upstream(stream)) {
            let stage = self.engine.stage_mut(ticket.policy);
            let noted = stage.map_or(Ok(()), |stage| {
                stage.answered_by(&self.host, now, ticket, upstream)
            });
            self.check(stream, noted);
        }
    }

    /// Records the end of request `ticket`, which belongs to `stream` (point 3 of Bouncer's Figure
    /// 1). `tokens` are those of the response, if they are counted.
    pub(super) fn finish(
        &mut self,
        stream: &impl Stream,
        ticket: Ticket,
        outcome: Outcome,
        tokens: Option<&Tokens>,
    ) {
        // Release the slot even if the clock fails. The times of such a request are wrong, so
        // neither the request nor its slot time is measured.
        let (now, outcome) = match stream.now() {
            Ok(now) => (now, outcome),
            Err(error) => {
                self.complain(stream, &error);
                (self.last, Outcome::Unsampled)
            }
        };
        self.last = now;
        if let Some(tokens) = tokens
            && let Some(stage) = self.engine.stage_mut(ticket.policy)
        {
            let time = tokens.time(now, outcome);
            stage.tokens(ticket, tokens.count(), tokens.counts_each(), time);
        }
        let done = self
            .engine
            .finish(&self.host, now, ticket, outcome, &mut self.actions);
        self.check(stream, done);
    }

    /// Reports the number of tokens so far in the response to request `ticket`.
    pub(super) fn grows(&mut self, stream: &impl Stream, ticket: Ticket, tokens: &Tokens) {
        let stage = self.engine.stage_mut(ticket.policy);
        if let Some(stage) = stage.filter(|_| tokens.counts_each()) {
            let grown = stage.grows(&self.host, ticket, tokens.count());
            self.check(stream, grown);
        }
    }

    /// Records the first byte of the response's body to request `ticket`, which keeps its slot.
    /// Returns the outcome to report at the end of the response.
    pub(super) fn first_byte(
        &mut self,
        stream: &impl Stream,
        ticket: Ticket,
        outcome: Outcome,
    ) -> Outcome {
        match stream.now() {
            Ok(now) => {
                let stage = self.engine.stage_mut(ticket.policy);
                let done = stage.map_or(Ok(()), |stage| {
                    stage.first_byte(&self.host, now, ticket, outcome)
                });
                self.check(stream, done);
                outcome
            }
            Err(error) => {
                self.complain(stream, &error);
                Outcome::Unmeasured
            }
        }
    }

    /// Sets the header with the rejection rate on the response to request `ticket`, if its policy
    /// announces the rate.
    pub(super) fn hint(&mut self, stream: &impl Stream, ticket: Ticket) {
        let stage = self.engine.stage(ticket.policy);
        if let Some(rate) = stage.and_then(Stage::rejection_rate) {
            // This call replaces a header from the backend, which would describe another queue.
            let set = stream.set_header(Map::Response, hint::HEADER, hint::value(rate).as_bytes());
            self.check(stream, set);
        }
    }

    /// Returns the outcome of request `ticket` from the headers of the backend's response. `alone`
    /// means that neither body nor trailers follow, so that the headers contain the gRPC status.
    pub(super) fn judge(&self, stream: &impl Stream, ticket: Ticket, alone: bool) -> Outcome {
        let Some(stage) = self.engine.stage(ticket.policy) else {
            return Outcome::Completed;
        };
        let errors = &stage.config().errors;
        let header = |name| stream.header(Map::Response, name).ok().flatten();
        match answer::of_status(header(":status").as_deref(), errors) {
            Outcome::Completed if alone => {
                answer::of_grpc_status(header(GRPC_STATUS).as_deref(), errors)
            }
            outcome => outcome,
        }
    }

    /// Returns the outcome of request `ticket` from the trailers of the backend's response.
    pub(super) fn judge_trailers(&self, stream: &impl Stream, ticket: Ticket) -> Outcome {
        let Some(stage) = self.engine.stage(ticket.policy) else {
            return Outcome::Completed;
        };
        let errors = &stage.config().errors;
        let status = stream
            .header(Map::ResponseTrailers, GRPC_STATUS)
            .ok()
            .flatten();
        answer::of_grpc_status(status.as_deref(), errors)
    }

    /// Handles a wake-up, by which another worker handed a slot to this one.
    pub fn woken(&mut self, proxy: &impl Proxy) {
        self.run(proxy, Engine::woken);
    }

    /// Does the periodic work. The caller calls this function as often as the engine needs it
    /// ([`Engine::is_busy`]).
    pub fn tick(&mut self, proxy: &impl Proxy) {
        self.run(proxy, Engine::tick);
    }

    /// Handles a refused request. Returns the response to the request. If the request's type has
    /// headers for refused requests, sets these headers and returns `None` instead. The caller then
    /// continues the request without a ticket.
    pub fn refuse(&mut self, stream: &impl Stream, refusal: &Refusal) -> Option<LocalReply> {
        let stage = self.engine.stage(refusal.policy);
        let headers = stage.map_or(&[][..], |stage| stage.on_refusal(refusal));
        if headers.is_empty() {
            return Some(self.reply(refusal));
        }
        let set = (headers.iter())
            .try_for_each(|of| stream.set_header(Map::Request, &of.name, of.value.as_bytes()));
        if let Err(error) = set.and_then(|()| stream.clear_route_cache()) {
            self.complain(stream, &error);
            return Some(self.reply(refusal));
        }
        if let Some(stage) = self.engine.stage_mut(refusal.policy) {
            stage.diverted(refusal.kind);
        }
        None
    }

    /// Whether request `ticket` left its stage without a slot because it was refused while it
    /// waited.
    pub(super) fn has_left(&self, ticket: Ticket) -> bool {
        let stage = self.engine.stage(ticket.policy);
        stage.is_some_and(|stage| stage.stream(ticket).is_none())
    }

    /// Returns the response to a refused request, with the headers for clients.
    pub(super) fn reply(&mut self, refusal: &Refusal) -> LocalReply {
        let mut announced = None;
        self.engine.beside_mut().announce(refusal, |name, value| {
            announced = Some((name, value.to_owned()));
        });
        let rate = (self.engine.stage(refusal.policy)).and_then(Stage::rejection_rate);
        let hint = rate.map(|rate| (hint::HEADER, hint::value(rate)));
        let extra = hint.into_iter().chain(announced);
        let words = self.engine.words(refusal);
        LocalReply::new(words, refusal, extra, &mut self.rng)
    }

    /// Calls [`Filter::complain`] if `done` is an error.
    pub fn check(&mut self, proxy: &impl Proxy, done: Result<(), HostError>) {
        if let Err(error) = done {
            self.complain(proxy, &error);
        }
    }

    /// Logs a failed host call, at most once in 10 s.
    pub fn complain(&mut self, proxy: &impl Proxy, error: &HostError) {
        let now = proxy.now().unwrap_or_default();
        if self.complained.is_none_or(|at| now.since(at) >= COMPLAIN) {
            self.complained = Some(now);
            let effect = match error {
                HostError::HotRestart => "the limit is wrong",
                HostError::Conflict | HostError::Call { .. } => "requests pass without a decision",
            };
            let message = format!("headgate: {error}; {effect} while it lasts");
            proxy.log(Level::Warn, &message);
        }
    }
}
