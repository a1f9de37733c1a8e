//! Tests of calls that are delayed because the called service refuses other calls.

use headgate_strategies::strategy::hint;

use super::*;

fn outbound(smoothing: &str) -> String {
    format!(
        r#"{{"direction":"Outbound","outbound":{{"policy":"ns/p","services":{{"stock*":"stock"}},
        "peers":["spiffe://mesh/*"],"smoothing":{{{smoothing}}}}}}}"#
    )
}

const DELAYS: &str = r#""least_us":100000,"most_us":300000,"enforced":true"#;

struct Call {
    stream: MemoryStream,
    outbound: Outbound,
    sent: bool,
}

impl Proxy {
    fn smoothing(smoothing: &str) -> Self {
        let mut proxy = Self::new(&stage(MAX_QUEUE_LENGTH));
        let stream = proxy.stream(&[]);
        let now = Instant::default();
        let json = outbound(smoothing);
        let configured = proxy
            .filter
            .configure(&stream, now, (OUT, ""), json.as_bytes());
        assert_eq!(configured, Ok(()));
        proxy
    }

    fn calls(&mut self, cluster: &str, headers: &[(&str, &str)]) -> Call {
        let stream = self.stream(headers);
        stream.set(Property::ClusterName, cluster);
        let mut outbound = Outbound::default();
        let sent = outbound.request_headers(&mut self.filter, &stream);
        Call {
            stream,
            outbound,
            sent,
        }
    }

    /// Answers a call with this rejection rate.
    fn refuse(&mut self, call: &mut Call, peer: &str, rate: &str) {
        let now = Instant::default() + Duration::from_millis(self.ms);
        call.stream.now.set(Some(now));
        call.stream.set(Property::UpstreamPeer, peer);
        *call.stream.response.borrow_mut() = pairs(&[(":status", "503"), (hint::HEADER, rate)]);
        call.outbound
            .response_headers(&mut self.filter, &call.stream);
    }

    /// Returns the time and the stream of each call that ticks send within the next `ms`.
    fn sent_within(&mut self, ms: u64) -> Vec<(u64, u32)> {
        let mut sent = Vec::new();
        for _ in 0..ms / 10 {
            self.ms += 10;
            let stream = self.stream(&[]);
            self.filter.tick(&stream);
            for action in std::mem::take(self.filter.actions()) {
                let Action::Send { stream } = action else {
                    panic!("{action:?}")
                };
                sent.push((self.ms, stream));
            }
        }
        sent
    }

    fn of_stock(&self, name: &str) -> u64 {
        let name = format!("headgate.policy.ns/p.service.stock.{name}");
        self.filter.host().value(&name).unwrap()
    }
}

const PEER: &str = "spiffe://mesh/stock";

#[test]
fn a_call_waits_as_long_as_drawn_and_wakes_without_traffic() {
    let mut proxy = Proxy::smoothing(DELAYS);
    let mut first = proxy.calls("stock.svc", &[]);
    assert!(first.sent, "no rate is known yet");
    proxy.refuse(&mut first, PEER, "1");
    assert_eq!(first.stream.in_response(hint::HEADER), None);
    assert_eq!(proxy.of_stock("rejection_permille"), 1_000);

    assert!(proxy.calls("other.svc", &[]).sent, "another service");
    let begun = proxy.ms;
    let mut held: Vec<Call> = (0..50).map(|_| proxy.calls("stock.svc", &[])).collect();
    assert!(
        held.iter()
            .all(|call| !call.sent && call.outbound.is_pending())
    );
    assert_eq!(proxy.of_stock("calls_delayed"), 50);
    assert!(proxy.filter.engine().is_busy(), "ticks come often");
    let sent = proxy.sent_within(400);
    assert_eq!(sent.len(), 50);
    assert!(
        sent.iter()
            .all(|(at, _)| (100..=310).contains(&(at - begun)))
    );
    assert!(!proxy.filter.engine().is_busy());
    // A tick sends a call up to 10 ms after its delay.
    let waited_ms: u64 = sent.iter().map(|(at, _)| at - begun).sum();
    let delay_ms = proxy.of_stock("calls_delay_us") / 1_000;
    assert!(
        (waited_ms - 50 * 10..=waited_ms).contains(&delay_ms),
        "{delay_ms} {waited_ms}"
    );

    // The answer to a call that was delayed counts like any other answer.
    let call = held.iter_mut().find(|call| call.stream.id == sent[0].1);
    let call = call.unwrap();
    send(&mut proxy.filter, &call.stream);
    proxy.refuse(call, PEER, "0");
    assert_eq!(proxy.of_stock("rejection_permille"), 0);
    assert!(!call.outbound.is_pending());
    assert!(proxy.calls("stock.svc", &[]).sent);
    assert_eq!(proxy.in_use(), 0);
}

#[test]
fn the_share_of_delayed_calls_is_the_announced_rate() {
    let mut proxy = Proxy::smoothing(DELAYS);
    let mut call = proxy.calls("stock.svc", &[]);
    proxy.refuse(&mut call, PEER, "0.3");
    let calls = 4_000;
    let waiting = (0..calls).filter(|_| !proxy.calls("stock.svc", &[]).sent);
    let share = waiting.count() as f64 / f64::from(calls);
    assert!((share - 0.3).abs() < 0.03, "{share}");
}

