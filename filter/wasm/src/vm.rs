//! The VM's state, with one engine for all root contexts and streams of this worker.
//!
//! The state is in a thread-local, because several root contexts share it. A change of
//! configuration creates a new root context in the same VM while the streams of the old root
//! context continue, and both use the same queue. The inbound and the outbound listener also share
//! the state. They need the same state, because a call of the application belongs to a request that
//! the application received. They have the same code and VM id, so Envoy runs one VM for both on
//! each worker. No callback re-enters the VM while the state is borrowed, because Envoy defers
//! resumed requests and local replies until the callback returns. If that ever changes, [`with`]
//! lets the request through instead of panicking.

use std::cell::RefCell;
use std::time::Duration;

use headgate_core::config::Direction;
use headgate_core::decision::{Action, Decision, Refusal};
use headgate_core::engine::FAST_TICK;
use headgate_core::http::{Inbound, Level, Proxy, serialize};
use headgate_core::workers::WorkerId;
use headgate_mesh::Outbound;
use headgate_strategies::host::HostError;
use headgate_strategies::time::Instant;

use crate::envoy::Effective;
use crate::ffi;
use crate::host::EnvoyHost;
use crate::ticks::Ticks;
use crate::turn::Turn;
use crate::unfiltered::Unfiltered;

/// The name of every listener in a VM. If a proxy's listeners have different policies, each
/// listener has its own VM.
const NAME: &str = "";

/// The time after which an update of Envoy can't fail any more. Workers adopt a configuration while
/// the main thread still creates the rest of its listener, which takes milliseconds.
const SETTLES: Duration = Duration::from_secs(1);

/// The property of a stream with the name of the VM that has handled it.
const HANDLED_BY: &[u8] = b"headgate.vm";

pub(crate) type Filter = headgate_mesh::Filter<Unfiltered<EnvoyHost>>;

thread_local! {
    static VM: RefCell<Option<Vm>> = const { RefCell::new(None) };
}

/// The state of this worker.
pub(crate) struct Vm {
    filter: Filter,
    turn: Turn<Action>,
    /// The value of [`HANDLED_BY`] that this VM writes.
    name: [u8; 8],
    /// The worker number under which other workers wake this worker, and the queue for the
    /// wake-ups.
    listening: Option<(WorkerId, u32)>,
    /// The newest root context of the inbound side. It receives ticks and wake-ups, because it
    /// outlives the streams of the older root contexts.
    root: u32,
    /// The time at which the last change of the configurations is settled ([`Filter::settle`]).
    settles: Option<Instant>,
    ticks: Ticks,
    /// A buffer for serialized headers.
    serialized: Vec<u8>,
    #[cfg(feature = "decision-timing")]
    timing: timing::Timing,
}

/// The kind of a callback, which determines the allowed actions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Callback {
    /// A callback for a part of a request or response. The stream continues after the callback.
    OfStream,
    /// The callback for the headers of a request or call that is held. The stream pauses after the
    /// callback.
    OfHeld,
    /// A tick, a wake-up, a configuration, or the end of a stream. No stream continues after the
    /// callback.
    Other,
}

/// Runs `f` on the VM's state, which the first call creates. Returns `None` while the state is
/// borrowed.
pub(crate) fn with<T>(f: impl FnOnce(&mut Vm) -> T) -> Option<T> {
    VM.with(|vm| {
        let mut vm = vm.try_borrow_mut().ok()?;
        Some(f(vm.get_or_insert_with(Vm::new)))
    })
}

/// Runs `f` with the filter, in a callback of `stream` after which the stream may continue.
pub(crate) fn on(stream: u32, f: impl FnOnce(&mut Filter, &Effective)) {
    with(|vm| vm.run(stream, Callback::OfStream, f));
}

/// Returns a random number that no other VM of the process has. It comes from the host's random
/// bytes, through the hash seeds of the standard library.
fn nonce() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0u8)
}

impl Vm {
    fn new() -> Self {
        let nonce = nonce();
        Self {
            filter: Filter::new(Unfiltered::new(EnvoyHost::default()), nonce),
            turn: Turn::default(),
            name: nonce.to_le_bytes(),
            listening: None,
            root: 0,
            settles: None,
            ticks: Ticks::default(),
            serialized: Vec::new(),
            #[cfg(feature = "decision-timing")]
            timing: timing::Timing::default(),
        }
    }

