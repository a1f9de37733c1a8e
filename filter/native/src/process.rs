//! The engine of the process, behind one lock, and the code that drives it.
//!
//! A thread that holds the lock may read and change its own streams, because Envoy then never calls
//! a hook. Replies, resumptions and messages to other workers may call hooks, or are slow, so they
//! take place after the lock is released.
//!
//! A panic fails open ([`crate::recovery`]). The engine is not used again, and held requests
//! continue. All requests pass until a tick replaces the engine.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use headgate_core::config::{Direction, FilterConfig};
use headgate_core::decision::Action;
use headgate_core::engine::Prepared;
use headgate_core::http::{Level, LocalReply, Proxy};
use headgate_core::workers::WorkerId;
use headgate_mesh::Filter;
use headgate_strategies::host::{HostError, Shared};
use headgate_strategies::time::Instant;

use crate::abi::{self, Envoy, Scheduler, Scope};
use crate::clock::Clock;
use crate::metrics::{self, Change, Defined, Names};
use crate::shared::{Host, PANICS};
use crate::{recovery, stream};

/// The decision on a request at its headers.
pub(crate) enum Head {
    /// The request continues.
    Continue,
    /// The request waits.
    Hold,
    /// The filter answers the request.
    Reply(LocalReply),
}

static PROCESS: Mutex<Option<Process>> = Mutex::new(None);
/// Whether the engine has panicked. All requests pass until it is replaced.
static FAILED: AtomicBool = AtomicBool::new(false);
/// Whether another library of the process has handed a slot to this one.
static WOKEN: AtomicBool = AtomicBool::new(false);
static STREAMS: AtomicU32 = AtomicU32::new(0);
static CONFIGURATIONS: AtomicU32 = AtomicU32::new(0);

/// The number of tick periods after which the main thread's tick counts as late.
const LATE: u32 = 2;

#[cfg(test)]
pub(crate) use crate::abi::fake::now;

/// Returns the time of the system's monotonic clock, which is the same for all threads and for all
/// libraries of the process.
#[cfg(not(test))]
pub(crate) fn now() -> Instant {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let part = |part: i64| u64::try_from(part).unwrap_or_default();
    Instant::from_nanos(
        part(now.tv_sec)
            .saturating_mul(1_000_000_000)
            .saturating_add(part(now.tv_nsec)),
    )
}

/// Returns a number for a stream. A number is reused after 2^32 streams.
pub(crate) fn next_stream() -> u32 {
    STREAMS.fetch_add(1, Ordering::Relaxed)
}

/// Returns a random number that no other engine of the process has. It comes from the system's
/// random bytes, through the hash seeds of the standard library.
fn nonce() -> u64 {
    RandomState::new().hash_one(0_u8)
}

/// A held request.
struct Waiting {
    /// The handle that resumes the request. It is taken when the request's turn has come.
    scheduler: Option<Scheduler>,
    /// The action for the request when its turn has come.
    action: Option<Action>,
}

/// The state behind the lock.
pub(crate) struct Process {
    pub(crate) filter: Filter<Host>,
    /// The number of the engine, from 1 on. Tickets of a failed engine are invalid in the next
    /// engine.
    pub(crate) epoch: u32,
    waiting: HashMap<u32, Waiting>,
    /// The worker number under which other libraries wake this engine.
    listening: Option<WorkerId>,
    /// The time of the last tick.
    ticked: Instant,
    /// The configuration to which the last tick wrote metrics.
    shown_by: Option<u32>,
}

/// The proxy on the main thread, outside of any stream.
struct Main;

impl Proxy for Main {
    fn now(&self) -> Result<Instant, HostError> {
        Ok(now())
    }

    fn log(&self, level: Level, message: &str) {
        abi::log(level, message);
    }
}

/// Locks the process, even if its engine has failed.
fn lock() -> MutexGuard<'static, Option<Process>> {
    PROCESS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes the engine, as in a new process.
#[cfg(test)]
pub(crate) fn reset() {
    *lock() = None;
    PROCESS.clear_poison();
    FAILED.store(false, Ordering::SeqCst);
}

/// Whether any thread holds the lock.
#[cfg(test)]
pub(crate) fn is_locked() -> bool {
    PROCESS.try_lock().is_err()
}

