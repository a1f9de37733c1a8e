//! A process of several workers, in memory: its streams, its configurations and its clock.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use headgate_core::config::{FilterConfig, Mode, QueueMode};
use headgate_core::decision::{Action, Decision, PolicyId, Refusal};
use headgate_core::host::MetricKind;
use headgate_core::http::{Inbound, LocalReply, Property};
use headgate_mesh::{Filter, Outbound};
use headgate_strategies::rng::Rng;
use headgate_strategies::time::Instant;

use crate::memory::{MemoryHost, MemoryStream};
use crate::policies::{any_configurations, below, env_shows};

/// Request headers that the filter reads, each with values that it may find there.
const REQUEST: [(&str, &[&str]); 25] = [
    ("x-class", &["gold", "silver", "other"]),
    ("x-tenant", &["a", "b", "c", "", "any id"]),
    ("x-headgate-workflow", &["checkout", "search", "_other", ""]),
    (
        "baggage",
        &[
            "workflow=checkout",
            "tenant=b,workflow=c;p=1",
            "=,;",
            "workflow=%ff",
        ],
    ),
    (
        "content-length",
        &[
            "0",
            "17",
            "4000",
            "4294967296",
            "99999999999999999999",
            "-1",
        ],
    ),
    (
        "x-max-tokens",
        &["1", "900", "4294967295", "18446744073709551615", "x"],
    ),
    ("x-rows", &["0", "3", "1000000", "9223372036854775807"]),
    ("x-cost", &["0", "1", "77", "16777217", "1e9"]),
    ("x-headgate-cost", &["1", "5000", "18446744073709551615"]),
    ("x-headgate-quality", &["0.10"]),
    ("x-retry-attempt", &["0", "1", "2", "-1"]),
    ("x-stainless-retry-count", &["0", "1", "4294967296"]),
    ("x-envoy-attempt-count", &["1", "2", ""]),
    ("grpc-previous-rpc-attempts", &["1"]),
    ("grpc-timeout", &["1n", "20m", "3S", "99999999H"]),
    (
        "x-headgate-timeout-ms",
        &["0", "1", "300", "18446744073709551615"],
    ),
    ("x-envoy-expected-rq-timeout-ms", &["0", "15", "15000"]),
    (
        "x-headgate-progress",
        &["0", "1,2", "12;5", "18446744073709551615"],
    ),
    (
        "x-headgate-process",
        &["1", "abcdef", "18446744073709551615"],
    ),
    ("x-headgate-class", &["gold", "1", "downgraded"]),
    ("x-headgate-request", &["1", "0-0-0"]),
    ("content-type", &["application/grpc", "application/json"]),
    ("upgrade", &["websocket"]),
    ("connection", &["upgrade"]),
    ("x-model", &["large"]),
];

/// Response headers that the filter reads.
const RESPONSE: [(&str, &[&str]); 8] = [
    ("grpc-status", &["0", "14", "10", "x"]),
    (
        "content-type",
        &["text/event-stream", "application/json", "application/grpc"],
    ),
    (
        "endpoint-load-metrics",
        &[
            "TEXT named_metrics.db.rows=12",
            "JSON {}",
            "TEXT db.rows=1e308",
        ],
    ),
    (
        "server-timing",
        &[
            "db.rows;dur=5",
            "db.rows;dur=-1",
            "db;dur=nan, db.rows;dur=inf",
        ],
    ),
    ("x-headgate-rate", &["0", "1.5", "1e300", "-1", "nan"]),
    ("x-headgate-rejection-rate", &["0", "0.5", "1", "2", "nan"]),
    ("x-headgate-process", &["1", "77"]),
    ("x-headgate-class", &["silver", "gold"]),
];

const PATHS: [&str; 6] = ["/", "/slow", "/Fast_1", "/x?a=b", "/healthz", ""];
const STATUSES: [&str; 7] = ["200", "200", "200", "429", "503", "101", "abc"];
const ENDS: [&str; 8] = [
    "via_upstream",
    "upstream_reset_before_response_started{connection_termination}",
    "upstream_response_timeout",
    "downstream_remote_disconnect",
    "stream_idle_timeout",
    "upstream_max_stream_duration_reached",
    "internal_redirect",
    "",
];
const PARTS: [&str; 5] = [
    "x",
    "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n",
    "data: {\"usage\":{\"completion_tokens\":4294967296}}\n\ndata: [DONE]\n\n",
    "{\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":99999999999999999999}}",
    "\n",
];
const LISTENERS: [&str; 2] = ["", "b"];

