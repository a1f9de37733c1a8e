//! Tests of workflows between sidecars, with real Envoys of two workers each. The inbound and
//! outbound listeners of an Envoy share their VMs.

mod app;
mod central;
mod classes;
mod clocks;
mod gateway;
mod identity;
mod sidecar;
mod smoothing;

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use app::{App, Behaviour};
use headgate_tests::bootstrap::Bootstrap;
use headgate_tests::envoy::EnvoyProcess;
use headgate_tests::http;
use headgate_tests::load::{self, Lateness, Pauses};
use headgate_tests::wait::{lock_machine, until};
use headgate_xds::{DEFAULT_SLOT, OUTBOUND_SLOT};
use serde_json::json;
use sidecar::{Sidecar, inbound, outbound, workflows};

/// The pause between two requests in a test that exceeds the rate of a workflow.
const PAUSE: Duration = Duration::from_millis(10);

/// The tolerated lateness of requests in such a test. It is half of the time between two served
/// requests, so that a late request doesn't take the place of another.
const LATE: Duration = Duration::from_millis(50);

/// The headers that applications usually copy to their calls. Tracing libraries propagate W3C
/// Baggage.
const PROPAGATES: [&str; 1] = ["baggage"];

/// The application `a`, which calls `b`, each behind a sidecar, and the application `c`, which has
/// no sidecar.
struct Pair {
    a: App,
    b: App,
    c: App,
    front: Sidecar,
    back: Sidecar,
}

impl Pair {
    fn start(front: &serde_json::Value, back: &serde_json::Value) -> Result<Self> {
        Self::start_by(front, back, |bootstrap| EnvoyProcess::start(bootstrap, 2))
    }

    /// Starts the pair as `start` does, with `envoy` to start the Envoy of `a`.
    fn start_by(
        front: &serde_json::Value,
        back: &serde_json::Value,
        envoy: impl FnOnce(&Bootstrap) -> Result<EnvoyProcess>,
    ) -> Result<Self> {
        let plain = || App::start(Behaviour::default());
        let (a, b, c) = (plain()?, plain()?, plain()?);
        let back = Sidecar::start(b.addr, &inbound(back)?, None, |_| Ok(()))?;
        let services = [("b", back.addr), ("c", c.addr)];
        let calls = outbound(&json!({"services": {"b*": "extent"}}))?;
        let calls = Some((&calls, &services[..]));
        let front = Sidecar::start_by(a.addr, &inbound(front)?, calls, |_| Ok(()), envoy)?;
        let pair = Self {
            a,
            b,
            c,
            front,
            back,
        };
        pair.call(&["b"], &PROPAGATES);
        Ok(pair)
    }

    /// Sets the services that `a` calls for each later request, and the headers that it copies to
    /// its calls.
    fn call(&self, services: &[&'static str], copies: &[&'static str]) {
        self.a.behave(Behaviour {
            calls: self.front.outbound.map(|addr| (addr, services.to_vec())),
            copies: copies.to_vec(),
            answers: Vec::new(),
        });
    }

    fn check(&self) -> Result<()> {
        self.front.check()?;
        self.back.check()
    }
}