/// Runs `f` under the lock, then resumes the requests whose turn has come. Returns `None` if there
/// is no working engine.
pub(crate) fn with<T>(f: impl FnOnce(&mut Process) -> T) -> Option<T> {
    let now = now();
    // A panic under the lock poisons the lock. A panic elsewhere doesn't, so `FAILED` is checked,
    // too.
    let mut locked = PROCESS.lock().ok()?;
    if FAILED.load(Ordering::Relaxed) {
        return None;
    }
    let process = locked.as_mut()?;
    let result = f(process);
    process.tick_if_late(now);
    if !process.filter.suspects().is_empty() {
        stream::look(&mut process.filter, now);
    }
    let due = process.due();
    // A request whose turn has come stays in `waiting` until its worker continues it, and needs no
    // ticks. Without the engine's answer, a tick that finds only such requests would schedule the
    // next tick at once.
    let busy = !process.waiting.is_empty() && process.filter.engine().is_busy();
    drop(locked);
    for scheduler in due {
        scheduler.commit();
    }
    if busy {
        Clock::hurry();
    }
    Some(result)
}

/// Handles the start of a panic, from which on all requests pass. The panic hook calls this
/// function before the lock is released. So [`recover`] finds the pause, and no thread uses an
/// engine that panicked.
pub(crate) fn panicked() {
    let pause = recovery::failed(now());
    if !FAILED.swap(true, Ordering::SeqCst) {
        let message = format!(
            "headgate: the filter panicked: {}; all requests pass, and in {} ms it restarts with \
             its measurements. This is a bug: please report it",
            recovery::last_panic(),
            pause.as_millis(),
        );
        abi::log(Level::Error, &message);
    }
}

/// Handles a panic in a hook, after which held requests continue.
pub(crate) fn failed() {
    let mut locked = lock();
    let waiting = locked.as_mut().map(|process| {
        process.count_panic();
        // If a new engine has replaced the failed one meanwhile, the requests of the new engine
        // keep waiting.
        match FAILED.load(Ordering::SeqCst) {
            true => std::mem::take(&mut process.waiting),
            false => HashMap::new(),
        }
    });
    drop(locked);
    let_go(waiting.unwrap_or_default());
}

/// Resumes the held requests of a failed engine.
fn let_go(waiting: HashMap<u32, Waiting>) {
    let waiting = waiting.into_values();
    for scheduler in waiting.filter_map(|waiting| waiting.scheduler) {
        scheduler.commit();
    }
}

/// Replaces a failed engine, if the pause after the panic is over.
fn recover() {
    if !FAILED.load(Ordering::SeqCst) || !recovery::is_due(now()) {
        return;
    }
    let mut locked = lock();
    PROCESS.clear_poison();
    let Some(process) = locked.as_mut() else {
        FAILED.store(false, Ordering::SeqCst);
        return;
    };
    process.epoch += 1;
    process.listening = None;
    let waiting = std::mem::take(&mut process.waiting);
    process.filter.restart(&Main, nonce());
    FAILED.store(false, Ordering::SeqCst);
    drop(locked);
    let_go(waiting);
    abi::log(Level::Info, "headgate: the filter works again");
}

/// Handles a wake-up by another library, which handed a slot to this library. The other library
/// holds its engine's lock meanwhile.
pub(crate) extern "C" fn wake() {
    WOKEN.store(true, Ordering::SeqCst);
    Clock::tick_now();
}

impl Process {
    fn new() -> Self {
        Self {
            filter: Filter::new(Host::new(), nonce()),
            epoch: 1,
            waiting: HashMap::new(),
            listening: None,
            ticked: now(),
            shown_by: None,
        }
    }

    /// Does the periodic work, on any thread.
    fn tick(&mut self) {
        self.ticked = now();
        if WOKEN.swap(false, Ordering::SeqCst) {
            self.filter.woken(&Main);
        }
        self.filter.tick(&Main);
        self.listen();
    }

    /// Does the periodic work on a worker if the main thread is late. A large update or a scrape of
    /// many stats may keep the main thread busy for seconds. Metrics and reports wait for the main
    /// thread.
    fn tick_if_late(&mut self, now: Instant) {
        if now.since(self.ticked) > LATE * Clock::period() {
            self.tick();
        }
    }

    /// Registers the engine under its current worker number, so that other workers can wake it.
    fn listen(&mut self) {
        let worker = self.filter.engine().worker();
        if let Some(worker) = worker
            && self.listening != Some(worker)
        {
            self.filter.host().listen(worker);
            self.listening = Some(worker);
        }
    }