/// The position of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    /// The filter holds the request.
    Held,
    /// The request is in the backend, or passed by.
    Backend,
    /// The response has begun.
    Answered,
}

struct Request {
    worker: usize,
    stream: MemoryStream,
    inbound: Inbound,
    at: At,
}

struct Call {
    worker: usize,
    stream: MemoryStream,
    outbound: Outbound,
    held: bool,
}

/// One process.
pub(crate) struct Process<'a> {
    host: &'a MemoryHost,
    now: Instant,
    workers: Vec<Filter<&'a MemoryHost>>,
    requests: BTreeMap<u32, Request>,
    calls: BTreeMap<u32, Call>,
    /// Number of the last stream, configuration or seed.
    last: u32,
    /// The configurations that the proxy has, oldest first, with their listeners. Those of calls
    /// have none.
    configurations: Vec<(u32, Option<&'static str>)>,
    /// The policies in force, by listener.
    in_force: BTreeMap<&'static str, Vec<String>>,
    /// Whether all workers have the same configurations.
    uniform: bool,
    /// Whether an engine was replaced. The new one doesn't release what the old one booked for
    /// policies that aren't in force any more, until they come back.
    restarted: bool,
}

fn any_of<'t>(rng: &mut Rng, from: &[&'t str]) -> &'t str {
    from[below(rng, from.len() as u64) as usize]
}

/// Sets a property in place of its last value.
fn set(stream: &MemoryStream, property: Property<'_>, value: &str) {
    let name = format!("{property:?}");
    stream.properties.borrow_mut().retain(|(n, _)| *n != name);
    stream.set(property, value);
}

impl<'a> Process<'a> {
    /// Creates a process without configuration.
    pub(crate) fn new(host: &'a MemoryHost, workers: usize, seed: u32) -> Self {
        let filter = |n: usize| Filter::new(host, u64::from(seed) << 8 | n as u64);
        Self {
            host,
            now: Instant::from_nanos(1_000_000_000_000),
            workers: (0..workers).map(filter).collect(),
            requests: BTreeMap::new(),
            calls: BTreeMap::new(),
            last: 0,
            configurations: Vec::new(),
            in_force: BTreeMap::new(),
            uniform: true,
            restarted: false,
        }
    }

    fn next(&mut self) -> u32 {
        self.last += 1;
        self.last
    }

    fn proxy(&self) -> MemoryStream {
        let proxy = MemoryStream::of(&[]);
        proxy.now.set(Some(self.now));
        proxy
    }

    /// Handles an event of this kind, whose details depend on `seed` alone.
    pub(crate) fn happens(&mut self, kind: u8, seed: u64) {
        let mut rng = Rng::new(seed);
        if env_shows() {
            eprintln!(
                "{:?}: {kind} {seed}, {} live",
                self.now,
                self.requests.len()
            );
        }
        match kind {
            0..90 => self.arrives(&mut rng),
            90..170 => self.proceeds(&mut rng),
            170..180 => self.calls(&mut rng),
            180..190 => self.is_called(&mut rng),
            190..230 => self.passes(Duration::from_millis(below(&mut rng, 60))),
            230..238 => {
                self.now = self.now + Duration::from_millis(below(&mut rng, 3_000));
            }
            238..240 => self.leaps(&mut rng),
            240..246 => self.configure(seed),
            246..249 => self.drops_configuration(&mut rng),
            249..252 => self.restarts(&mut rng),
            _ => self.ticks_one(&mut rng),
        }
        self.settle();
    }

    /// The process is suspended for a long time.
    fn leaps(&mut self, rng: &mut Rng) {
        let spans = [1, 20, 90, 3_700, 86_400, 40 * 86_400];
        let secs = spans[below(rng, 6) as usize];
        self.now = self.now + Duration::from_secs(secs);
    }

    fn ticks_one(&mut self, rng: &mut Rng) {
        let worker = below(rng, self.workers.len() as u64) as usize;
        self.tick(worker);
    }