#[test]
fn a_rate_counts_only_from_a_peer_and_expires() {
    let mut proxy = Proxy::smoothing(DELAYS);
    for (peer, rate) in [("spiffe://else/where", "1"), (PEER, "much"), (PEER, "2")] {
        let mut call = proxy.calls("stock.svc", &[]);
        proxy.refuse(&mut call, peer, rate);
        assert!(proxy.calls("stock.svc", &[]).sent, "{peer} {rate}");
    }
    let mut call = proxy.calls("stock.svc", &[]);
    proxy.refuse(&mut call, PEER, "1");
    proxy.ms += 9_999;
    let mut waits = proxy.calls("stock.svc", &[]);
    assert!(!waits.sent);
    proxy.ms += 1;
    assert!(proxy.calls("stock.svc", &[]).sent);

    // A delayed call that its application ends leaves no state.
    waits.outbound.done(&mut proxy.filter, &waits.stream);
    assert!(!waits.outbound.is_pending());
    assert_eq!(proxy.sent_within(400), []);
}

/// The proxy answers a call itself if a timeout of its own is shorter than the delay.
#[test]
fn a_delayed_call_that_the_proxy_answers_leaves_no_state() {
    for due in [false, true] {
        let mut proxy = proxy_that_delays();
        let mut call = proxy.calls("stock.svc", &[]);
        proxy.refuse(&mut call, PEER, "1");
        let counted = proxy.stat("workflow._other.calls");
        let mut call = proxy.calls("stock.svc", &[]);
        assert!(!call.sent);
        if due {
            assert_eq!(proxy.sent_within(400).len(), 1);
        }
        *call.stream.response.borrow_mut() = pairs(&[(":status", "504")]);
        call.outbound
            .response_headers(&mut proxy.filter, &call.stream);
        assert_eq!(proxy.sent_within(400), []);
        assert!(!call.outbound.is_pending() && !proxy.filter.engine().is_busy());
        // The call became due at the time of the answer.
        send(&mut proxy.filter, &call.stream);
        call.outbound.done(&mut proxy.filter, &call.stream);
        let mesh = proxy.filter.engine().beside();
        assert!(mesh.held.is_empty() && mesh.calls.is_empty());
        proxy.sent_within(100);
        assert_eq!(proxy.stat("workflow._other.calls"), counted, "{due}");
    }
}

#[test]
fn a_delayed_call_leaves_no_state_if_the_configuration_of_calls_is_removed() {
    let mut proxy = Proxy::smoothing(DELAYS);
    let mut call = proxy.calls("stock.svc", &[]);
    proxy.refuse(&mut call, PEER, "1");
    let mut call = proxy.calls("stock.svc", &[]);
    assert!(!call.sent);
    let stream = proxy.stream(&[]);
    proxy.filter.gone(&stream, OUT);
    assert_eq!(proxy.sent_within(400).len(), 1);
    send(&mut proxy.filter, &call.stream);
    proxy.refuse(&mut call, PEER, "1");
    call.outbound.done(&mut proxy.filter, &call.stream);
    assert_eq!(mesh(&mut proxy.filter).held.take(call.stream.id), None);
}

#[test]
fn a_call_that_has_no_time_does_not_wait() {
    let mut proxy = Proxy::smoothing(DELAYS);
    let mut call = proxy.calls("stock.svc", &[]);
    proxy.refuse(&mut call, PEER, "1");
    assert!(proxy.calls("stock.svc", &[("grpc-timeout", "100m")]).sent);
    let call = proxy.calls("stock.svc", &[("grpc-timeout", "301m")]);
    assert!(!call.sent);
    let left = call.stream.in_request("grpc-timeout").unwrap();
    let left: u64 = left.strip_suffix('m').unwrap().parse().unwrap();
    assert!((1..=201).contains(&left), "{left}");
    assert_eq!(proxy.of_stock("calls_delayed"), 1);

    // At most `MAX_HELD` calls are delayed, one of them from above. Further calls are sent without
    // a delay.
    let calls = 5_000;
    let waiting = (0..calls).filter(|_| !proxy.calls("stock.svc", &[]).sent);
    assert_eq!(waiting.count(), 4_095);
    assert_eq!(proxy.of_stock("calls_delayed"), 4_096);

    // All calls are sent when the last listener for requests is removed, because no tick runs any
    // more.
    let stream = proxy.stream(&[]);
    proxy.filter.gone(&stream, IN);
    assert_eq!(proxy.filter.actions().len(), 4_096);
}

/// Returns a proxy with workflows whose calls are delayed.
fn proxy_that_delays() -> Proxy {
    let mut proxy = Proxy::new(&stage(WORKFLOWS));
    let stream = proxy.stream(&[]);
    let json = outbound(DELAYS);
    let configured =
        proxy
            .filter
            .configure(&stream, Instant::default(), (OUT, ""), json.as_bytes());
    assert_eq!(configured, Ok(()));
    proxy
}