    fn count_panic(&self) {
        let host = self.filter.host();
        let panics = host.number(PANICS);
        // A number in memory can be written without errors.
        panics
            .and_then(|panics| host.add_to(panics, 1))
            .unwrap_or(());
    }

    /// Holds the request of `stream`, which belongs to `envoy`.
    pub(crate) fn hold(&mut self, stream: u32, envoy: Envoy) {
        let waiting = Waiting {
            scheduler: Some(envoy.scheduler()),
            action: None,
        };
        self.waiting.insert(stream, waiting);
    }

    /// Returns the action for a held request whose turn has come, and forgets the request.
    pub(crate) fn decided(&mut self, stream: u32) -> Option<Action> {
        self.waiting.remove(&stream)?.action
    }

    /// Removes a stream that has ended.
    pub(crate) fn forget(&mut self, stream: u32) {
        self.waiting.remove(&stream);
    }

    /// Returns the schedulers of the requests whose turn has come.
    fn due(&mut self) -> Vec<Scheduler> {
        let waiting = &mut self.waiting;
        let due = self.filter.actions().drain(..).filter_map(|action| {
            let held = waiting.get_mut(&action.stream())?;
            held.action = Some(action);
            held.scheduler.take()
        });
        due.collect()
    }

    /// Moves changed metrics to `out`.
    fn take_metrics(&self, defined: &Defined, out: &mut Vec<Change>) {
        let host = self.filter.host();
        // Counts in memory can be written without errors.
        host.publish().unwrap_or(());
        host.metrics().take(defined, out);
    }
}

/// One configuration of one listener.
pub(crate) struct Configuration {
    /// The number of the configuration among the filter's listeners.
    id: u32,
    /// The filter's name, which identifies the listener if several have different policies.
    name: Arc<str>,
    direction: Direction,
    pub(crate) scope: Scope,
    defined: OnceLock<Defined>,
}

impl Configuration {
    /// Applies a configuration. Returns `None` if the configuration is refused, and logs the
    /// reason.
    pub(crate) fn new(scope: Scope, name: &str, json: &[u8]) -> Option<Arc<Self>> {
        let this = Arc::new(Self {
            id: CONFIGURATIONS.fetch_add(1, Ordering::Relaxed),
            name: name.into(),
            direction: FilterConfig::direction_of(json),
            scope,
            defined: OnceLock::new(),
        });
        // A failed engine is replaced first, so that this configuration is applied to the new
        // engine.
        recovery::hurry();
        recover();
        let prepared = Prepared::from_json(&Names, json);
        let mut locked = lock();
        let process = locked.get_or_insert_with(Process::new);
        let applied = process
            .filter
            .take_over(&Main, now(), (this.id, name), prepared);
        if applied.is_ok() {
            process.filter.join(&Main);
            process.listen();
            let (filter, host) = (&process.filter, process.filter.host());
            host.forget_others(filter.policies());
            // Counts in memory can be written without errors.
            host.publish().unwrap_or(());
        }
        let due = process.due();
        drop(locked);
        for scheduler in due {
            scheduler.commit();
        }
        applied.ok()?;
        // The lock must not be held here, because Envoy takes a microsecond for each of some
        // thousand definitions.
        let defined = this.defined.get_or_init(|| metrics::define_in(scope));
        let members = with(|process| process.filter.host().metrics().members(defined));
        for member in &members.unwrap_or_default() {
            scope.write(member);
        }
        Clock::add(&this, scope.ticker());
        Some(this)
    }

    pub(crate) fn name(&self) -> &Arc<str> {
        &self.name
    }

    pub(crate) fn direction(&self) -> Direction {
        self.direction
    }

    /// Removes a configuration that Envoy has dropped. Envoy drops a configuration after its last
    /// stream, or because an update failed.
    pub(crate) fn gone(self: Arc<Self>) {
        let handled = with(|process| process.filter.gone(&Main, self.id));
        if handled.is_none()
            && let Some(process) = lock().as_mut()
        {
            process.filter.forget(self.id);
        }
        Clock::remove(&self);
    }
}