    /// The engine of a worker panicked, so the worker lets its requests go.
    fn restarts(&mut self, rng: &mut Rng) {
        let worker = below(rng, self.workers.len() as u64) as usize;
        let (proxy, seed) = (self.proxy(), self.next());
        self.restarted = true;
        self.workers[worker].restart(&proxy, u64::from(seed) << 40);
        self.requests.retain(|_, request| request.worker != worker);
        self.calls.retain(|_, call| call.worker != worker);
        self.act(worker);
    }

    /// Replaces the policies of a listener on all workers.
    pub(crate) fn configure(&mut self, seed: u64) {
        let mut rng = Rng::new(seed);
        let name = LISTENERS[usize::from(rng.chance(0.15))];
        let configs = any_configurations(name, &mut rng);
        let stages = configs.inbound.stages.iter();
        let policies = stages.map(|stage| stage.policy.clone()).collect();
        let text = |config: &FilterConfig| serde_json::to_vec(config).unwrap();
        let all = [Some(&configs.inbound), configs.outbound.as_ref()];
        let all: Vec<Vec<u8>> = all.into_iter().flatten().map(text).collect();
        self.uniform = false;
        let ids: Vec<u32> = all.iter().map(|_| self.next()).collect();
        for worker in 0..self.workers.len() {
            let proxy = self.proxy();
            for (id, json) in ids.iter().zip(&all) {
                let applied = self.workers[worker].configure(&proxy, self.now, (*id, name), json);
                let config = String::from_utf8_lossy(json);
                assert_eq!(applied, Ok(()), "the filter refused {config}");
                self.workers[worker].join(&proxy);
                self.act(worker);
            }
            if rng.chance(0.3) {
                self.arrives(&mut rng);
            }
        }
        self.uniform = true;
        let listeners = [Some(name), None];
        self.configurations.extend(ids.into_iter().zip(listeners));
        self.in_force.insert(name, policies);
        if rng.chance(0.7) {
            let proxy = self.proxy();
            for worker in 0..self.workers.len() {
                self.workers[worker].settle(&proxy);
                self.act(worker);
            }
        }
    }

    /// The proxy drops a configuration, usually the oldest.
    fn drops_configuration(&mut self, rng: &mut Rng) {
        let count = self.configurations.len() as u64;
        if count < 2 {
            return;
        }
        let at = if rng.chance(0.8) {
            0
        } else {
            below(rng, count)
        };
        let (id, listener) = self.configurations.remove(at as usize);
        let is_newest = !self.configurations[at as usize..]
            .iter()
            .any(|(_, of)| *of == listener);
        if is_newest && let Some(listener) = listener {
            // An older configuration may be in force again.
            self.in_force.remove(listener);
        }
        let proxy = self.proxy();
        for worker in 0..self.workers.len() {
            self.workers[worker].gone(&proxy, id);
            self.act(worker);
            self.workers[worker].settle(&proxy);
            self.act(worker);
        }
    }

    fn arrives(&mut self, rng: &mut Rng) {
        let id = self.next();
        let worker = below(rng, self.workers.len() as u64) as usize;
        let stream = MemoryStream {
            id,
            listener: LISTENERS[usize::from(rng.chance(0.1))].to_owned(),
            ..self.proxy()
        };
        let method = any_of(rng, &["GET", "POST"]);
        add(&stream.request, ":path", any_of(rng, &PATHS));
        add(&stream.request, ":method", method);
        for (name, values) in REQUEST {
            if rng.chance(0.2) {
                add(&stream.request, name, any_of(rng, values));
            }
        }
        if rng.chance(0.5) {
            let peers = ["spiffe://mesh/ns/a/sa/b", "spiffe://other/x"];
            set(&stream, Property::DownstreamPeer, any_of(rng, &peers));
        }
        if rng.chance(0.1) {
            let path = ["jwt", "claims", "tenant"].map(str::to_owned);
            set(
                &stream,
                Property::Metadata(&path),
                any_of(rng, &["m1", "m2"]),
            );
        }
        let mut inbound = Inbound::default();
        let filter = &mut self.workers[worker];
        let decision = inbound.request_headers(filter, &stream);
        if rng.chance(0.3) {
            inbound.body_follows(filter);
        }
        let at = match decision {
            Decision::Hold(_) => At::Held,
            _ => At::Backend,
        };
        let mut request = Request {
            worker,
            stream,
            inbound,
            at,
        };
        match decision {
            Decision::PassBy | Decision::Hold(_) => {}
            Decision::Forward(ticket) => self.check_limit(worker, ticket.policy),
            Decision::Refuse(refusal) => {
                let filter = &mut self.workers[worker];
                if refuse(filter, &request.stream, &refusal).is_some() {
                    self.replied(&mut request);
                    return self.act(worker);
                }
            }
        }
        self.requests.insert(id, request);
        self.act(worker);
    }

