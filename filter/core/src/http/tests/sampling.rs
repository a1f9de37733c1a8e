//! Tests of types with more answers than are measured.

use super::*;
use crate::decision::PolicyId;
use crate::stage::{SAMPLES_PER_SECOND, Stage};

/// Returns a proxy whose streams end their processing time at the first byte. Requests should begin
/// to stream within 100 ms.
fn by_value() -> Proxy {
    let slo = r#"{"name":"default","slo":[{"percentile":90,"objective_us":100000}]}"#;
    let bouncer = r#""strategy":{"type":"Bouncer","shed_by_value":true},"measure":"FirstByte""#;
    let config = stage(bouncer).replace(r#"{"name":"default"}"#, slo);
    Proxy::new(&config.replace(r#""parallelism":1"#, r#""parallelism":1000"#))
}

/// Sends requests until one isn't measured. Returns that one, and the requests before it.
fn sends_too_many(proxy: &mut Proxy) -> (Request, Vec<Request>) {
    let mut requests = Vec::new();
    loop {
        let (request, decision) = proxy.arrive(&[]);
        let Decision::Forward(ticket) = decision else {
            panic!("{decision:?}")
        };
        if proxy.policy().requests.of(ticket).unwrap().weight == 0 {
            return (request, requests);
        }
        requests.push(request);
    }
}

impl Proxy {
    pub(super) fn policy(&self) -> &Stage {
        self.filter.engine.stage(PolicyId(0)).unwrap()
    }
}

/// Clients of event streams close them, so most of these streams end without a complete response.
#[test]
fn a_stream_that_began_is_answered_although_it_is_not_measured() {
    for end in [by_body, by_failure, by_client] {
        let mut proxy = by_value();
        let (mut request, mut measured) = sends_too_many(&mut proxy);
        proxy.ms += 20;
        for streams in measured.iter_mut().chain([&mut request]) {
            pass_time(&mut proxy, streams, 0);
            streams.answered(&mut proxy.filter, "200", false);
            (streams.inbound).response_part(&mut proxy.filter, &streams.stream);
        }
        for measured in &mut measured {
            end(measured, &mut proxy.filter);
        }
        for _ in 0..10 {
            pass_time(&mut proxy, &request, 50);
            proxy.filter.tick(&request.stream);
        }
        let unanswered = |of: &crate::requests::Request| of.overdue || of.silent;
        assert!(!proxy.policy().requests.iter().any(unanswered));
        end(&mut request, &mut proxy.filter);
        let counts = ["completed", "unsampled", "failed", "unmeasured"];
        let counts = counts.map(|of| proxy.stat(&format!("type.default.rq_{of}")));
        assert_eq!(counts, [measured.len() as u64, 1, 0, 0]);
    }
}

/// After a busy type has stopped or hung, its timeouts must not be taken for answers.
#[test]
fn a_request_that_is_not_measured_is_looked_at_when_few_others_end() {
    for is_busy in [true, false] {
        let mut proxy = by_value();
        let (mut request, mut measured) = sends_too_many(&mut proxy);
        for measured in &mut measured {
            measured.answered(&mut proxy.filter, "200", true);
        }
        assert!(measured.len() >= SAMPLES_PER_SECOND as usize);
        if !is_busy {
            proxy.stat("slots_in_use");
        }
        let timeout = "response_timeout";
        request.stream.set(Property::ResponseCodeDetails, timeout);
        (request.inbound).response_headers(&mut proxy.filter, &request.stream, false);
        // The backend no longer works on a request that the proxy answers itself.
        assert_eq!(proxy.in_use(), u64::from(is_busy));
        by_body(&mut request, &mut proxy.filter);
        assert_eq!(proxy.stat("type.default.rq_unsampled"), 1);
        assert_eq!(proxy.stat("type.default.rq_failed"), 0);
    }
}