/// Does the periodic work on the main thread, in a hook of `configuration`. Envoy keeps
/// `configuration` until the hook returns.
pub(crate) fn tick(configuration: &Arc<Configuration>) {
    Clock::ticked();
    recover();
    let mut changed = Vec::new();
    let mut callout = None;
    with(|process| {
        if process.filter.listeners().last() != Some(configuration.id) {
            return;
        }
        // Envoy creates and drops the configurations of an update in one go, so the update of this
        // configuration has not failed.
        process.filter.settle(&Main);
        process.tick();
        callout = headgate_mesh::report(&mut process.filter, &Main);
        if let Some(defined) = configuration.defined.get() {
            // This configuration is new, or a newer one has gone.
            if process.shown_by.replace(configuration.id) != Some(configuration.id) {
                process.filter.host().metrics().rewrite_gauges();
            }
            process.take_metrics(defined, &mut changed);
        }
        if !process.filter.engine().is_busy() {
            Clock::calm();
        }
    });
    for change in &changed {
        configuration.scope.write(change);
    }
    // The lock must not be held here, because Envoy may call back with the response at once.
    if let Some(callout) = callout
        && !configuration.scope.post(&callout)
    {
        reported(None);
    }
}

/// Handles the response to the report that a tick sent. `answer` is `None` if there is no response.
pub(crate) fn reported(answer: Option<&[u8]>) {
    with(|process| headgate_mesh::reported(&mut process.filter, &Main, answer));
}

#[cfg(test)]
mod tests {
    use headgate_core::engine::SLOW_TICK;

    use crate::abi::fake::{self, Became, Listener, Stream};
    use crate::clock::Clock;