    /// Ends a request that the filter answered.
    fn replied(&mut self, request: &mut Request) {
        let filter = &mut self.workers[request.worker];
        set(
            &request.stream,
            Property::ResponseCodeDetails,
            "headgate_refused{x}",
        );
        add(&request.stream.response, ":status", "503");
        request
            .inbound
            .response_headers(filter, &request.stream, true);
        request.inbound.done(filter, &request.stream);
        assert!(!request.inbound.is_pending());
    }

    /// Requests hold at most the slots of a policy with a given number, whenever one gets a slot.
    fn check_limit(&self, worker: usize, policy: PolicyId) {
        let Some(stage) = self.workers[worker].engine().stage(policy) else {
            return;
        };
        let config = stage.config();
        let in_force = self
            .in_force
            .values()
            .flatten()
            .any(|name| *name == config.policy);
        let is_held = config.mode == Mode::Enforce && config.queue.mode == QueueMode::Hold;
        if !in_force || !is_held || !self.uniform || stage.is_unlimited() {
            return;
        }
        if config.auto_parallelism.is_some() {
            return;
        }
        let name = format!("headgate.policy.{}.slots_in_use", config.policy);
        let used = self.host.value(&name).unwrap();
        let slots = u64::from(config.parallelism);
        assert!(
            used <= slots,
            "{used} of {slots} slots of {}",
            config.policy
        );
    }

    /// Executes the actions of a worker.
    fn act(&mut self, worker: usize) {
        loop {
            let actions = std::mem::take(self.workers[worker].actions());
            if actions.is_empty() {
                return;
            }
            for action in actions {
                self.execute(worker, &action);
            }
        }
    }

    fn execute(&mut self, worker: usize, action: &Action) {
        let id = action.stream();
        if let Action::Send { .. } = action {
            let call = self.calls.get_mut(&id).expect("a call that ended is sent");
            assert!(call.held && call.worker == worker, "{action:?} twice");
            call.held = false;
            call.stream.now.set(Some(self.now));
            headgate_mesh::send(&mut self.workers[worker], &call.stream);
            return;
        }
        let request = self.requests.get_mut(&id);
        let request = request.unwrap_or_else(|| panic!("{action:?} for a request that ended"));
        assert!(request.worker == worker, "{action:?} on another worker");
        assert_eq!(
            request.at,
            At::Held,
            "{action:?} for a request that isn't held"
        );
        request.at = At::Backend;
        request.stream.now.set(Some(self.now));
        match action {
            Action::Resume { ticket, .. } => {
                self.workers[worker].resume(&request.stream, *ticket);
                self.check_limit(worker, ticket.policy);
            }
            Action::Refuse { refusal, .. } => {
                let filter = &mut self.workers[worker];
                if refuse(filter, &request.stream, refusal).is_some()
                    && let Some(mut request) = self.requests.remove(&id)
                {
                    self.replied(&mut request);
                }
            }
            Action::Send { .. } => {}
        }
    }

    /// Lets a random request proceed.
    fn proceeds(&mut self, rng: &mut Rng) {
        if let Some(id) = nth(&self.requests, rng) {
            self.proceed(id, rng);
        }
    }

