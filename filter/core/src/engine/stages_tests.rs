//! Tests of several policies in one configuration: the stage of a request, and the independence of
//! stages.

use std::time::Duration;

use super::*;
use crate::config::FilterConfig;
use crate::memory::{MemoryHost, MemoryRequest};

/// An engine with stages only.
type Engine = super::Engine;

/// Returns a configuration with stages `ns/a`, `ns/b`, …, which have these numbers of slots and
/// these routes.
fn config(stages: &[(u32, &[&str])]) -> FilterConfig {
    let stage = |(name, (slots, routes)): (char, &(u32, &[&str]))| {
        let routes = serde_json::to_string(routes).unwrap();
        format!(
            r#"{{"policy":"ns/{name}","parallelism":{slots},"routes":{routes},
            "queue":{{"max_length":1,"timeout_us":1000000}},
            "strategy":{{"type":"MaxQueueLength"}},"types":[{{"name":"default"}}]}}"#
        )
    };
    let stages: Vec<String> = ('a'..).zip(stages).map(stage).collect();
    FilterConfig::from_json(format!(r#"{{"stages":[{}]}}"#, stages.join(",")).as_bytes()).unwrap()
}

struct Proxy {
    host: MemoryHost,
    engine: Engine,
    now: Instant,
    streams: u32,
}

impl Proxy {
    fn new(config: &FilterConfig) -> Self {
        let mut proxy = Self {
            host: MemoryHost::new(),
            engine: Engine::new(1),
            now: Instant::from_nanos(1_000_000_000),
            streams: 0,
        };
        proxy.configure(config);
        proxy
    }

    fn configure(&mut self, config: &FilterConfig) {
        let mut actions = Vec::new();
        let done = self
            .engine
            .configure(&self.host, self.now, config, &mut actions);
        done.unwrap();
        assert_eq!(actions, []);
    }

    fn arrive(&mut self, route: Option<&'static str>) -> Decision {
        let mut actions = Vec::new();
        self.streams += 1;
        let (host, now) = (&self.host, self.now);
        let request = MemoryRequest {
            route: route.map(Into::into),
            ..MemoryRequest::get("/")
        };
        let engine = &mut self.engine;
        let admission = engine.arrive(host, now, self.streams, &request, None, &mut actions);
        admission.unwrap()
    }

    fn finish(&mut self, pass: Ticket) -> Vec<Action> {
        let mut actions = Vec::new();
        let done = self
            .engine
            .finish(&self.host, self.now, pass, Outcome::Completed, &mut actions);
        done.unwrap();
        actions
    }

    /// Returns a stat of the stage `ns/NAME`, as published at a tick.
    fn stat(&mut self, stage: char, name: &str) -> u64 {
        self.now = self.now + Duration::from_millis(50);
        let mut actions = Vec::new();
        let ticked = self.engine.tick(&self.host, self.now, &mut actions);
        ticked.unwrap();
        assert_eq!(actions, []);
        let name = format!("headgate.policy.ns/{stage}.{name}");
        self.host.value(&name).unwrap()
    }
}

fn forwarded(admission: Decision) -> Ticket {
    match admission {
        Decision::Forward(pass) => pass,
        other => panic!("{other:?}"),
    }
}

const SEARCH: Option<&str> = Some("httproute/shop/search/rule/0/match/0/*");
const ADS: Option<&str> = Some("ads");

fn three() -> FilterConfig {
    config(&[(1, &["httproute/shop/search/*"]), (1, &["ads"]), (2, &[])])
}

#[test]
fn a_request_goes_to_the_first_stage_that_is_for_its_route() {
    let mut proxy = Proxy::new(&three());
    let stages: Vec<PolicyId> = [SEARCH, ADS, Some("adsense"), None]
        .map(|route| forwarded(proxy.arrive(route)).policy)
        .to_vec();
    assert!(stages[0] != stages[1] && stages[1] != stages[2] && stages[0] != stages[2]);
    assert_eq!(
        stages[2], stages[3],
        "all others, and those without a route"
    );
    let requests =
        |proxy: &mut Proxy| ['a', 'b', 'c'].map(|s| proxy.stat(s, "type.default.rq_total"));
    assert_eq!(requests(&mut proxy), [1, 1, 2]);

    // If the stage that covers all requests comes first, it gets all requests.
    let mut all_first = config(&[(9, &[]), (1, &["ads"])]);
    let mut proxy = Proxy::new(&all_first);
    assert_eq!(
        forwarded(proxy.arrive(ADS)).policy,
        forwarded(proxy.arrive(None)).policy
    );
    all_first.stages.remove(0);
    let mut proxy = Proxy::new(&all_first);
    assert_eq!(proxy.arrive(SEARCH), Decision::PassBy, "no stage is for it");
}

#[test]
fn slots_and_queues_of_stages_are_apart() {
    let mut proxy = Proxy::new(&three());
    let search = forwarded(proxy.arrive(SEARCH));
    let waits = proxy.arrive(SEARCH);
    assert!(matches!(waits, Decision::Hold(_)), "{waits:?}");
    let refused = proxy.arrive(SEARCH);
    assert!(matches!(refused, Decision::Refuse(_)), "{refused:?}");

    // The slots and the queue of the other stages are unaffected.
    let ads = forwarded(proxy.arrive(ADS));
    let rest = [None, None].map(|route| forwarded(proxy.arrive(route)));
    let of = |proxy: &mut Proxy, name: &str| ['a', 'b', 'c'].map(|s| proxy.stat(s, name));
    assert_eq!(of(&mut proxy, "slots_in_use"), [1, 1, 2]);
    assert_eq!(of(&mut proxy, "queue_length"), [1, 0, 0]);
    assert_eq!(of(&mut proxy, "type.default.rq_rejected"), [1, 0, 0]);

    // A slot that another stage frees doesn't help waiting requests of this one.
    assert_eq!(proxy.finish(ads), []);
    assert_eq!(rest.map(|pass| proxy.finish(pass)), [vec![], vec![]]);
    assert_eq!(of(&mut proxy, "queue_length"), [1, 0, 0]);
    let resumed: Vec<u32> = proxy.finish(search).iter().map(Action::stream).collect();
    assert_eq!(resumed, [2]);
    assert_eq!(of(&mut proxy, "slots_in_use"), [1, 0, 0]);
}

#[test]
fn a_stage_whose_routes_change_keeps_its_requests() {
    let mut proxy = Proxy::new(&three());
    let search = forwarded(proxy.arrive(SEARCH));
    let moved = config(&[
        (1, &["httproute/shop/search-v2/*"]),
        (1, &["ads"]),
        (2, &[]),
    ]);
    proxy.configure(&moved);
    assert_eq!(proxy.stat('a', "slots_in_use"), 1);
    let elsewhere = forwarded(proxy.arrive(SEARCH));
    assert_ne!(elsewhere.policy, search.policy);
    assert_eq!(proxy.finish(search), []);
    assert_eq!(proxy.finish(elsewhere), []);
    assert_eq!(proxy.stat('a', "slots_in_use"), 0);
    let there = forwarded(proxy.arrive(Some("httproute/shop/search-v2/rule/0")));
    assert_eq!(there.policy, search.policy);
}
