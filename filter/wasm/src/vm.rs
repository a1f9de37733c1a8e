//! The VM's state: one engine for all root contexts and streams of this worker.
//!
//! It lives in a thread-local because a change of configuration makes a new root context in the same VM
//! while the old one's streams go on, and both belong to the same queue; and because the inbound and the outbound
//! listener share it ([`crate::roots`]): a call that the application makes belongs to a request that it got. No callback re-enters the VM
//! while it is borrowed: Envoy defers resumed requests and local replies until the callback returns.
//! Should that ever change, [`with`] lets the request through instead of panicking.

mod mesh;

use std::cell::RefCell;
use std::collections::HashMap;
use std::time::Duration;

use headgate_core::config::{Direction, FilterConfig};
use headgate_core::deadline;
use headgate_core::decision::{Action, Decision, Ticket};
use headgate_core::engine::{Calling, Engine, FAST_TICK, SLOW_TICK};
use headgate_core::host::HostError;
use headgate_core::refusal::Refusal;
use headgate_core::rng::Rng;
use headgate_core::stage::Outcome;
use headgate_core::strategy::hint;
use headgate_core::time::Instant;
use headgate_core::workers::WorkerId;

use crate::ffi::{self, Level};
use crate::headers::Headers;
use crate::host::EnvoyHost;
use crate::refusal;
use crate::roots::Roots;

/// Failing host calls are logged at most this often.
const COMPLAIN: Duration = Duration::from_secs(10);

/// The request header that tells the application the quality to deliver: 1.00 is full.
const QUALITY: &str = "x-headgate-quality";

thread_local! {
    static VM: RefCell<Option<Vm>> = const { RefCell::new(None) };
}

/// See the module.
pub(crate) struct Vm {
    host: EnvoyHost,
    engine: Engine,
    rng: Rng,
    actions: Vec<Action>,
    /// The number under which this worker can be woken, and its queue.
    listening: Option<(WorkerId, u32)>,
    /// The newest root context of the inbound side: it outlives the streams of the older ones, so ticks and
    /// wake-ups are its.
    root: u32,
    /// Time between ticks; `None` before the first request, when nothing needs one.
    tick: Option<Duration>,
    configured: bool,
    roots: Roots,
    /// Whether any stage has workflows; without, nothing is asked or told about them.
    workflows: bool,
    /// Baggage with a token in it, or without.
    baggage: Vec<u8>,
    /// At a gateway, requests that went on and aren't answered yet, by stream.
    forwarded: HashMap<u32, Calling>,
    complained: Option<Instant>,
    #[cfg(feature = "decision-timing")]
    timing: timing::Timing,
}

/// Runs `f` on the VM's state, made when first asked for; `None` when it is in use.
pub(crate) fn with<T>(f: impl FnOnce(&mut Vm) -> T) -> Option<T> {
    VM.with(|vm| {
        let mut vm = vm.try_borrow_mut().ok()?;
        Some(f(vm.get_or_insert_with(Vm::new)))
    })
}

fn now() -> Result<Instant, HostError> {
    ffi::monotonic_time().map(|t| Instant::from_nanos(headgate_core::time::nanos(t)))
}

/// A number that no other VM of the process draws: the host's random bytes, by way of the standard
/// library's hash seeds.
fn nonce() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0u8)
}

impl Vm {
    fn new() -> Self {
        let seed = nonce();
        Self {
            host: EnvoyHost::default(),
            engine: Engine::new(seed),
            rng: Rng::new(seed.rotate_left(32)),
            actions: Vec::new(),
            listening: None,
            root: 0,
            tick: None,
            configured: false,
            roots: Roots::default(),
            workflows: false,
            baggage: Vec::new(),
            forwarded: HashMap::new(),
            complained: None,
            #[cfg(feature = "decision-timing")]
            timing: timing::Timing::default(),
        }
    }

    /// A root context went; with the last one of the inbound side, the worker leaves.
    pub(crate) fn root_gone(&mut self, root: u32) {
        let Some(direction) = self.roots.gone(root) else {
            return;
        };
        match (direction, self.roots.newest(direction)) {
            (Direction::Inbound, Some(newest)) if self.root == root => self.attend_from(newest),
            (_, Some(_)) => {}
            (Direction::Inbound, None) => {
                let left = now().and_then(|now| self.engine.leave(&self.host, now));
                self.check(left);
                self.listening = None;
            }
            (Direction::Outbound, None) => self.engine.forget_outbound(),
        }
    }

    /// Ticks and wake-ups are to come to `root`, from the next callback on.
    fn attend_from(&mut self, root: u32) {
        self.root = root;
        self.listening = None;
        self.tick = None;
    }