    fn proceed(&mut self, id: u32, rng: &mut Rng) {
        let mut request = self.requests.remove(&id).unwrap();
        let (filter, stream) = (&mut self.workers[request.worker], &request.stream);
        stream.now.set(Some(self.now));
        let inbound = &mut request.inbound;
        let worker = request.worker;
        let mut ended = false;
        if inbound.awaits_request_end() && rng.chance(0.5) {
            inbound.request_end(filter, stream);
        } else if request.at == At::Held && rng.chance(0.7) {
            // The request waits on.
        } else if request.at != At::Answered && rng.chance(0.8) {
            let host = format!("10.0.0.{}:80", below(rng, 4));
            let is_local = request.at == At::Held || rng.chance(0.2);
            if is_local {
                set(
                    stream,
                    Property::ResponseCodeDetails,
                    any_of(rng, &ENDS[1..]),
                );
            } else {
                set(stream, Property::UpstreamAddress, &host);
                set(stream, Property::ResponseCodeDetails, "via_upstream");
            }
            add(&stream.response, ":status", any_of(rng, &STATUSES));
            for (name, values) in RESPONSE {
                if rng.chance(0.2) {
                    add(&stream.response, name, any_of(rng, values));
                }
            }
            ended = rng.chance(0.3);
            inbound.response_headers(filter, stream, ended);
            request.at = At::Answered;
        } else if request.at == At::Answered && rng.chance(0.5) {
            if inbound.awaits_part() {
                *stream.body.borrow_mut() = any_of(rng, &PARTS).into();
                inbound.response_part(filter, stream);
            }
        } else {
            if request.at == At::Answered && rng.chance(0.4) {
                stream.body.borrow_mut().clear();
                inbound.response_end(filter, stream);
            } else if request.at == At::Answered && rng.chance(0.4) {
                add(&stream.trailers, "grpc-status", any_of(rng, &["0", "14"]));
                inbound.response_trailers(filter, stream);
            } else {
                set(stream, Property::ResponseCodeDetails, any_of(rng, &ENDS));
            }
            ended = true;
        }
        if ended {
            inbound.done(filter, stream);
            assert!(
                !inbound.is_pending(),
                "the end of a stream is none of its request"
            );
            inbound.done(filter, stream);
        } else {
            self.requests.insert(id, request);
        }
        self.act(worker);
    }

    /// A call of the application starts.
    fn calls(&mut self, rng: &mut Rng) {
        let id = self.next();
        let cause = nth(&self.requests, rng);
        let cause = cause.and_then(|id| self.requests.get(&id));
        let worker = cause.map_or(0, |request| request.worker);
        let stream = MemoryStream { id, ..self.proxy() };
        add(&stream.request, ":path", "/call");
        for (name, values) in REQUEST {
            // The application passes these headers on.
            let own = cause.and_then(|request| request.stream.in_request(name));
            if let Some(own) = own {
                add(&stream.request, name, &own);
            } else if rng.chance(0.1) {
                add(&stream.request, name, any_of(rng, values));
            }
        }
        let clusters = ["outbound|80||a", "abc", "other"];
        set(&stream, Property::ClusterName, any_of(rng, &clusters));
        let mut outbound = Outbound::default();
        let held = !outbound.request_headers(&mut self.workers[worker], &stream);
        let call = Call {
            worker,
            stream,
            outbound,
            held,
        };
        self.calls.insert(id, call);
        self.act(worker);
    }

    /// A call proceeds.
    fn is_called(&mut self, rng: &mut Rng) {
        let Some(id) = nth(&self.calls, rng) else {
            return;
        };
        let mut call = self.calls.remove(&id).unwrap();
        let (filter, stream) = (&mut self.workers[call.worker], &call.stream);
        stream.now.set(Some(self.now));
        if rng.chance(0.6) {
            add(&stream.response, ":status", any_of(rng, &STATUSES));
            for (name, values) in RESPONSE {
                if rng.chance(0.4) {
                    add(&stream.response, name, any_of(rng, values));
                }
            }
            if rng.chance(0.2) {
                let refused = "policy=ns/p; type=default; reason=queue_full";
                add(&stream.response, "x-headgate-refused", refused);
            }
            set(stream, Property::UpstreamPeer, "spiffe://mesh/ns/a/sa/b");
            call.outbound.response_headers(filter, stream);
        }
        call.outbound.done(filter, stream);
        assert!(!call.outbound.is_pending());
        self.act(call.worker);
    }

    /// Advances the time in ticks.
    fn passes(&mut self, span: Duration) {
        self.now = self.now + span;
        for worker in 0..self.workers.len() {
            self.tick(worker);
        }
        self.settle();
        for (kind, name, value) in self.host.all_metrics() {
            // Ranks and the numbers of a limiter's tickets aren't amounts.
            let wraps = kind == MetricKind::Gauge
                && name.starts_with("headgate.policy.")
                && !name.ends_with(".head_rank")
                && !name.contains(".limiter.");
            assert!(
                !wraps || value < 1 << 63,
                "{name} is {}",
                value.cast_signed()
            );
        }
    }

