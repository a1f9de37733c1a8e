//! Tests of class admission between two proxies, without and with workflows.

use super::*;

/// The configuration for calls to `stock`, with a target of 50 ms for `high`. One miss reduces the
/// probability to 0.
pub(super) const PROMISE: &str = r#""stock":{
    "classes":[{"name":"high","matches":[{"headers":[{"name":"x-class","value":"high"}]}]},
               {"name":"low"}],
    "targets_us":[50000],"percentile":99,"per_cost":false,"increase":0.01,"decrease":1.0,
    "min_probability":0.000001,"enforced":true}"#;

/// Returns a stage that trusts peers of the mesh, with one slot and a queue with shares for
/// classes.
fn receiver() -> String {
    stage(
        r#""strategy":{"type":"MaxQueueLength"},"classes":[
        {"name":"high","matches":[{"headers":[{"name":"x-class","value":"high"}]}]},{"name":"low"}],
        "class_admission":{"receives":true,"peers":["spiffe://mesh/*"]}"#,
    )
    .replace(
        r#""max_length":1,"#,
        r#""max_length":3,"discipline":{"type":"WFQ","by":"Class","weights":{"high":8.0}},"#,
    )
}

pub(super) fn outbound(promise: &str) -> String {
    format!(
        r#"{{"direction":"Outbound","outbound":{{"policy":"ns/p","services":{{"stock*":"stock"}},
        "class_admission":{{{promise}}}}}}}"#
    )
}

impl Proxy {
    pub(super) fn configure(&mut self, config: &str) {
        let stream = self.stream(&[]);
        let now = Instant::default();
        let id = match FilterConfig::direction_of(config.as_bytes()) {
            Direction::Inbound => IN,
            Direction::Outbound => OUT,
        };
        let configured = self
            .filter
            .configure(&stream, now, (id, ""), config.as_bytes());
        assert_eq!(configured, Ok(()));
    }

    pub(super) fn call(&mut self, headers: &[(&str, &str)]) -> (MemoryStream, Outbound) {
        let call = self.stream(headers);
        call.set(Property::ClusterName, "stock.svc");
        let mut outbound = Outbound::default();
        assert!(outbound.request_headers(&mut self.filter, &call));
        (call, outbound)
    }

    /// Answers a call after `ms`.
    pub(super) fn answer(
        &mut self,
        (call, outbound): &mut (MemoryStream, Outbound),
        ms: u64,
        answer: &[(&str, &str)],
    ) {
        self.ms += ms;
        call.now
            .set(Some(Instant::default() + Duration::from_millis(self.ms)));
        *call.response.borrow_mut() = pairs(answer);
        outbound.response_headers(&mut self.filter, call);
    }

    pub(super) fn of_class(&self, name: &str) -> u64 {
        let name = format!("headgate.policy.ns/p.service.stock.{name}.class.high");
        self.filter.host().value(&name).unwrap()
    }

    /// Handles the arrival of another proxy's call.
    fn arrives(&mut self, call: &MemoryStream, peer: &str) -> (Request, Decision) {
        let said = call.request.borrow().clone();
        let said: Vec<_> = said.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
        let (stream, mut inbound) = (self.stream(&said), Inbound::default());
        stream.set(Property::DownstreamPeer, peer);
        let decision = inbound.request_headers(&mut self.filter, &stream);
        (Request { stream, inbound }, decision)
    }
}

pub(super) const HIGH: [(&str, &str); 1] = [("x-class", "high")];
/// The headers of a response to a call that, without its service time, is in time.
pub(super) const IN_TIME: [(&str, &str); 2] = [
    (":status", "200"),
    (wire::PROGRESS, "elapsed=60, wait=40, slot=60"),
];
pub(super) const LATE: [(&str, &str); 2] = [
    (":status", "200"),
    (wire::PROGRESS, "elapsed=9, wait=91, slot=9"),
];