/// Checks that the calls of a request name its workflow, with and without tokens.
fn check_what_a_call_says(pair: &Pair) -> Result<()> {
    let from_outside = [
        ("baggage", "user=4711,workflow=check%6Fut;ttl=1"),
        ("x-class", "gold"),
        ("grpc-timeout", "2S"),
    ];
    let answer = pair.front.get("/first", &from_outside)?;
    ensure!(answer.status == 200, "{answer:?}");

    // The application gets a token and none of Headgate's other headers. Its baggage is unchanged.
    let first = pair.a.last("/first")?;
    ensure!(first.ours() == ["x-headgate-request"], "{first:?}");
    let token = first.header("x-headgate-request").unwrap_or_default();
    let baggage = format!("user=4711,workflow=check%6Fut;ttl=1,headgate={token}");
    ensure!(first.header("baggage") == Some(&baggage), "{first:?}");

    // The next application has a token of its own, although only the baggage was copied.
    let below = pair.b.last("/first")?;
    ensure!(below.ours() == ["x-headgate-request"], "{below:?}");
    let token_below = below.header("x-headgate-request").unwrap_or_default();
    ensure!(!token_below.is_empty() && token_below != token, "{below:?}");
    let baggage = format!("user=4711,workflow=check%6Fut;ttl=1,headgate={token_below}");
    ensure!(below.header("baggage") == Some(&baggage), "{below:?}");

    // Announcements of `b` are for the proxy of `a`. Neither `a` nor its client sees them.
    for seen in [&pair.a.last_answer()?, &answer] {
        let ours = seen
            .headers
            .iter()
            .find(|(n, _)| n.starts_with("x-headgate-"));
        ensure!(ours.is_none(), "{seen:?}");
    }
    pair.front.wait_for("checkout", "rq_offered", 1)?;
    pair.front.wait_for("checkout", "calls", 1)?;
    pair.back.wait_for("checkout", "rq_offered", 1)?;

    // The process `c` has no proxy, so it shows the headers of a call.
    for (path, copies) in [
        ("/by-baggage", &["baggage"][..]),
        ("/by-header", &["x-headgate-request"]),
        ("/by-both", &["baggage", "x-headgate-request"]),
    ] {
        pair.call(&["c"], copies);
        let answer = pair.front.get(path, &from_outside)?;
        ensure!(answer.status == 200, "{answer:?}");
        let said = pair.c.last(path)?;
        let mut names = said.ours();
        names.sort_unstable();
        for name in [
            "x-headgate-class",
            "x-headgate-process",
            "x-headgate-timeout-ms",
            "x-headgate-workflow",
        ] {
            ensure!(names.contains(&name), "{said:?}");
        }
        ensure!(!names.contains(&"x-headgate-request"), "{said:?}");
        ensure!(
            said.header("x-headgate-workflow") == Some("checkout"),
            "{said:?}"
        );
        ensure!(said.header("x-headgate-class") == Some("gold"), "{said:?}");
        let process = said.header("x-headgate-process").unwrap_or_default();
        ensure!(process.len() == 16, "{said:?}");
        let left: u64 = said
            .header("x-headgate-timeout-ms")
            .unwrap_or_default()
            .parse()?;
        ensure!((1..=2_000).contains(&left), "{said:?}");
        let kept = copies
            .contains(&"baggage")
            .then_some("user=4711,workflow=check%6Fut;ttl=1");
        ensure!(said.header("baggage") == kept, "{said:?}");
    }

    // Without a token, the application's own baggage names the workflow.
    pair.call(&["c"], &[]);
    pair.a.behave(Behaviour {
        calls: pair.front.outbound.map(|addr| (addr, vec!["c"])),
        copies: vec!["x-headgate-workflow"],
        answers: Vec::new(),
    });
    pair.front.get("/lost", &from_outside)?;
    ensure!(pair.c.last("/lost")?.header("x-headgate-process").is_some());
    Ok(())
}

/// Returns the workflows of `b`, in which `bulk` may send 10 requests/s.
fn guarantees() -> serde_json::Value {
    let mut back = workflows();
    back["sharing"] = json!({"type": "StaticGuarantees"});
    back["workflows"] = json!({"bulk": {"guarantee": 10.0}, "web": {"guarantee": 1000.0}});
    back
}

/// The numbers of requests by outcome. They were sent one after the other, once the rates had
/// settled.
#[derive(Debug, Clone, Copy, Default)]
struct Ends {
    served: usize,
    refused: usize,
    /// Requests that the proxy behind refused.
    below: usize,
    /// Responses that announced a rate, including those before the rates had settled.
    announced: usize,
}

/// Sends requests at a rate far above the 10 requests/s of `bulk` until the rates have settled, and
/// then measures for the same time.
fn send_bulk(pair: &Pair) -> Result<(Ends, Lateness)> {
    // The header names a process in front of the first proxy, as another sidecar would.
    let bulk = [
        ("baggage", "workflow=bulk"),
        ("x-headgate-process", "00000000000000ff"),
    ];
    let (started, mut pauses) = (Instant::now(), Pauses::default());
    let mut ends = Ends::default();
    while started.elapsed() < Duration::from_secs(6) {
        let answer = pair.front.get("/bulk", &bulk)?;
        ends.announced += usize::from(
            answer
                .header("x-headgate-rate")
                .is_some_and(|r| r.contains("rate=")),
        );
        let late = started.elapsed() > Duration::from_secs(3);
        match (answer.status, answer.refusal_reason()) {
            (200, _) if late => ends.served += 1,
            (200, _) => {}
            (429, Some("rate_limit")) => {
                let after: u64 = answer.header("retry-after").unwrap_or_default().parse()?;
                ensure!((1..=60).contains(&after), "{answer:?}");
                ensure!(
                    answer
                        .header("x-headgate-refused")
                        .is_some_and(|r| r.contains("policy=shop/app"))
                );
                ends.refused += usize::from(late);
            }
            // The proxy of `b` refused, and the proxy of `a` passed the refusal on. The proxy of
            // `a` may not know the rate yet. Later, both limiters have the same rate, and the
            // limiter of `b` may be slightly behind.
            (429, None) => ends.below += usize::from(late),
            _ => bail!("{answer:?}"),
        }
        pauses.pause(PAUSE);
    }
    Ok((ends, pauses.lateness()))
}