    /// A configuration with one slot, and a queue in which requests wait for at most a second.
    const ONE_SLOT: &str = r#"{"stages":[{"policy":"ns/one","parallelism":1,
        "queue":{"max_length":10,"timeout_us":1000000},
        "strategy":{"type":"MaxQueueLength"},"types":[{"name":"default"}]}]}"#;

    #[test]
    fn the_next_request_gets_the_slot() {
        let _turn = fake::start();
        let listener = Listener::new(ONE_SLOT).unwrap();
        let (first, became) = Stream::arrive(&listener, "/");
        assert_eq!(became, Became::Forwarded);
        let (second, became) = Stream::arrive(&listener, "/");
        assert_eq!(became, Became::Held);
        first.answer();
        fake::run_scheduled();
        assert_eq!(second.became(), Some(Became::Forwarded));
    }

    /// Envoy answers a request that waits, as after a timeout. The request may have got its turn
    /// just before.
    #[test]
    fn a_held_request_that_envoy_answers_is_forgotten() {
        let _turn = fake::start();
        let listener = Listener::new(ONE_SLOT).unwrap();
        let waiting = || super::lock().as_ref().map(|process| process.waiting.len());
        for has_turn in [false, true] {
            let (first, _) = Stream::arrive(&listener, "/");
            let (second, became) = Stream::arrive(&listener, "/");
            assert_eq!((became, waiting()), (Became::Held, Some(1)));
            if has_turn {
                first.answer();
                listener.tick();
                assert_eq!((waiting(), Clock::period()), (Some(1), SLOW_TICK));
            }
            second.time_out();
            fake::run_scheduled();
            assert_eq!((second.became(), waiting()), (None, Some(0)), "{has_turn}");
            drop((first, second));
            let (next, became) = Stream::arrive(&listener, "/");
            assert_eq!(became, Became::Forwarded);
            drop(next);
        }
    }

    #[test]
    fn a_delayed_call_that_envoy_answers_is_not_sent() {
        const CALLS: &str = r#"{"direction":"Outbound","outbound":{"policy":"ns/p",
            "services":{"stock*":"stock"},
            "smoothing":{"least_us":100000,"most_us":300000,"enforced":true}}}"#;
        let _turn = fake::start();
        let _inbound = Listener::new(ONE_SLOT).unwrap();
        let calls = Listener::new(CALLS).unwrap();
        let (mut refused, became) = Stream::arrive(&calls, "stock");
        assert_eq!(became, Became::Forwarded);
        refused.set_header("x-headgate-rejection-rate", "1");
        refused.answer();
        let (call, became) = Stream::arrive(&calls, "stock");
        assert_eq!(became, Became::Held);
        fake::pass(300);
        calls.tick();
        call.time_out();
        fake::run_scheduled();
        assert_eq!(call.became(), None);
        drop(call);
        let waiting = super::lock().as_ref().map(|process| process.waiting.len());
        assert_eq!(waiting, Some(0));
    }

    /// Returns the tags that were set since the last call.
    fn tags() -> Vec<String> {
        let tags = std::mem::take(&mut fake::seen().tags);
        tags.iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect()
    }

    #[test]
    fn a_traced_request_says_what_was_decided() {
        let _turn = fake::start();
        let listener = Listener::new(&ONE_SLOT.replace(":10", ":1")).unwrap();
        fake::seen().tracing = true;
        let (first, _) = Stream::arrive(&listener, "/");
        let admitted = ["headgate.type=default", "headgate.decision=admitted"];
        let wait = |ms| [format!("headgate.queue_wait_ms={ms}")];
        let admitted = admitted.map(str::to_owned);
        assert_eq!(tags(), [&admitted[..], &wait(0)].concat());
        let (_second, became) = Stream::arrive(&listener, "/");
        assert_eq!((became, tags()), (Became::Held, vec![admitted[0].clone()]));
        let (_third, became) = Stream::arrive(&listener, "/");
        assert_eq!(became, Became::Answered(503));
        assert_eq!(
            tags(),
            [
                "headgate.type=default",
                "headgate.decision=refused",
                "headgate.reason=queue_full"
            ]
        );
        fake::pass(30);
        first.answer();
        fake::run_scheduled();
        assert_eq!(tags(), [&admitted[1..], &wait(30)].concat());
    }

    #[test]
    fn a_held_request_that_is_refused_says_how_long_it_waited() {
        let _turn = fake::start();
        let listener = Listener::new(ONE_SLOT).unwrap();
        fake::seen().tracing = true;
        let (_running, _) = Stream::arrive(&listener, "/");
        let (_late, _) = Stream::arrive(&listener, "/");
        tags();
        fake::pass(1_015);
        let (_another, _) = Stream::arrive(&listener, "/");
        tags();
        fake::run_scheduled();
        assert_eq!(
            tags(),
            [
                "headgate.decision=refused",
                "headgate.reason=queue_timeout",
                "headgate.queue_wait_ms=1015"
            ]
        );
    }

    #[test]
    fn a_request_without_a_span_is_asked_for_it_once() {
        let _turn = fake::start();
        let listener = Listener::new(ONE_SLOT).unwrap();
        let (first, _) = Stream::arrive(&listener, "/");
        let (second, _) = Stream::arrive(&listener, "/");
        first.answer();
        fake::run_scheduled();
        assert_eq!(second.became(), Some(Became::Forwarded));
        assert_eq!(fake::seen().spans, 2);
        assert!(tags().is_empty());
    }

    #[test]
    fn a_request_at_a_host_that_hangs_gives_its_slot_back() {
        let _turn = fake::start();
        let objective = r#"{"name":"default","slo":[{"percentile":50,"objective_us":50000}]}"#;
        let listener = ONE_SLOT.replace(r#"{"name":"default"}"#, objective);
        let listener = Listener::new(&listener.replace(":1,", ":2,")).unwrap();
        let answer = || {
            for _ in 0..30 {
                let (stream, became) = Stream::arrive(&listener, "/other");
                assert_eq!(became, Became::Forwarded);
                fake::pass(20);
                listener.tick();
                stream.answer();
            }
        };
        let in_use = || {
            let (stream, _) = Stream::arrive(&listener, "/other");
            listener.tick();
            stream.answer();
            listener.tick();
            let seen = fake::seen();
            let name = "headgate.policy.ns/one.slots_in_use";
            let mut written = seen.written.iter().rev();
            written.find(|(of, _)| of == name).map(|(_, value)| *value)
        };
        answer();
        let (hung, _) = Stream::arrive(&listener, "/hangs");
        assert_eq!(in_use(), Some(1));
        answer();
        assert_eq!(in_use(), Some(0));
        drop(hung);
        assert_eq!(in_use(), Some(0));
    }

    /// A worker does the periodic work, because Envoy's main thread may be busy for seconds.
    #[test]
    fn a_worker_ticks_while_the_main_thread_is_late() {
        let _turn = fake::start();
        let listener = Listener::new(ONE_SLOT).unwrap();
        let (running, _) = Stream::arrive(&listener, "/");
        let (late, became) = Stream::arrive(&listener, "/");
        assert_eq!(became, Became::Held);
        fake::pass(990);
        let (_behind, became) = Stream::arrive(&listener, "/");
        assert_eq!(became, Became::Held);
        fake::run_scheduled();
        assert_eq!(late.became(), None);
        fake::pass(25);
        let (_another, _) = Stream::arrive(&listener, "/");
        fake::run_scheduled();
        assert_eq!(late.became(), Some(Became::Answered(503)));
        drop(running);
    }

    /// The lock is released while the stack unwinds, so a tick may come before the hook that
    /// panicked ends.
    #[test]
    fn an_engine_that_is_replaced_before_the_hook_ends_is_replaced_once() {
        let _turn = fake::start();
        let listener = Listener::new(ONE_SLOT).unwrap();
        let (_running, _) = Stream::arrive(&listener, "/");
        let (held, became) = Stream::arrive(&listener, "/");
        assert_eq!(became, Became::Held);
        let panics = || {
            super::with(|_| -> () {
                super::panicked();
                panic!("a bug");
            })
        };
        assert!(std::panic::catch_unwind(panics).is_err());
        let epoch = || super::lock().as_ref().map(|process| process.epoch);
        listener.tick();
        assert_eq!(epoch(), Some(1), "not before the pause is over");
        fake::pass(10_000);
        listener.tick();
        fake::run_scheduled();
        assert_eq!((epoch(), held.became()), (Some(2), Some(Became::Forwarded)));

        let (_next, became) = Stream::arrive(&listener, "/");
        assert_eq!(became, Became::Forwarded);
        let (waiting, _) = Stream::arrive(&listener, "/");
        super::failed();
        fake::run_scheduled();
        assert_eq!(waiting.became(), None);
        fake::pass(20_000);
        super::recover();
        assert_eq!(epoch(), Some(2));
        let log = fake::seen().log.join("\n");
        assert_eq!(log.matches("the filter panicked").count(), 1, "{log}");
        assert_eq!(log.matches("the filter works again").count(), 1, "{log}");
    }

    /// Envoy cancels the request of a configuration when the configuration is removed. That may
    /// happen on a worker, with the last stream of an old configuration.
    #[test]
    fn only_the_newest_configuration_sends_reports() {
        const CALLS: &str = r#"{"direction":"Outbound","outbound":{"policy":"ns/p",
            "services":{"stock*":"stock"},"class_admission":{"stock":{
            "classes":[{"name":"high","matches":[{"method":"PUT"}]},{"name":"low"}],
            "targets_us":[50000],"percentile":99,"per_cost":false,"increase":0.01,"decrease":1.0,
            "min_probability":0.000001,"enforced":true,"central":{"service":"ns/stock",
            "method":{"type":"Misses","allowed":2,"period_us":10000000},"scope":"Class",
            "report_us":100000,"fallback":"Admit"}}}}}"#;
        let _turn = fake::start();
        let _inbound = Listener::new(ONE_SLOT).unwrap();
        let (old, new) = [(); 2].map(|()| Listener::new(CALLS).unwrap()).into();
        let (_call, became) = Stream::arrive(&old, "stock");
        assert_eq!(became, Became::Forwarded);
        let sent = |listener: &Listener| {
            fake::pass(100);
            listener.tick();
            std::mem::take(&mut fake::seen().callouts)
        };
        assert_eq!((sent(&old), sent(&new)), (0, 1));
        drop(new);
        assert_eq!(sent(&old), 1);
    }

    #[test]
    fn a_tick_writes_what_was_counted() {
        let _turn = fake::start();
        let listener = Listener::new(ONE_SLOT).unwrap();
        let (_running, _) = Stream::arrive(&listener, "/");
        let (_waiting, _) = Stream::arrive(&listener, "/");
        let total = "headgate.policy.ns/one.type.default.rq_total";
        let written = || {
            let seen = fake::seen();
            let of = seen.written.iter().filter(|(name, _)| name == total);
            of.map(|(_, value)| *value).collect::<Vec<_>>()
        };
        assert!(written().is_empty());
        listener.tick();
        assert_eq!(written(), [2]);
        listener.tick();
        assert_eq!(written(), [2]);
    }

    #[test]
    fn metrics_of_a_policy_go_with_it_and_come_back() {
        let _turn = fake::start();
        let two = ONE_SLOT.replace("ns/one", "ns/two");
        let of_one = || {
            let metrics = &fake::seen().metrics;
            let of_one = metrics.iter().filter(|name| name.contains("ns/one"));
            of_one.count()
        };
        let one = Listener::new(ONE_SLOT).unwrap();
        let (_running, _) = Stream::arrive(&one, "/");
        let second = Listener::new(&two).unwrap();
        drop((_running, one));
        second.tick();
        fake::seen().metrics.clear();
        let third = Listener::new(&two).unwrap();
        assert_eq!(of_one(), 0);
        let back = Listener::new(ONE_SLOT).unwrap();
        assert!(of_one() > 0);
        let (_running, _) = Stream::arrive(&back, "/");
        back.tick();
        for (metric, value) in [("type.default.rq_total", 1), ("slots_in_use", 1)] {
            let name = format!("headgate.policy.ns/one.{metric}");
            assert!(fake::seen().written.contains(&(name, value)), "{metric}");
        }
        drop((second, third));
    }

    /// Envoy removes the metrics with the configuration, and defines new ones for the next.
    #[test]
    fn gauges_are_written_again_after_the_last_configuration_was_gone() {
        let _turn = fake::start();
        for _ in 0..2 {
            let listener = Listener::new(ONE_SLOT).unwrap();
            let (running, _) = Stream::arrive(&listener, "/");
            listener.tick();
            let slots = ("headgate.policy.ns/one.slots".to_owned(), 1);
            assert!(fake::seen().written.contains(&slots));
            drop((running, listener));
            fake::seen().written.clear();
        }
    }

    /// Envoy removes the members of families with the configuration that wrote them.
    #[test]
    fn gauges_are_written_again_after_the_newest_of_several_configurations_was_gone() {
        let _turn = fake::start();
        let workflows = r#""workflows":{"identify":[{"type":"Type"}],"quantile":0.5,
            "interval_us":100000,"rate_ttl_us":1000000,"sharing":{"type":"StaticGuarantees"},
            "max_workflows":10,"max_queue_length":20,"workflows":{}},"types":"#;
        let json = ONE_SLOT.replace(r#""types":"#, workflows);
        let [first, second] = [(); 2].map(|()| Listener::new(&json).unwrap());
        drop(Stream::arrive(&first, "/"));
        let is_written = || {
            let written = std::mem::take(&mut fake::seen().written);
            let name = "headgate.workflow.limited ns/one default";
            written.iter().any(|(of, _)| of == name)
        };
        fake::pass(200);
        for listener in [second, first] {
            listener.tick();
            assert!(is_written());
            listener.tick();
            assert!(!is_written());
        }
    }

    #[test]
    fn slow_calls_of_envoy_are_made_without_the_lock() {
        let _turn = fake::start();
        let listener = Listener::new(ONE_SLOT).unwrap();
        assert!(!fake::seen().metrics.is_empty());
        let (_running, _) = Stream::arrive(&listener, "/");
        listener.tick();
        assert!(!fake::seen().written.is_empty());
        assert_eq!(fake::seen().locked, [""; 0]);
    }

    /// Envoy drops a configuration at once if another part of its update fails.
    #[test]
    fn requests_wait_on_while_an_update_fails() {
        let _turn = fake::start();
        let listener = Listener::new(ONE_SLOT).unwrap();
        let (first, _) = Stream::arrive(&listener, "/");
        let (second, became) = Stream::arrive(&listener, "/");
        assert_eq!(became, Became::Held);
        let other = ONE_SLOT.replace("ns/one", "ns/other");
        drop(Listener::new(&other).unwrap());
        let tick = |listener: &Listener| {
            listener.tick();
            fake::run_scheduled();
        };
        tick(&listener);
        assert_eq!(second.became(), None);
        let other = Listener::new(&other).unwrap();
        tick(&listener);
        assert_eq!(second.became(), None);
        tick(&other);
        assert_eq!(second.became(), Some(Became::Forwarded));
        drop((first, second));
    }

    #[test]
    fn a_refused_configuration_is_reported_and_the_last_one_stays() {
        let _turn = fake::start();
        let listener = Listener::new(ONE_SLOT).unwrap();
        assert!(Listener::new(r#"{"stages":1}"#).is_none());
        let logged = fake::seen().log.last().cloned().unwrap();
        assert!(logged.contains("the last good one stays"), "{logged}");
        let (_running, _) = Stream::arrive(&listener, "/");
        let (_waiting, became) = Stream::arrive(&listener, "/");
        assert_eq!(became, Became::Held);
    }
}