#[test]
fn a_downgraded_call_is_served_by_the_share_of_its_new_class() {
    let mut sender = Proxy::new("");
    sender.configure(&outbound(PROMISE));
    let mut receiver = Proxy::new(&receiver());
    let peer = "spiffe://mesh/front";

    let mut first = sender.call(&HIGH);
    assert_eq!(first.0.in_request(wire::CLASS), None, "its matches say it");
    assert_eq!(first.0.in_request(wire::PROCESS).unwrap().len(), 16);
    let (mut running, decision) = receiver.arrives(&first.0, peer);
    assert!(matches!(decision, Decision::Forward(_)), "{decision:?}");
    let other = sender.call(&[("x-class", "other")]);
    let (mut waiting, decision) = receiver.arrives(&other.0, peer);
    assert!(matches!(decision, Decision::Hold(_)), "{decision:?}");

    // The receiver reports the times of both calls. The first call is in the slot for 7 ms, and the
    // second call waits for these 7 ms.
    receiver.ms += 7;
    let now = Instant::default() + Duration::from_millis(receiver.ms);
    running.stream.now.set(Some(now));
    running.answered(&mut receiver.filter, "200", true);
    let said = running.stream.in_response(wire::PROGRESS);
    assert_eq!(said.as_deref(), Some("elapsed=7, work=7, wait=0, slot=7"));
    receiver.resume(&waiting);
    waiting.stream.now.set(Some(now + Duration::from_millis(5)));
    waiting.answered(&mut receiver.filter, "200", true);
    let said = waiting.stream.in_response(wire::PROGRESS);
    assert_eq!(said.as_deref(), Some("elapsed=5, work=5, wait=7, slot=5"));

    // The answer to the first call is a miss, so further calls run in the lowest class.
    sender.answer(&mut first, 100, &LATE);
    assert_eq!(first.0.in_response(wire::PROGRESS), None);
    assert_eq!(first.0.in_response(wire::DOWNGRADED), None);
    assert_eq!(sender.of_class("admit_permille"), 0);
    let mut low = sender.call(&HIGH);
    assert_eq!(low.0.in_request(wire::CLASS).as_deref(), Some("low"));
    let blocker = receiver.arrives(&first.0, peer).0;
    let (mut low_there, _) = receiver.arrives(&low.0, peer);
    let (high_there, _) = receiver.arrives(&first.0, peer);
    assert_eq!(
        low_there.stream.in_request(wire::CLASS).as_deref(),
        Some("low")
    );
    let mut blocker = blocker;
    receiver.done(&mut blocker);
    // The call of class `high` arrived later, but runs first, because its class has the greater
    // share.
    receiver.resume(&high_there);
    receiver.done(&mut low_there);

    // The response names the class that the call requested. A call that ran in the lowest class
    // doesn't change the probability of another class.
    let copied = [&IN_TIME[..], &[(wire::DOWNGRADED, "what its own call got")]].concat();
    sender.answer(&mut low, 100, &copied);
    assert_eq!(low.0.in_response(wire::DOWNGRADED).as_deref(), Some("high"));
    assert_eq!(sender.of_class("admit_permille"), 0);
    assert_eq!(
        (
            sender.of_class("calls"),
            sender.of_class("calls_downgraded")
        ),
        (2, 1)
    );
    // A header that an application copied from a call that it made is ignored.
    let mut third = sender.call(&[("x-class", "other")]);
    sender.answer(&mut third, 1, &copied);
    assert_eq!(third.0.in_response(wire::DOWNGRADED), None);
}

