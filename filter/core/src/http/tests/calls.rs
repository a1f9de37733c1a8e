//! Tests of the number of calls to the proxy that a request costs. In a Wasm filter each call
//! leaves the VM, and a call that returns bytes enters the VM a second time to allocate memory.

use super::*;

/// Returns a proxy with types by path and a P that is found.
fn by_path() -> Proxy {
    let slo = r#""slo":[{"percentile":90,"objective_us":100000}]"#;
    let kinds = format!(
        r#"{{"name":"search",{slo},"matches":[{{"path":{{"type":"PathPrefix","value":"/search"}}}}]}},
        {{"name":"default",{slo}}}"#
    );
    let more = r#""strategy":{"type":"Bouncer","shed_by_value":true},
        "auto_parallelism":{"min":1,"max":1000}"#;
    let mut proxy = Proxy::new(&stage(more).replace(r#"{"name":"default"}"#, &kinds));
    // The first request joins the process.
    let mut first = proxy.forwarded(&[(":path", "/search")]);
    first.answered(&mut proxy.filter, "200", true);
    proxy
}

/// Returns the number of calls of the next request at its headers, at its response's headers, at
/// the response's end and at the stream's end. Also returns whether the request is measured.
fn calls(proxy: &mut Proxy) -> ([u64; 4], bool) {
    let before = proxy.filter.host().calls();
    let mut request = proxy.forwarded(&[
        (":path", "/search?q=1"),
        (":method", "GET"),
        (":authority", "example.com"),
        ("x-request-id", "1"),
    ]);
    let is_measured = proxy.policy().requests.iter().all(|of| of.weight > 0);
    let so_far = |proxy: &Proxy, request: &Request| {
        request.stream.calls.get() + proxy.filter.host().calls() - before
    };
    let mut sums = vec![0, so_far(proxy, &request)];
    request.answered(&mut proxy.filter, "200", false);
    sums.push(so_far(proxy, &request));
    by_body(&mut request, &mut proxy.filter);
    sums.push(so_far(proxy, &request));
    proxy.done(&mut request);
    sums.push(so_far(proxy, &request));
    (
        std::array::from_fn(|at| sums[at + 1] - sums[at]),
        is_measured,
    )
}

#[test]
fn a_request_that_is_admitted_at_once_makes_few_calls() {
    let mut proxy = by_path();
    // At the headers: the headers, the clock and the queue. Then the slots and this worker's part
    // of them are increased, and the slots are read. At the response's headers: the details and
    // the status. At the end: the clock, both numbers of slots, the queue, and three times.
    assert_eq!(calls(&mut proxy), ([6, 2, 7, 0], true));
    let unmeasured = (0..10_000)
        .map(|_| calls(&mut proxy))
        .find(|(_, is_measured)| !is_measured);
    assert_eq!(unmeasured, Some(([6, 0, 4, 0], false)));
}