/// Checks that the [`guarantees`] of `b` are enforced at the entry of `a`.
fn check_announced_rates(pair: &Pair) -> Result<()> {
    let Ends {
        served,
        refused,
        below,
        announced,
    } = load::undisturbed(LATE, |_| send_bulk(pair))?;
    // 10 requests/s for 3 s, with a tolerance of a third.
    ensure!(
        (20..=40).contains(&(served + below)) && below <= 10 && refused > 50,
        "{served} served, {refused} refused, {below} of them below; {:?}",
        pair.front.stats()
    );
    ensure!(announced > 0, "no rate was announced upstream");
    ensure!(pair.front.workflow_stat("bulk", "limited")? == 1);
    let rate = pair.front.workflow_stat("bulk", "rate_mhz")?;
    ensure!((7_000..=13_000).contains(&rate), "{rate} mHz");
    ensure!(pair.front.workflow_stat("bulk", "rq_rate_limited")? as usize >= refused);
    // Other workflows are not limited once their first rates have arrived. The requests don't come
    // in a burst, because the limiter has no queue.
    for i in 0..100 {
        std::thread::sleep(Duration::from_millis(20));
        let answer = pair.front.get("/web", &[("baggage", "workflow=web")])?;
        ensure!(answer.status == 200 || i < 50, "{i}: {answer:?}");
        ensure!(
            answer.header("x-headgate-rate").is_none(),
            "a client is told of rates"
        );
    }
    Ok(())
}