    /// Handles the end of a root context and of its configuration.
    pub(crate) fn root_gone(&mut self, root: u32) {
        self.run(root, Callback::Other, |filter, proxy| {
            filter.gone(proxy, root);
        });
        // The removal may bring back the policies of an older configuration.
        self.settles = Some(Effective(root).now().unwrap_or_default() + SETTLES);
        match self.filter.listeners().newest(Direction::Inbound) {
            Some(newest) if self.root == root => {
                self.attend_from(newest);
                self.attend(root, false);
            }
            Some(_) => {}
            None => {
                self.listening = None;
                // The delayed calls beyond the bound of this turn wait for ticks of their side.
                if let Some(outbound) = self.filter.listeners().newest(Direction::Outbound)
                    && self.turn.is_pending()
                {
                    self.check(ffi::set_effective_context(outbound));
                    self.check(ffi::set_tick_period(FAST_TICK));
                    self.check(ffi::set_effective_context(root));
                }
            }
        }
    }

    /// Makes `root` receive ticks and wake-ups, from the next callback on.
    fn attend_from(&mut self, root: u32) {
        self.root = root;
        self.listening = None;
        self.ticks = Ticks::default();
    }

    /// Applies a configuration. Logs an error if it is refused. Returns whether any configuration
    /// is in force.
    pub(crate) fn configure(&mut self, root: u32, direction: Direction, json: &[u8]) -> bool {
        let proxy = Effective(root);
        let Ok(now) = proxy.now() else {
            return self.filter.is_configured();
        };
        let applied = self.filter.configure(&proxy, now, (root, NAME), json);
        self.settles = Some(now + SETTLES);
        self.act(root, Callback::Other);
        if applied.is_err() {
            self.filter.refused((root, NAME), direction);
        }
        if direction == Direction::Inbound {
            self.attend_from(root);
            self.attend(root, false);
        }
        // Envoy configures a canary VM first, and rejects the update if the canary returns false. A
        // VM with traffic must never return false, because Envoy would fail the VM and with it all
        // requests.
        applied.is_ok() || self.filter.is_configured()
    }

    /// Registers for wake-ups and sets the tick period, if either has to change.
    ///
    /// `current` is the context of the current callback. `in_tick` is true if the callback is a
    /// tick.
    fn attend(&mut self, current: u32, in_tick: bool) {
        let Some(worker) = self.filter.engine().worker() else {
            return;
        };
        let busy = self.filter.engine().is_busy() || self.turn.is_pending();
        let period = self.ticks.to_set(busy, in_tick);
        let listens = self.listening.is_some_and(|(id, _)| id == worker);
        if period.is_none() && listens {
            return;
        }
        self.tell_rejected();
        // Envoy registers both for the root context of the effective context.
        self.check(ffi::set_effective_context(self.root));
        if let Some(period) = period {
            match ffi::set_tick_period(period) {
                Ok(()) => self.ticks.set(period),
                Err(error) => self.check(Err(error)),
            }
        }
        if !listens {
            match self.filter.host().host().listen(worker) {
                Ok(queue) => self.listening = Some((worker, queue)),
                Err(error) => self.check(Err(error)),
            }
        }
        self.check(ffi::set_effective_context(current));
    }

    /// Handles the request headers of `stream`. `end` is true if the request has no body. If the
    /// request is refused, the local reply has been sent when this function returns.
    pub(crate) fn request(&mut self, stream: u32, inbound: &mut Inbound, end: bool) -> Decision {
        if self.filter.engine().is_idle() || self.has_handled(Direction::Inbound) {
            return Decision::PassBy;
        }
        let decision = inbound.request_headers(&mut self.filter, &Effective(stream));
        if !end {
            inbound.body_follows(&mut self.filter);
        }
        #[cfg(feature = "decision-timing")]
        self.timing.record(self.filter.host(), self.filter.last());
        let callback = match decision {
            Decision::Hold(_) => Callback::OfHeld,
            _ => Callback::OfStream,
        };
        self.act(stream, callback);
        self.attend(stream, false);
        match decision {
            Decision::Refuse(refusal) if !self.refuse(stream, &refusal) => Decision::PassBy,
            decision => decision,
        }
    }

    /// Handles the end of the body of `stream`'s request.
    pub(crate) fn request_end(&mut self, stream: u32, inbound: &mut Inbound) {
        inbound.request_end(&mut self.filter, &Effective(stream));
    }

    fn run(&mut self, context: u32, callback: Callback, f: impl FnOnce(&mut Filter, &Effective)) {
        f(&mut self.filter, &Effective(context));
        self.act(context, callback);
    }

    /// Handles the end of a request's stream.
    pub(crate) fn done(&mut self, stream: u32, inbound: &mut Inbound) {
        self.turn.forget(|action| action.stream() == stream);
        self.run(stream, Callback::Other, |filter, stream| {
            inbound.done(filter, stream);
        });
    }