#[test]
fn the_deadline_of_the_request_is_that_of_its_calls() {
    let mut proxy = proxy_that_delays();
    let mut call = proxy.calls("stock.svc", &[]);
    proxy.refuse(&mut call, PEER, "1");
    for (timeout, waits) in [("100m", false), ("9S", true)] {
        let mut request = proxy.forwarded(&[("x-tenant", "a"), ("grpc-timeout", timeout)]);
        let token = request.stream.in_request(wire::REQUEST).unwrap();
        let call = proxy.calls("stock.svc", &[(wire::REQUEST, &token)]);
        assert_eq!(!call.sent, waits, "{timeout}");
        if waits {
            // The workflows' headers are set when the call is sent.
            assert_eq!(call.stream.in_request(wire::WORKFLOW), None);
            proxy.ms += 200;
            let now = Instant::default() + Duration::from_millis(proxy.ms);
            call.stream.now.set(Some(now));
            send(&mut proxy.filter, &call.stream);
            assert_eq!(
                call.stream.in_request(wire::TIMEOUT).as_deref(),
                Some("8800")
            );
        }
        proxy.done(&mut request);
    }
}

#[test]
fn the_delay_of_a_call_is_a_part_of_its_time_and_no_work_of_its_request() {
    let mut proxy = proxy_that_delays();
    let mut first = proxy.calls("stock.svc", &[]);
    proxy.refuse(&mut first, PEER, "1");
    let request = proxy.forwarded(&[("x-tenant", "a")]);
    let token = request.stream.in_request(wire::REQUEST).unwrap();
    let mut call = proxy.calls("stock.svc", &[(wire::REQUEST, &token)]);
    assert!(!call.sent);
    proxy.ms += 300;
    call.stream
        .now
        .set(Some(Instant::default() + Duration::from_millis(proxy.ms)));
    send(&mut proxy.filter, &call.stream);
    proxy.ms += 50;
    let now = Instant::default() + Duration::from_millis(proxy.ms);
    call.stream.now.set(Some(now));
    call.stream.set(Property::UpstreamPeer, PEER);
    *call.stream.response.borrow_mut() =
        pairs(&[(":status", "200"), (wire::PROGRESS, "elapsed=50, work=50")]);
    call.outbound
        .response_headers(&mut proxy.filter, &call.stream);
    let next = proxy.calls("other.svc", &[(wire::REQUEST, &token)]);
    let progress = next.stream.in_request(wire::PROGRESS).unwrap();
    assert_eq!(progress, "elapsed=50, work=50, age=350");
}

#[test]
fn a_service_may_have_delays_of_its_own() {
    let own = r#""services":{"stock*":"stock","near":"near"},
        "service_smoothing":{"stock*":{"least_us":1000000,"most_us":1000000,"enforced":true}}"#;
    let only = outbound(DELAYS).replace(r#""services":{"stock*":"stock"}"#, own);
    let only = only.replace(&format!(r#","smoothing":{{{DELAYS}}}"#), "");
    let beside = outbound(DELAYS).replace(r#""services":{"stock*":"stock"}"#, own);
    for (json, near) in [(only, None), (beside, Some(100..=310))] {
        let mut proxy = Proxy::new(&stage(MAX_QUEUE_LENGTH));
        let stream = proxy.stream(&[]);
        let now = Instant::default();
        let configured = proxy
            .filter
            .configure(&stream, now, (OUT, ""), json.as_bytes());
        assert_eq!(configured, Ok(()));
        for cluster in ["near", "stock.svc"] {
            let mut call = proxy.calls(cluster, &[]);
            proxy.refuse(&mut call, PEER, "1");
            // For a service without delays, the application gets the rejection rate and may delay
            // its calls itself.
            let obeyed = cluster != "near" || near.is_some();
            let told = call.stream.in_response(hint::HEADER);
            assert_eq!(told.is_none(), obeyed, "{cluster} {json}");
        }
        let begun = proxy.ms;
        assert_eq!(!proxy.calls("near", &[]).sent, near.is_some());
        assert!(!proxy.calls("stock.svc", &[]).sent);
        let mut sent = proxy.sent_within(1_100).into_iter();
        if let Some(near) = near {
            assert!(near.contains(&(sent.next().unwrap().0 - begun)));
        }
        let waited = sent.next().unwrap().0 - begun;
        assert!((1_000..=1_010).contains(&waited), "{waited}");
        assert_eq!(sent.next(), None);
    }
}

#[test]
fn a_dry_run_counts_and_delays_nothing() {
    let mut proxy = Proxy::smoothing(&DELAYS.replace("true", "false"));
    let mut call = proxy.calls("stock.svc", &[]);
    proxy.refuse(&mut call, PEER, "1");
    assert_eq!(
        call.stream.in_response(hint::HEADER).as_deref(),
        Some("1"),
        "the application may go by it"
    );
    assert!(proxy.calls("stock.svc", &[]).sent);
    assert_eq!(proxy.of_stock("calls_delayed"), 1);
}