#[test]
fn misses_are_late_answers_refusals_for_lack_of_room_and_timeouts() {
    let refused = |reason: &'static str| [(":status", "503"), ("x-headgate-refused", reason)];
    let (full, limited) = (
        refused("policy=ns/p; type=default; reason=queue_full"),
        refused("policy=ns/p; type=default; reason=rate_limit"),
    );
    let late = refused("policy=ns/p; type=default; reason=deadline");
    let late_by_rate = refused("policy=ns/p; type=default; by=rate; reason=deadline");
    let passed_on = [&full[..], &IN_TIME[1..]].concat();
    let timeout = [(":status", "504")];
    for (answer, details, missed) in [
        (&IN_TIME[..], VIA_UPSTREAM, false),
        (&LATE[..], VIA_UPSTREAM, true),
        // Without a service time in the answer, the call is no miss.
        (&[(":status", "200")], VIA_UPSTREAM, false),
        (
            &[(wire::PROGRESS, "elapsed=9, work=9")],
            VIA_UPSTREAM,
            false,
        ),
        (&full, VIA_UPSTREAM, true),
        (&limited, VIA_UPSTREAM, false),
        (&late, VIA_UPSTREAM, true),
        (&late_by_rate, VIA_UPSTREAM, false),
        (&passed_on, VIA_UPSTREAM, false),
        (&timeout, "response_timeout", true),
        (&timeout, "upstream_per_try_timeout", true),
        (&timeout, VIA_UPSTREAM, false),
    ] {
        let mut proxy = Proxy::new("");
        proxy.configure(&outbound(PROMISE));
        let mut call = proxy.call(&HIGH);
        call.0.set(Property::ResponseCodeDetails, details);
        proxy.answer(&mut call, 100, answer);
        let expected = if missed { 0 } else { 1_000 };
        assert_eq!(
            proxy.of_class("admit_permille"),
            expected,
            "{answer:?} {details}"
        );
    }
    // A call that the client ended is no miss, and calls to other services aren't handled.
    let mut proxy = Proxy::new("");
    proxy.configure(&outbound(PROMISE));
    let (call, mut lost) = proxy.call(&HIGH);
    lost.done(&mut proxy.filter, &call);
    assert_eq!(proxy.of_class("admit_permille"), 1_000);
    let other = proxy.stream(&HIGH);
    other.set(Property::ClusterName, "others");
    let mut outbound = Outbound::default();
    assert!(outbound.request_headers(&mut proxy.filter, &other));
    assert!(!outbound.is_pending());
    assert_eq!(*other.request.borrow(), pairs(&HIGH));
}

/// Without the times of answers, failures lower the probability. So answers must raise it.
#[test]
fn a_service_that_reports_no_times_recovers_from_a_failure() {
    let mut proxy = Proxy::new("");
    let steps = PROMISE.replace(
        r#""increase":0.01,"decrease":1.0"#,
        r#""increase":0.5,"decrease":0.5"#,
    );
    proxy.configure(&outbound(&steps));
    let refused = |reason: &'static str| [(":status", "503"), ("x-headgate-refused", reason)];
    let mut call = proxy.call(&HIGH);
    proxy.answer(
        &mut call,
        100,
        &refused("policy=ns/p; type=t; reason=queue_full"),
    );
    assert_eq!(proxy.of_class("admit_permille"), 500);
    // A window is 5 s. Refusals because of a rate don't end it.
    let mut answers = |answer: &[(&str, &str)]| {
        for _ in 0..100 {
            let mut call = proxy.call(&HIGH);
            call.0.set(Property::ResponseCodeDetails, VIA_UPSTREAM);
            proxy.answer(&mut call, 100, answer);
        }
        proxy.of_class("admit_permille")
    };
    assert_eq!(
        answers(&refused("policy=ns/p; type=t; reason=rate_limit")),
        500
    );
    assert_eq!(answers(&[(":status", "200")]), 1_000);
}