    /// Whether a filter of this VM has already handled the effective stream. Marks the stream as
    /// handled.
    ///
    /// Istio's proxies have two filters with the same policies while the operator replaces
    /// WasmPlugins with TrafficExtensions. The second filter would take a second slot, or wait for
    /// the one that the first has taken. With one configuration a stream has one filter, so the
    /// streams of such a VM are not marked.
    fn has_handled(&mut self, direction: Direction) -> bool {
        if !self.filter.listeners().has_several(direction) {
            return false;
        }
        match ffi::property(HANDLED_BY) {
            Ok(Some(name)) if name == self.name => return true,
            Ok(_) => self.check(ffi::set_property(HANDLED_BY, &self.name)),
            Err(error) => self.check(Err(error)),
        }
        false
    }

    /// Handles an outbound call of the application on `stream`. Returns false if the call must
    /// wait.
    pub(crate) fn call(&mut self, stream: u32, outbound: &mut Outbound) -> bool {
        if self.has_handled(Direction::Outbound) {
            return true;
        }
        let sent = outbound.request_headers(&mut self.filter, &Effective(stream));
        let callback = match sent {
            true => Callback::OfStream,
            false => Callback::OfHeld,
        };
        self.act(stream, callback);
        self.attend(stream, false);
        sent
    }

    /// Handles the end of an outbound call's stream.
    pub(crate) fn call_done(&mut self, stream: u32, outbound: &mut Outbound) {
        self.turn.forget(|action| action.stream() == stream);
        self.run(stream, Callback::OfStream, |filter, stream| {
            outbound.done(filter, stream);
        });
    }

    /// Handles a wake-up. Either another worker handed a slot to this worker, or this worker
    /// requested another turn.
    pub(crate) fn woken(&mut self, root: u32, queue: u32) {
        self.turn.begin();
        self.check(self.filter.host().host().drain(queue));
        self.run(root, Callback::Other, Filter::woken);
    }

    /// Does the periodic work.
    pub(crate) fn tick(&mut self, root: u32) {
        self.turn.begin();
        self.filter.tick(&Effective(root));
        self.settle(root);
        self.look(root);
        self.act(root, Callback::Other);
        self.attend(root, true);
        if root != self.root && !self.turn.is_pending() {
            // The newest inbound root context has its own ticks, or the last calls are sent.
            self.check(ffi::set_tick_period(Duration::ZERO));
        }
        self.report(root);
    }

    /// Calls [`Filter::settle`] once after each change of the configurations.
    fn settle(&mut self, root: u32) {
        if let Some(at) = self.settles
            && Effective(root).now().is_ok_and(|now| now >= at)
        {
            self.settles = None;
            self.filter.settle(&Effective(root));
        }
    }

    /// Reads the upstream hosts of requests that take too long. The effective context is `root`
    /// again when this function returns.
    fn look(&mut self, root: u32) {
        if self.filter.suspects().is_empty() {
            return;
        }
        while let Some((ticket, stream)) = self.filter.suspects().pop() {
            if ffi::set_effective_context(stream).is_ok() {
                self.filter.look(&Effective(stream), ticket);
            }
        }
        self.check(ffi::set_effective_context(root));
    }

    /// Sends a report, if a report is due. Envoy calls back on `root`, which is the effective
    /// context.
    fn report(&mut self, root: u32) {
        let Some(callout) = headgate_mesh::report(&mut self.filter, &Effective(root)) else {
            return;
        };
        let headers = [
            (":method", "POST"),
            (":path", callout.path),
            (":authority", callout.cluster),
            ("content-type", "application/json"),
        ];
        serialize(headers.into_iter(), &mut self.serialized);
        let sent = ffi::http_call(
            callout.cluster,
            &self.serialized,
            &callout.body,
            callout.timeout,
        );
        // Envoy doesn't call back if it can't send the request, for example without the cluster.
        if sent.is_err() {
            headgate_mesh::reported(&mut self.filter, &Effective(root), None);
        }
    }

    /// Handles the response to a report, of `size` bytes, or the failure of the report.
    pub(crate) fn reported(&mut self, root: u32, size: usize) {
        let answer = ffi::http_call_answer(size).unwrap_or_default();
        headgate_mesh::reported(&mut self.filter, &Effective(root), answer.as_deref());
    }