#[test]
fn a_rate_that_is_not_renewed_expires() -> Result<()> {
    let _lock = lock_machine()?;
    let pair = Pair::start(&workflows(), &workflows())?;
    pair.call(&["c"], &PROPAGATES);
    let says = |answers: Vec<(&'static str, String)>| {
        pair.c.behave(Behaviour {
            answers,
            ..Behaviour::default()
        });
    };
    let rate = |rate: &str| vec![("x-headgate-rate", rate.to_owned())];
    let bulk = [("baggage", "workflow=bulk")];
    says(rate("rate=1, process=\"00000000000000aa\""));
    until("a rate to be in force", || {
        let answer = pair.front.get("/bulk", &bulk).map_err(|e| e.to_string())?;
        (answer.status == 429)
            .then_some(())
            .ok_or_else(|| format!("{:?}", pair.front.stats()))
    })?;
    // `c` no longer announces rates, so the last rate expires.
    says(Vec::new());
    pair.front.wait_for_rate_above("bulk", 50)?;
    pair.front.wait_until_served("/bulk", &bulk)?;
    // Malformed rates are counted and limit no workflow.
    let before = pair.front.stat("rates_refused")?;
    for nonsense in [
        "rate=-1, process=\"00000000000000aa\"",
        "rate",
        "\"",
        "rate=1, process=\"x\"",
    ] {
        says(rate(nonsense));
        for _ in 0..5 {
            ensure!(pair.front.get("/bulk", &bulk)?.status == 200);
        }
    }
    until("nonsense to be counted", || {
        match pair.front.stat("rates_refused") {
            Ok(now) if now >= before + 20 => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })?;
    pair.check()
}

#[test]
fn an_edge_trusts_no_callers() -> Result<()> {
    let _lock = lock_machine()?;
    let mut edge = workflows();
    edge["edge"] = json!(true);
    let pair = Pair::start(&edge, &workflows())?;
    let lies = [
        ("x-headgate-workflow", "stolen"),
        ("x-headgate-process", "00000000000000ff"),
        ("x-headgate-timeout-ms", "1"),
        ("x-headgate-progress", "elapsed=1000000"),
        ("x-headgate-class", "gold"),
        ("x-headgate-request", "forged"),
        ("x-headgate-anything", "else"),
        ("baggage", "headgate=forged,k=v"),
    ];
    // Send several requests, so that the first request of each worker is among them.
    for _ in 0..20 {
        let answer = pair.front.get("/edge", &lies)?;
        ensure!(answer.status == 200, "{answer:?}");
        ensure!(answer.header("x-headgate-rate").is_none(), "{answer:?}");
        let seen = pair.a.last("/edge")?;
        ensure!(
            seen.headers
                .iter()
                .all(|(_, value)| value != "forged" && value != "stolen"),
            "{seen:?}"
        );
        ensure!(
            seen.ours() == ["x-headgate-request"] || seen.ours().is_empty(),
            "{seen:?}"
        );
        let baggage = seen.header("baggage").unwrap_or_default();
        ensure!(
            baggage.starts_with("k=v") && !baggage.contains("forged"),
            "{seen:?}"
        );
    }
    ensure!(pair.front.workflow_stat("stolen", "rq_offered")? == 0);
    // Within the mesh, the proxy trusts the same headers, and refuses the request for its deadline.
    pair.back
        .get("/mesh", &[("x-headgate-workflow", "stolen")])?;
    pair.back.wait_for("stolen", "rq_offered", 1)?;
    pair.check()
}

#[test]
fn either_listener_is_configured_without_the_other() -> Result<()> {
    let _lock = lock_machine()?;
    let pair = Pair::start(&workflows(), &workflows())?;
    let baggage = [("baggage", "workflow=w")];
    let load = |n: usize| -> Result<()> {
        for _ in 0..n {
            let answer = pair.front.get("/w", &baggage)?;
            ensure!(answer.status == 200, "{answer:?}");
        }
        Ok(())
    };
    load(20)?;
    for round in 0..3 {
        pair.front.configure(
            OUTBOUND_SLOT,
            &outbound(&json!({"services": {"b": format!("s{round}")}}))?,
        )?;
        load(10)?;
        let mut config = inbound(&workflows())?;
        config.stages[0].parallelism = 50 + round;
        pair.front.configure(DEFAULT_SLOT, &config)?;
        load(10)?;
        until("the slots that were configured", || {
            match pair.front.stat("slots") {
                Ok(slots) if slots == u64::from(50 + round) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })?;
    }
    pair.front.wait_for("w", "rq_offered", 80)?;
    pair.front.wait_for("w", "calls", 80)?;
    // Without a policy, the proxy adds no headers. Without workflows, it removes none either.
    let mut plain = inbound(&workflows())?;
    plain.stages[0].workflows = None;
    pair.front.configure(DEFAULT_SLOT, &plain)?;
    until("no tokens to be given", || {
        pair.front
            .get("/plain", &[("x-headgate-process", "own")])
            .map_err(|e| e.to_string())?;
        let seen = pair.a.last("/plain").map_err(|e| e.to_string())?;
        (seen.ours() == ["x-headgate-process"])
            .then_some(())
            .ok_or_else(|| format!("{seen:?}"))
    })?;
    pair.check()
}

#[test]
fn floods_of_headers_do_no_harm() -> Result<()> {
    let _lock = lock_machine()?;
    let pair = Pair::start(&workflows(), &workflows())?;
    pair.call(
        &["b", "c"],
        &["baggage", "x-headgate-request", "x-headgate-progress"],
    );
    let many: Vec<(String, String)> = (0..80)
        .map(|i| (format!("x-headgate-{}", i % 40), "v".repeat(100)))
        .collect();
    let many: Vec<(&str, &str)> = many.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
    let members = vec!["k=v"; 5_000].join(",");
    let (long, commas) = ("w".repeat(20_000), ",".repeat(20_000));
    let same = vec![("x-headgate-progress", "elapsed=1"); 60];
    let tokens = vec![("baggage", "headgate=t"); 60];
    let floods: [&[(&str, &str)]; 10] = [
        &many,
        &same,
        &tokens,
        &[("baggage", &members)],
        &[("baggage", &commas)],
        &[("baggage", &long), ("x-headgate-workflow", &long)],
        &[
            ("x-headgate-process", &long),
            ("x-headgate-progress", &long),
        ],
        &[
            ("x-headgate-request", &long),
            ("x-headgate-timeout-ms", &long),
        ],
        &[
            ("x-headgate-workflow", "%00%ff%"),
            ("baggage", "workflow=%00"),
        ],
        &[
            ("x-headgate-workflow", "\u{e9}\u{20ac}"),
            ("x-headgate-class", "\u{1F600}"),
        ],
    ];
    for _ in 0..3 {
        for flood in floods {
            let answer = pair.front.get("/flood", flood)?;
            ensure!(answer.status == 200, "{} for {flood:?}", answer.status);
        }
    }
    // All workflows beyond the limit share one entry.
    for i in 0..50 {
        let name = format!("workflow=tenant-{i}");
        ensure!(pair.front.get("/many", &[("baggage", &name)])?.status == 200);
    }
    pair.front.wait_for("_other", "rq_offered", 30)?;
    // The process answers with an oversized header.
    pair.c.behave(Behaviour {
        answers: vec![
            ("x-headgate-rate", "rate=".repeat(2_000)),
            ("x-headgate-rate", "rate=1".to_owned()),
            ("x-headgate-progress", "elapsed=1,".repeat(1_000)),
        ],
        ..Behaviour::default()
    });
    for _ in 0..10 {
        let answer = http::get_with(pair.front.addr, "/answers", &[("baggage", "workflow=w")])?;
        ensure!(answer.status == 200, "{answer:?}");
        let told = pair.a.last_answer()?;
        ensure!(
            told.headers
                .iter()
                .all(|(n, _)| !n.starts_with("x-headgate-")),
            "{told:?}"
        );
    }
    pair.check()
}