#[test]
fn services_whose_names_begin_alike_have_probabilities_of_their_own() {
    let mut proxy = Proxy::new("");
    let of = |region: &str| format!("{}-{region}", "payment-authorization-gateway.".repeat(3));
    let promises = ["eu", "us"].map(|region| PROMISE.replace("stock", &of(region)));
    let services = r#""services":{"stock*":"stock"}"#;
    let named = format!(r#""services":{{"eu":"{}","us":"{}"}}"#, of("eu"), of("us"));
    proxy.configure(&outbound(&promises.join(",")).replace(services, &named));
    let calls = |proxy: &mut Proxy, cluster: &str| {
        let call = proxy.stream(&HIGH);
        call.set(Property::ClusterName, cluster);
        let mut outbound = Outbound::default();
        assert!(outbound.request_headers(&mut proxy.filter, &call));
        (call, outbound)
    };
    let mut late = calls(&mut proxy, "eu");
    proxy.answer(&mut late, 100, &LATE);
    for (cluster, class) in [("eu", Some("low")), ("us", None)] {
        let (call, _) = calls(&mut proxy, cluster);
        assert_eq!(call.in_request(wire::CLASS).as_deref(), class, "{cluster}");
    }
}

#[test]
fn a_strangers_class_counts_for_nothing() {
    let mut proxy = Proxy::new(&receiver());
    let says = MemoryStream::of(&[
        (wire::CLASS, "high"),
        (wire::PROCESS, "00000000000000ff"),
        ("x-class", "other"),
    ]);
    let (mut stranger, _) = proxy.arrives(&says, "spiffe://elsewhere/front");
    assert_eq!(
        *stranger.stream.request.borrow(),
        pairs(&[("x-class", "other")])
    );
    stranger.answered(&mut proxy.filter, "200", true);
    assert_eq!(stranger.stream.in_response(wire::PROGRESS), None);
    // A peer's class stays visible to the application, which copies the class to its calls. A
    // client without a process id gets no progress.
    let (mut peer, _) = proxy.arrives(&says, "spiffe://mesh/front");
    assert_eq!(peer.stream.in_request(wire::CLASS).as_deref(), Some("high"));
    peer.answered(&mut proxy.filter, "200", true);
    assert!(peer.stream.in_response(wire::PROGRESS).is_some());
    let says = MemoryStream::of(&[(wire::CLASS, "high")]);
    let (mut client, _) = proxy.arrives(&says, "spiffe://mesh/front");
    client.answered(&mut proxy.filter, "200", true);
    assert_eq!(client.stream.in_response(wire::PROGRESS), None);
}

/// A request from before the edit may stay in the backend for days.
#[test]
fn removed_workflows_judge_no_sender_while_an_earlier_request_lasts() {
    let shares = r#"{"type":"WFQ","by":"Class","weights":{"high":8.0}}"#;
    let plain = receiver().replace(shares, r#"{"type":"Priority"}"#);
    let edge = WORKFLOWS.replace(r#""peers""#, r#""edge":true,"peers""#);
    let mut proxy = Proxy::new(&plain.replace(r#""strategy":{"type":"MaxQueueLength"}"#, &edge));
    let mut running = proxy.forwarded(&[]);
    proxy.configure(&plain);
    proxy.filter.tick(&running.stream);
    let mut named = |class| {
        let says = MemoryStream::of(&[(wire::CLASS, class), (wire::PROCESS, "00000000000000ff")]);
        let (request, decision) = proxy.arrives(&says, "spiffe://mesh/front");
        assert!(matches!(decision, Decision::Hold(_)), "{decision:?}");
        request
    };
    let (_low, high) = (named("low"), named("high"));
    proxy.done(&mut running);
    proxy.resume(&high);
}

#[test]
fn a_dry_run_counts_what_it_would_downgrade() {
    let mut proxy = Proxy::new("");
    proxy.configure(&outbound(
        &PROMISE.replace(r#""enforced":true"#, r#""enforced":false"#),
    ));
    for calls in 1..=2 {
        let mut call = proxy.call(&HIGH);
        assert_eq!(call.0.in_request(wire::CLASS), None);
        proxy.answer(&mut call, 100, &LATE);
        assert_eq!(call.0.in_response(wire::DOWNGRADED), None);
        assert_eq!(proxy.of_class("calls"), calls);
        assert_eq!(proxy.of_class("calls_downgraded"), calls - 1);
    }
}

#[test]
fn an_edit_keeps_probabilities_and_forgets_calls_under_way() {
    let mut proxy = Proxy::new("");
    proxy.configure(&outbound(PROMISE));
    let (mut first, mut second) = (proxy.call(&HIGH), proxy.call(&HIGH));
    proxy.answer(&mut first, 100, &LATE);
    proxy.configure(&outbound(PROMISE));
    assert_eq!(proxy.of_class("admit_permille"), 0);
    assert_eq!(
        proxy.call(&HIGH).0.in_request(wire::CLASS).as_deref(),
        Some("low")
    );
    proxy.answer(&mut second, 100, &LATE);
    proxy.configure(&outbound(""));
    assert_eq!(*proxy.call(&HIGH).0.request.borrow(), pairs(&HIGH));
}

#[test]
fn a_call_of_a_workflow_asks_for_the_class_of_its_request() {
    let classes = r#","classes":[
        {"name":"high","matches":[{"headers":[{"name":"x-gold","value":"1"}]}]},
        {"name":"rest"}]"#;
    let mut proxy = Proxy::new(&stage(&format!("{WORKFLOWS}{classes}")));
    proxy.configure(&outbound(PROMISE));
    let request = proxy.forwarded(&[("x-tenant", "a"), ("x-gold", "1")]);
    let token = request.stream.in_request(wire::REQUEST).unwrap();
    let part = [(wire::REQUEST, token.as_str())];
    let mut call = proxy.call(&part);
    assert_eq!(call.0.in_request(wire::CLASS).as_deref(), Some("high"));
    assert_eq!(call.0.in_request(wire::WORKFLOW).as_deref(), Some("a"));
    // A class that the application sets itself takes precedence.
    let own = [part[0], (wire::CLASS, "low")];
    assert_eq!(
        proxy.call(&own).0.in_request(wire::CLASS).as_deref(),
        Some("low")
    );
    proxy.answer(&mut call, 100, &LATE);
    let call = proxy.call(&part);
    assert_eq!(call.0.in_request(wire::CLASS).as_deref(), Some("low"));
    assert_eq!(call.0.in_request(wire::WORKFLOW).as_deref(), Some("a"));
}

/// A request from before the edit may stay in the backend for days.
#[test]
fn removed_workflows_name_the_calls_of_earlier_requests_only() {
    let mut proxy = Proxy::new(&stage(WORKFLOWS));
    proxy.configure(&outbound(PROMISE));
    let request = proxy.forwarded(&[("x-tenant", "a")]);
    let token = request.stream.in_request(wire::REQUEST).unwrap();
    proxy.configure(&stage(MAX_QUEUE_LENGTH));
    for (part, workflow) in [
        ((wire::REQUEST, token.as_str()), Some("a")),
        ((wire::REQUEST, "nonsense"), None),
        (HIGH[0], None),
    ] {
        let (call, _) = proxy.call(&[part, ("x-tenant", "a")]);
        assert_eq!(call.in_request(wire::WORKFLOW).as_deref(), workflow);
        assert!(call.in_request(wire::PROCESS).is_some());
    }
}

/// A request from before the edit may make calls for days.
#[test]
fn an_edit_of_classes_gives_no_call_another_class() {
    let class = |name: &str, gold: &str| {
        let header = format!(r#"{{"name":"x-gold","value":"{gold}"}}"#);
        format!(r#"{{"name":"{name}","matches":[{{"headers":[{header}]}}]}},"#)
    };
    let of = |classes: &str| {
        let classes = format!(r#","classes":[{classes}{{"name":"rest"}}]"#);
        stage(&format!("{WORKFLOWS}{classes}"))
    };
    let one = class("high", "1");
    let two = format!("{}{one}", class("higher", "2"));
    let mut proxy = Proxy::new(&of(&one));
    proxy.configure(&outbound(PROMISE));
    let request = proxy.forwarded(&[("x-tenant", "a"), ("x-gold", "1")]);
    let token = request.stream.in_request(wire::REQUEST).unwrap();
    for (classes, expected) in [(one, Some("high")), (two, None)] {
        proxy.configure(&of(&classes));
        let (call, _) = proxy.call(&[(wire::REQUEST, token.as_str())]);
        assert_eq!(call.in_request(wire::CLASS).as_deref(), expected);
        assert_eq!(call.in_request(wire::WORKFLOW).as_deref(), Some("a"));
    }
}

#[test]
fn at_a_gateway_without_workflows_requests_are_admitted_calls() {
    let config = receiver().replace(
        r#""revision":"r","#,
        &format!(
            r#""revision":"r",
            "outbound":{{"policy":"ns/p","services":{{"*":"stock"}},
                         "class_admission":{{{PROMISE}}}}},"#
        ),
    );
    let mut proxy = Proxy::new(&config);
    let mut first = proxy.forwarded(&HIGH);
    assert!(first.stream.in_request(wire::PROCESS).is_some());
    proxy.ms += 100;
    let now = Instant::default() + Duration::from_millis(proxy.ms);
    first.stream.now.set(Some(now));
    *first.stream.response.borrow_mut() = pairs(&LATE[1..]);
    first.answered(&mut proxy.filter, "200", true);
    assert_eq!(first.stream.in_response(wire::PROGRESS), None);
    let second = proxy.forwarded(&HIGH);
    assert_eq!(
        second.stream.in_request(wire::CLASS).as_deref(),
        Some("low")
    );
}
