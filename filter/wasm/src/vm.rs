//! The VM's state: one engine for all root contexts and streams of this worker.
//!
//! It lives in a thread-local because a change of configuration makes a new root context in the same VM
//! while the old one's streams go on, and both belong to the same queue; and because the inbound and the outbound
//! listener share it: Envoy gives both one VM on each worker, as both name the same code and VM, and a call that the
//! application makes belongs to a request that it got. No callback re-enters the VM while it is borrowed: Envoy defers resumed requests and local replies until the callback returns.
//! Should that ever change, [`with`] lets the request through instead of panicking.

use std::cell::RefCell;

use headgate_core::config::Direction;
use headgate_core::decision::{Action, Decision};
use headgate_core::host::{HostError, Unfiltered};
use headgate_core::http::{Filter, Inbound, Level, Outbound, Proxy, serialize};
use headgate_core::refusal::Refusal;
use headgate_core::workers::WorkerId;

use crate::envoy::Effective;
use crate::ffi;
use crate::host::EnvoyHost;
use crate::ticks::Ticks;
use crate::turn::Turn;

/// The name of all listeners: proxies whose listeners have different policies give each a VM.
const NAME: &str = "";

thread_local! {
    static VM: RefCell<Option<Vm>> = const { RefCell::new(None) };
}

/// See the module.
pub(crate) struct Vm {
    filter: Filter<Unfiltered<EnvoyHost>>,
    turn: Turn<Action>,
    /// The number under which this worker can be woken, and its queue.
    listening: Option<(WorkerId, u32)>,
    /// The newest root context of the inbound side: it outlives the streams of the older ones, so ticks and
    /// wake-ups are its.
    root: u32,
    ticks: Ticks,
    /// A refusal's headers.
    serialized: Vec<u8>,
    #[cfg(feature = "decision-timing")]
    timing: timing::Timing,
}

/// What a callback is about, and with it what it may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Callback {
    /// A part of a request or response that is to go on.
    OfStream,
    /// A tick, a wake-up, a configuration, or the end of a stream: nothing waits for what it returns.
    Other,
}

/// Runs `f` on the VM's state, made when first asked for; `None` when it is in use.
pub(crate) fn with<T>(f: impl FnOnce(&mut Vm) -> T) -> Option<T> {
    VM.with(|vm| {
        let mut vm = vm.try_borrow_mut().ok()?;
        Some(f(vm.get_or_insert_with(Vm::new)))
    })
}

/// A number that no other VM of the process draws: the host's random bytes, by way of the standard
/// library's hash seeds.
fn nonce() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0u8)
}

impl Vm {
    fn new() -> Self {
        Self {
            filter: Filter::new(Unfiltered::default(), nonce()),
            turn: Turn::default(),
            listening: None,
            root: 0,
            ticks: Ticks::default(),
            serialized: Vec::new(),
            #[cfg(feature = "decision-timing")]
            timing: timing::Timing::default(),
        }
    }

    /// A root context went, and with it its configuration.
    pub(crate) fn root_gone(&mut self, root: u32) {
        self.run(root, Callback::Other, |filter, proxy| {
            filter.gone(proxy, root);
        });
        match self.filter.listeners().newest(Direction::Inbound) {
            Some(newest) if self.root == root => {
                self.attend_from(newest);
                self.attend(root, false);
            }
            Some(_) => {}
            None => self.listening = None,
        }
    }

    /// Ticks and wake-ups are to come to `root`, from the next callback on.
    fn attend_from(&mut self, root: u32) {
        self.root = root;
        self.listening = None;
        self.ticks = Ticks::default();
    }

    /// Takes a configuration over; false, with the reason in the log, where there is none in force then.
    pub(crate) fn configure(&mut self, root: u32, direction: Direction, json: &[u8]) -> bool {
        let proxy = Effective(root);
        let Ok(now) = proxy.now() else {
            return self.filter.is_configured();
        };
        let applied = self.filter.configure(&proxy, now, (root, NAME), json);
        self.act(root, Callback::Other);
        if applied.is_err() {
            self.filter.refused((root, NAME), direction);
        }
        if direction == Direction::Inbound {
            self.attend_from(root);
            self.attend(root, false);
        }
        // Envoy asks a canary VM first and rejects the update on its `false`. A VM at work must never say it: Envoy
        // would fail the VM and with it all requests.
        applied.is_ok() || self.filter.is_configured()
    }