    /// Takes a configuration over; false, with the reason in the log, keeps the last good one.
    pub(crate) fn configure(&mut self, root: u32, direction: Direction, json: &[u8]) -> bool {
        let config = FilterConfig::from_json(json);
        let Ok(now) = now() else {
            return self.configured;
        };
        let applied = config.and_then(|config| {
            self.engine
                .configure(&self.host, now, &config, &mut self.actions)?;
            Ok(config)
        });
        let mut actions = std::mem::take(&mut self.actions);
        self.act(&mut actions, root);
        self.actions = actions;
        self.roots.configured(root, direction);
        if direction == Direction::Inbound {
            self.attend_from(root);
            self.attend(root);
        }
        match applied {
            Ok(config) => {
                self.configured = true;
                if direction == Direction::Inbound {
                    self.workflows = config.stages.iter().any(|s| s.workflows.is_some());
                }
                let (revision, stages) = (&config.revision, config.stages.len());
                let what = match &config.outbound {
                    Some(outbound) => format!("calls of {}", outbound.policy),
                    None => format!("{stages} policies"),
                };
                ffi::log(
                    Level::Info,
                    &format!("headgate: revision {revision:?}, {what}"),
                );
                true
            }
            Err(error) => {
                let kept = if self.configured {
                    "; the last good one stays"
                } else {
                    ""
                };
                ffi::log(
                    Level::Error,
                    &format!("headgate: configuration refused: {error}{kept}"),
                );
                // Envoy asks a canary VM first and rejects the update on its `false`. A VM at work
                // must never say it: Envoy would fail the VM and with it all requests.
                self.configured
            }
        }
    }

    /// Makes sure that wake-ups and ticks come, and ticks no more often than something needs them: a
    /// hundred a second would cost an idle worker more than its requests.
    ///
    /// `current` is the context of the callback that we are in.
    fn attend(&mut self, current: u32) {
        let Some(worker) = self.engine.worker() else {
            return;
        };
        let tick = if self.engine.is_busy() {
            FAST_TICK
        } else {
            SLOW_TICK
        };
        let listens = self.listening.is_some_and(|(id, _)| id == worker);
        if self.tick == Some(tick) && listens {
            return;
        }
        // Envoy registers both for the root of the effective context.
        let entered = ffi::set_effective_context(self.root);
        self.check(entered);
        match ffi::set_tick_period(tick) {
            Ok(()) => self.tick = Some(tick),
            Err(error) => self.complain(&error),
        }
        if !listens {
            match self.host.listen(worker) {
                Ok(queue) => self.listening = Some((worker, queue)),
                Err(error) => self.complain(&error),
            }
        }
        let back = ffi::set_effective_context(current);
        self.check(back);
    }

    /// Point 1: request headers. Where the request is refused, the local reply is on its way.
    pub(crate) fn request(&mut self, stream: u32) -> Decision {
        if self.engine.is_idle() {
            return Decision::PassBy;
        }
        self.decide(stream).unwrap_or_else(|error| {
            self.complain(&error);
            Decision::PassBy
        })
    }

    fn decide(&mut self, stream: u32) -> Result<Decision, HostError> {
        let mut headers = Headers::parse(ffi::request_headers()?);
        #[cfg(feature = "trap")]
        {
            use headgate_core::classify::RequestView;
            #[allow(clippy::panic)] // what the feature is for
            if headers.header("x-headgate-trap").is_some() {
                panic!("trapped on request");
            }
        }
        let now = now()?;
        let standing = self.standing(&mut headers);
        let mut actions = std::mem::take(&mut self.actions);
        if headers.is_upgrade() {
            let counted = self.engine.pass_by(&self.host, now, &headers, &mut actions);
            self.strip(&headers, standing);
            self.act(&mut actions, stream);
            self.actions = actions;
            self.attend(stream);
            return counted.map(|()| Decision::PassBy);
        }
        let own_deadline = if headers.has_timeout() {
            deadline::own_deadline(&headers)
        } else {
            None
        };
        let decision = self.engine.arrive(
            &self.host,
            now,
            stream,
            &headers,
            own_deadline,
            &mut actions,
        );
        #[cfg(feature = "decision-timing")]
        self.timing.record(&self.host, now);
        self.act(&mut actions, stream);
        self.actions = actions;
        self.attend(stream);
        if !matches!(decision, Ok(Decision::Refuse(_))) {
            self.strip(&headers, standing);
        }
        let decision = decision?;
        match &decision {
            Decision::PassBy => {}
            Decision::Forward(ticket) => {
                self.tell_quality(*ticket);
                self.hand_on(stream, *ticket, Some(&headers));
            }
            Decision::Hold(ticket) => self.tell_quality(*ticket),
            Decision::Refuse(refusal) => self.refuse(refusal),
        }
        Ok(decision)
    }

    /// Tells the application in which quality to answer, over whatever the client said.
    fn tell_quality(&mut self, ticket: Ticket) {
        if let Some(quality) = self.engine.quality(ticket) {
            let told = ffi::set_request_header(QUALITY, format!("{quality:.2}").as_bytes());
            self.check(told);
        }
    }