    /// Resumes and refuses held requests. Envoy executes these actions when the callback returns.
    /// The effective context is again `own`, that of the callback, when this function returns. Some
    /// callbacks postpone their actions ([`crate::turn`]).
    fn act(&mut self, own: u32, callback: Callback) {
        self.turn.add(self.filter.actions());
        let mut any = false;
        while let Some(action) = self.turn.next() {
            let waits = match callback {
                Callback::OfStream => matches!(action, Action::Refuse { .. }),
                Callback::OfHeld => true,
                Callback::Other => false,
            };
            if waits {
                self.turn.postpone(action);
                continue;
            }
            any = true;
            let stream = action.stream();
            // If the context can't be set, the stream has ended. Its end has been reported or is
            // about to be, which releases its slot.
            if ffi::set_effective_context(stream).is_err() {
                continue;
            }
            match action {
                Action::Resume { ticket, .. } => {
                    self.filter.resume(&Effective(stream), ticket);
                    // A gateway's request that continues is also an outbound call, and this call
                    // may cause further actions.
                    self.turn.add(self.filter.actions());
                }
                Action::Refuse { refusal, .. } => {
                    if self.refuse(stream, &refusal) {
                        continue;
                    }
                }
                Action::Send { .. } => {
                    headgate_mesh::send(&mut self.filter, &Effective(stream));
                    self.turn.add(self.filter.actions());
                }
            }
            self.check(ffi::resume_request());
        }
        if any {
            self.check(ffi::set_effective_context(own));
        }
        if let Some((_, queue)) = self.listening
            && self.turn.needs_wake()
        {
            self.check(ffi::enqueue(queue));
        }
    }

    /// Answers a refused request of `stream`, the effective context. Returns false if the request
    /// goes on to another route instead.
    fn refuse(&mut self, stream: u32, refusal: &Refusal) -> bool {
        let Some(reply) = self.filter.refuse(&Effective(stream), refusal) else {
            return false;
        };
        let headers = reply.headers.iter();
        let headers = headers.map(|(name, value)| (*name, value.as_ref()));
        serialize(headers, &mut self.serialized);
        let sent = ffi::send_local_response(
            reply.status,
            &reply.details,
            &reply.body,
            &self.serialized,
            reply.grpc_status,
        );
        self.check(sent);
        true
    }

    fn check(&mut self, done: Result<(), HostError>) {
        self.filter.check(&Effective(self.root), done);
    }

    /// Logs once that Envoy's stats matcher rejects the limit's gauge. The limit still holds, but
    /// the gauge is missing in the stats.
    fn tell_rejected(&self) {
        let Some(name) = self.filter.host().take_rejected() else {
            return;
        };
        ffi::log(
            Level::Warn,
            &format!(
                "headgate: stats_config.stats_matcher rejects the gauge {name:?}, so this worker \
                 keeps its share of the limit in shared data, which costs some microseconds a \
                 request; dashboards and `headgate top` don't show rejected gauges. Add the prefix \
                 \"wasmcustom.headgate.\" to the matcher's inclusion list (Envoy Gateway: \
                 EnvoyProxy spec.telemetry.metrics.matches)"
            ),
        );
    }
}

#[cfg(feature = "decision-timing")]
mod timing {
    //! The time of a decision inside the guest, from the clock reading at its start to its end.

    use headgate_core::host::{MetricId, MetricKind, Metrics};
    use headgate_core::http::Proxy;
    use headgate_strategies::time::Instant;

    #[derive(Default)]
    pub(super) struct Timing {
        metric: Option<MetricId>,
    }

    impl Timing {
        pub(super) fn record(&mut self, host: &impl Metrics, start: Instant) {
            let Ok(end) = super::Effective(0).now() else {
                return;
            };
            if self.metric.is_none() {
                self.metric = host
                    .define(MetricKind::Histogram, "headgate.decision_ns")
                    .ok();
            }
            if let Some(metric) = self.metric {
                // A histogram that can't be written appears empty.
                host.record(metric, headgate_strategies::time::nanos(end.since(start)))
                    .unwrap_or(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ffi::fake;

    const REQUESTS: &str = r#"{"stages":[{"policy":"ns/p","parallelism":1,
        "queue":{"max_length":10,"timeout_us":1000000},
        "strategy":{"type":"MaxQueueLength"},"types":[{"name":"default"}]}]}"#;
    const CALLS: &str = r#"{"direction":"Outbound","outbound":{"policy":"ns/p",
        "services":{"stock*":"stock"},
        "smoothing":{"least_us":100000,"most_us":300000,"enforced":true}}}"#;

    /// The inbound side sends all delayed calls when it goes, and its ticks end then.
    #[test]
    fn calls_beyond_one_turn_are_sent_by_ticks_of_the_outbound_side() {
        let (inbound, outbound) = (1, 2);
        let mut vm = Vm::new();
        assert!(vm.configure(inbound, Direction::Inbound, REQUESTS.as_bytes()));
        assert!(vm.configure(outbound, Direction::Outbound, CALLS.as_bytes()));
        let calls = (10..110).map(|stream| Action::Send { stream });
        vm.turn.add(&mut calls.collect());
        vm.root_gone(inbound);
        for _ in 0..3 {
            assert_eq!(fake::period(outbound), 10);
            vm.tick(outbound);
        }
        assert_eq!(fake::resumed(), (10..110).collect::<Vec<u32>>());
        assert_eq!(fake::period(outbound), 0);
    }
}