    fn tick(&mut self, worker: usize) {
        let proxy = self.proxy();
        let filter = &mut self.workers[worker];
        filter.tick(&proxy);
        for (ticket, id) in std::mem::take(filter.suspects()) {
            if let Some(request) = self.requests.get(&id) {
                request.stream.now.set(Some(self.now));
                filter.look(&request.stream, ticket);
            }
        }
        if headgate_mesh::report(filter, &proxy).is_some() {
            let answers = [None, Some(&b"{}"[..]), Some(&b"\xff"[..])];
            let answer = answers[self.last as usize % answers.len()];
            headgate_mesh::reported(filter, &proxy, answer);
        }
        self.act(worker);
    }

    /// Delivers wake-ups until none is left.
    fn settle(&mut self) {
        let (mut again, mut rounds) = (true, 0);
        while again {
            again = false;
            rounds += 1;
            assert!(rounds < 1_000, "workers wake each other forever");
            for worker in 0..self.workers.len() {
                let id = self.workers[worker].engine().worker();
                if id.is_some_and(|id| self.host.take_wakes(id) > 0) {
                    again = true;
                    let proxy = self.proxy();
                    self.workers[worker].woken(&proxy);
                    self.act(worker);
                }
            }
        }
    }

    /// Lets all requests end, and asserts that nothing is left of them.
    pub(crate) fn drain(&mut self) {
        let mut rng = Rng::new(0);
        for round in 0..400 {
            let running = self.requests.iter().filter(|(_, r)| r.at != At::Held);
            let ids: BTreeSet<u32> = running.map(|(id, _)| *id).collect();
            for id in ids {
                if self.requests.contains_key(&id) {
                    self.proceed(id, &mut rng);
                }
            }
            let step = match round {
                0..100 => 100,
                100..200 => 1_000,
                _ => 60_000,
            };
            self.passes(Duration::from_millis(step));
            if self.requests.is_empty() && round > 50 {
                break;
            }
        }
        // The bookings of replaced engines are released in turn, one in each lease.
        for _ in 0..if self.restarted { 120 } else { 0 } {
            self.passes(Duration::from_secs(1));
        }
        let left: Vec<&u32> = self.requests.keys().collect();
        assert!(left.is_empty(), "requests {left:?} are held forever");
        for (worker, filter) in self.workers.iter().enumerate() {
            assert_eq!(filter.engine().pending(), 0, "worker {worker}");
        }
        let booked = [
            "slots_in_use",
            "queue_length",
            "queued_work_us",
            "queue_packed",
            "tokens_in_use",
        ];
        let in_force: Vec<&String> = self.in_force.values().flatten().collect();
        for (_, name, value) in self.host.all_metrics() {
            let last = name.rsplit('.').next().unwrap_or_default();
            // The budget of the policy's tokens may be gone.
            let is_in_force = || {
                last != "tokens_in_use"
                    && in_force
                        .iter()
                        .any(|policy| name.contains(&format!(".{policy}.")))
            };
            // Workflows' gauges show the last run of their algorithm.
            if name.contains(".workflow.") || self.restarted && !is_in_force() {
                continue;
            }
            assert!(
                !booked.contains(&last) || value == 0,
                "{name} is {value} at the end"
            );
        }
    }
}

fn add(pairs: &std::cell::RefCell<Vec<(String, String)>>, name: &str, value: &str) {
    pairs.borrow_mut().push((name.to_owned(), value.to_owned()));
}

fn nth<T>(all: &BTreeMap<u32, T>, rng: &mut Rng) -> Option<u32> {
    let count = all.len() as u64;
    if count == 0 {
        return None;
    }
    all.keys().nth(below(rng, count) as usize).copied()
}

/// Refuses a request, with a reply whose headers are right, if any.
fn refuse(
    filter: &mut Filter<&MemoryHost>,
    stream: &MemoryStream,
    refusal: &Refusal,
) -> Option<LocalReply> {
    let reply = filter.refuse(stream, refusal)?;
    let after = reply
        .headers
        .iter()
        .find(|(name, _)| *name == "retry-after");
    if let Some((_, after)) = after {
        assert!(after.parse::<u64>().is_ok_and(|secs| secs >= 1), "{after}");
    }
    assert!(reply.status >= 400, "{reply:?}");
    Some(reply)
}