    /// Point 3: the request of `ticket` ended. `stream` is the one in whose callback we are.
    pub(crate) fn finish(&mut self, stream: u32, ticket: Ticket, outcome: Outcome) {
        let done = now().and_then(|now| {
            let mut actions = std::mem::take(&mut self.actions);
            let done = self
                .engine
                .finish(&self.host, now, ticket, outcome, &mut actions);
            self.act(&mut actions, stream);
            self.actions = actions;
            done
        });
        self.check(done);
    }

    /// Puts the rejection rate on the response to the request of `ticket`, if clients are to be told.
    pub(crate) fn hint(&mut self, ticket: Ticket) {
        if let Some(rate) = self.engine.rejection_rate(ticket.policy) {
            // The backend's own, if it has one, is about another queue than ours.
            let set = ffi::set_response_header(hint::HEADER, hint::value(rate).as_bytes());
            self.check(set);
        }
    }

    /// Whether the answer to the request of `ticket` is worth measuring.
    pub(crate) fn wants_sample(&mut self, ticket: Ticket) -> bool {
        self.engine.wants_sample(ticket)
    }

    /// Whether to end the request of `ticket` at the response's headers.
    pub(crate) fn ends_at_first_byte(&self, ticket: Ticket) -> bool {
        self.engine.ends_at_first_byte(ticket)
    }

    /// Another worker left a slot to us.
    pub(crate) fn woken(&mut self, root: u32, queue: u32) {
        let drained = self.host.drain(queue);
        self.check(drained);
        self.run(root, |engine, host, now, actions| {
            engine.woken(host, now, actions)
        });
    }

    /// Housekeeping.
    pub(crate) fn tick(&mut self, root: u32) {
        self.run(root, |engine, host, now, actions| {
            engine.tick(host, now, actions)
        });
        self.attend(root);
    }

    fn run(
        &mut self,
        root: u32,
        f: impl FnOnce(&mut Engine, &EnvoyHost, Instant, &mut Vec<Action>) -> Result<(), HostError>,
    ) {
        let done = now().and_then(|now| {
            let mut actions = std::mem::take(&mut self.actions);
            let done = f(&mut self.engine, &self.host, now, &mut actions);
            self.act(&mut actions, root);
            self.actions = actions;
            done
        });
        self.check(done);
    }

    /// Resumes and refuses held requests; Envoy carries it out when the callback returns. Then the
    /// effective context is again `own`, that of the callback.
    fn act(&mut self, actions: &mut Vec<Action>, own: u32) {
        let any = !actions.is_empty();
        for action in actions.drain(..) {
            let stream = action.stream();
            // A stream that is gone has told us, or is about to: its place is given back then.
            if ffi::set_effective_context(stream).is_err() {
                continue;
            }
            match action {
                Action::Resume { ticket, .. } => {
                    self.hand_on(stream, ticket, None);
                    let resumed = ffi::resume_request();
                    self.check(resumed);
                }
                Action::Refuse { refusal, .. } => self.refuse(&refusal),
            }
        }
        if any {
            let back = ffi::set_effective_context(own);
            self.check(back);
        }
    }

    fn refuse(&mut self, refusal: &Refusal) {
        let mut announced = None;
        self.engine.announce(refusal, |name, value| {
            announced = Some((name, value.to_owned()));
        });
        let words = self.engine.words(refusal);
        let hint = self.engine.rejection_rate(refusal.policy).map(hint::value);
        let hint = hint.map(|rate| (hint::HEADER, rate));
        let told = hint.into_iter().chain(announced);
        let sent = refusal::send(words, refusal, told, &mut self.rng);
        self.check(sent);
    }

    fn check(&mut self, done: Result<(), HostError>) {
        if let Err(error) = done {
            self.complain(&error);
        }
    }

    /// Logs a failing host call, now and then.
    fn complain(&mut self, error: &HostError) {
        let now = now().unwrap_or_default();
        if self.complained.is_none_or(|at| now.since(at) >= COMPLAIN) {
            self.complained = Some(now);
            ffi::log(
                Level::Warn,
                &format!("headgate: {error}; requests pass unmanaged while it lasts"),
            );
        }
    }
}

#[cfg(feature = "decision-timing")]
mod timing {
    //! What a decision costs inside the guest: from the clock reading that starts it to its end.

    use headgate_core::host::{Host, MetricId, MetricKind};
    use headgate_core::time::Instant;

    use crate::host::EnvoyHost;

    #[derive(Default)]
    pub(super) struct Timing {
        metric: Option<MetricId>,
    }

    impl Timing {
        pub(super) fn record(&mut self, host: &EnvoyHost, start: Instant) {
            let Ok(end) = super::now() else { return };
            if self.metric.is_none() {
                self.metric = host
                    .define(MetricKind::Histogram, "headgate.decision_ns")
                    .ok();
            }
            if let Some(metric) = self.metric {
                // A histogram that can't be written shows as an empty one.
                host.record(metric, headgate_core::time::nanos(end.since(start)))
                    .unwrap_or(());
            }
        }
    }
}