    /// Makes sure that wake-ups and ticks come, and ticks no more often than something needs them.
    ///
    /// `current` is the context of the callback that we are in; `in_tick`, whether it is a tick.
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
        // Envoy registers both for the root of the effective context.
        let entered = ffi::set_effective_context(self.root);
        self.check(entered);
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
        let back = ffi::set_effective_context(current);
        self.check(back);
    }

    /// Request headers of `stream`. Where it is refused, the local reply is on its way.
    pub(crate) fn request(&mut self, stream: u32, inbound: &mut Inbound) -> Decision {
        if self.filter.engine().is_idle() {
            return Decision::PassBy;
        }
        let decision = inbound.request_headers(&mut self.filter, &Effective(stream));
        #[cfg(feature = "decision-timing")]
        self.timing.record(self.filter.host(), self.filter.last());
        self.act(stream, Callback::OfStream);
        self.attend(stream, false);
        if let Decision::Refuse(refusal) = &decision {
            self.refuse(refusal);
        }
        decision
    }

    /// Runs `f` with the filter, in a callback of `stream` that something may still go through.
    pub(crate) fn on<T>(
        &mut self,
        stream: u32,
        f: impl FnOnce(&mut Filter<Unfiltered<EnvoyHost>>, &Effective) -> T,
    ) -> T {
        self.run(stream, Callback::OfStream, f)
    }

    fn run<T>(
        &mut self,
        context: u32,
        callback: Callback,
        f: impl FnOnce(&mut Filter<Unfiltered<EnvoyHost>>, &Effective) -> T,
    ) -> T {
        let done = f(&mut self.filter, &Effective(context));
        self.act(context, callback);
        done
    }

    /// The stream of a request ends.
    pub(crate) fn done(&mut self, stream: u32, inbound: &mut Inbound) {
        self.turn.forget(|action| action.stream() == stream);
        self.run(stream, Callback::Other, |filter, stream| {
            inbound.done(filter, stream);
        });
    }

    /// The application makes a call: `stream` carries it. False: it waits.
    pub(crate) fn call(&mut self, stream: u32, outbound: &mut Outbound) -> bool {
        let sent = self.on(stream, |filter, stream| {
            outbound.request_headers(filter, stream)
        });
        self.attend(stream, false);
        sent
    }

    /// The stream of a call ends.
    pub(crate) fn call_done(&mut self, stream: u32, outbound: &mut Outbound) {
        self.turn.forget(|action| action.stream() == stream);
        self.on(stream, |filter, stream| outbound.done(filter, stream));
    }

    /// Another worker left a slot to us, or we woke ourselves for another turn.
    pub(crate) fn woken(&mut self, root: u32, queue: u32) {
        self.turn.begin();
        let drained = self.filter.host().host().drain(queue);
        self.check(drained);
        self.run(root, Callback::Other, Filter::woken);
    }

    /// Housekeeping.
    pub(crate) fn tick(&mut self, root: u32) {
        self.turn.begin();
        self.run(root, Callback::Other, Filter::tick);
        self.attend(root, true);
        self.report(root);
    }

    /// Sends what is to be reported. Envoy answers in a callback of `root`, which is effective.
    fn report(&mut self, root: u32) {
        let Some(callout) = self.filter.report(&Effective(root)) else {
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
        // Envoy says no more of what it can't send, as without the cluster.
        if sent.is_err() {
            self.filter.reported(&Effective(root), None);
        }
    }

    /// A report was answered by `size` bytes, or wasn't.
    pub(crate) fn reported(&mut self, root: u32, size: usize) {
        let answer = ffi::http_call_answer(size).unwrap_or_default();
        self.filter.reported(&Effective(root), answer.as_deref());
    }

    /// Resumes and refuses held requests; Envoy carries it out when the callback returns. Then the
    /// effective context is again `own`, that of the callback. A callback of a stream refuses nobody ([`crate::turn`]).
    fn act(&mut self, own: u32, callback: Callback) {
        self.turn.add(self.filter.actions());
        let mut any = false;
        while let Some(action) = self.turn.next() {
            if callback == Callback::OfStream && matches!(action, Action::Refuse { .. }) {
                self.turn.postpone(action);
                continue;
            }
            any = true;
            let stream = action.stream();
            // A stream that is gone has told us, or is about to: its place is given back then.
            if ffi::set_effective_context(stream).is_err() {
                continue;
            }
            match action {
                Action::Resume { ticket, .. } => {
                    self.filter.resume(&Effective(stream), ticket);
                    // A gateway's request that goes on is a call, and calls may have consequences for others.
                    self.turn.add(self.filter.actions());
                    let resumed = ffi::resume_request();
                    self.check(resumed);
                }
                Action::Refuse { refusal, .. } => self.refuse(&refusal),
                Action::Send { .. } => {
                    self.filter.send(&Effective(stream));
                    self.turn.add(self.filter.actions());
                    let sent = ffi::resume_request();
                    self.check(sent);
                }
            }
        }
        if any {
            let back = ffi::set_effective_context(own);
            self.check(back);
        }
        if let Some((_, queue)) = self.listening
            && self.turn.needs_wake()
        {
            let woken = ffi::enqueue(queue);
            self.check(woken);
        }
    }

    fn refuse(&mut self, refusal: &Refusal) {
        let reply = self.filter.reply(refusal);
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
    }

    fn check(&mut self, done: Result<(), HostError>) {
        self.filter.check(&Effective(self.root), done);
    }

    /// Says that Envoy's stats matcher rejects what the limit is kept in. Its effect on the limit is none, on everybody who
    /// looks at stats that there are none.
    fn tell_rejected(&self) {
        let Some(name) = self.filter.host().take_rejected() else {
            return;
        };
        ffi::log(
            Level::Warn,
            &format!(
                "headgate: stats_config.stats_matcher rejects the gauge {name:?}, so this worker keeps its share of the \
                 limit in shared data, which costs some microseconds a request; dashboards and `headgate top` lack what \
                 is rejected. Add the prefix \"wasmcustom.headgate.\" to the matcher's inclusion list (Envoy Gateway: \
                 EnvoyProxy spec.telemetry.metrics.matches)"
            ),
        );
    }
}

#[cfg(feature = "decision-timing")]
mod timing {
    //! What a decision costs inside the guest: from the clock reading that starts it to its end.

    use headgate_core::host::{MetricId, MetricKind, Metrics};
    use headgate_core::http::Proxy;
    use headgate_core::time::Instant;

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
                // A histogram that can't be written shows as an empty one.
                host.record(metric, headgate_core::time::nanos(end.since(start)))
                    .unwrap_or(());
            }
        }
    }
}
