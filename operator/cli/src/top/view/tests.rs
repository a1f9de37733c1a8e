use std::time::Duration;

use super::*;
use crate::top::client::About;
use crate::top::sample::Sample;

/// Two responses of a real Envoy 1.40, 10 s apart, while its backend gets 1.6 times its capacity.
const BEFORE: &str = include_str!("../recorded/before.txt");
const AFTER: &str = include_str!("../recorded/after.txt");

const SPAN: Duration = Duration::from_secs(10);

/// Workflow `checkout` at a process whose downstream service `extent-node` sets the rate.
fn workflows(offered: u64, limited: u64, gauges: &str) -> String {
    let of = "wasmcustom.headgate.policy.shop/front.";
    let mut text = format!(
        "{of}slots: 8\n{of}slots_in_use: 3\n{of}workflows: 2\n{of}workflows_folded: {limited}\n\
         {of}rates_expired: 0\n{of}rates_refused: 5\n{of}service.extent-node.index: 2\n\
         {of}workflow.checkout.rq_offered: {offered}\n\
         {of}workflow.checkout.rq_admitted: {}\n\
         {of}workflow.checkout.rq_rate_limited: {limited}\n\
         {of}workflow.checkout.rq_deadline: 0\n\
         {of}workflow.checkout.rq_rejected_enforced: {limited}\n\
         {of}workflow.checkout.rq_completed: {}\n\
         {of}workflow.checkout.calls: {}\n\
         {of}workflow.checkout.limiter_wait_us: B1000(0,{offered}) B2000(0,0)\n",
        offered - limited,
        offered - limited,
        2 * (offered - limited),
    );
    for gauge in gauges.split_whitespace() {
        let (name, value) = gauge.split_once('=').unwrap();
        text += &format!("{of}workflow.checkout.{name}: {value}\n");
    }
    text
}

struct Proxies {
    fleet: Fleet,
    start: Instant,
}

impl Proxies {
    fn new() -> Self {
        Self {
            fleet: Fleet::new(SPAN),
            start: Instant::now(),
        }
    }

    /// Adds the texts as responses, a window apart.
    fn answers(&mut self, proxy: &str, texts: &[&str]) {
        self.fleet.add(proxy);
        for (at, text) in (0..).zip(texts) {
            let sample = Sample::parse(text);
            self.fleet.hear(proxy, self.start + at * SPAN, Ok(sample));
        }
    }

    fn view(&self, only: Option<&str>) -> View {
        View::new(&self.fleet, only, self.start + SPAN, SystemTime::UNIX_EPOCH)
    }
}

/// Returns a counter of the recorded responses, in requests/s.
fn recorded(name: &str) -> f64 {
    let value = |text: &str| {
        let sample = Sample::parse(text);
        let policy = &sample.policies["default/search"];
        policy.types["slow"].value(name).unwrap()
    };
    (value(AFTER) - value(BEFORE)) as f64 / SPAN.as_secs_f64()
}

#[test]
fn a_real_proxy_is_shown_as_it_is() {
    let mut proxies = Proxies::new();
    proxies.answers("a:1", &[BEFORE, AFTER]);
    let about = About {
        version: "1.40.0".to_owned(),
        node: "search-1".to_owned(),
    };
    proxies.fleet.introduce("a:1", about);
    let view = proxies.view(None);
    assert_eq!(view.window_seconds, 10.0);
    let policy = &view.policies[0];
    assert_eq!(
        (policy.policy.as_str(), policy.proxies),
        ("default/search", 1)
    );
    assert_eq!(policy.slots, Some(4));
    assert!(policy.workflows.is_none());
    // The costly type is refused most.
    let slow = &policy.types[0];
    assert_eq!(slow.kind, "slow");
    let near = |a: Option<f64>, b: f64| assert!((a.unwrap() - b).abs() < 0.002, "{a:?}, {b}");
    near(slow.traffic.arrival_rate, recorded("rq_total"));
    near(slow.traffic.accepted_rate, recorded("rq_accepted"));
    near(slow.traffic.refused_rate, recorded("rq_rejected_enforced"));
    near(slow.traffic.would_refuse_rate, 0.0);
    let reasons = slow.traffic.refused_by_reason.keys().collect::<Vec<_>>();
    assert_eq!(reasons, ["slo_p50"]);
    let wait = slow.queue_wait_ms.unwrap();
    assert!(
        0.0 < wait.p50 && wait.p50 < wait.p99 && wait.p99 < 200.0,
        "{wait:?}"
    );
    let [p50, p90] = &slow.objectives[..] else {
        panic!("{:?}", slow.objectives);
    };
    assert_eq!((p50.objective.as_str(), p50.target), ("p50", Some(0.5)));
    assert_eq!(p50.response_time_ms, Some(72.0));
    assert!(
        p50.shortfall() > 0.0 && p90.shortfall() == 0.0,
        "{p50:?} {p90:?}"
    );
    assert!(slow.hurt > slow.traffic.refused_rate.unwrap());
    let sum: f64 = policy.types.iter().map(|t| t.hurt).sum();
    assert!((policy.hurt - sum).abs() < 0.01);
    let proxy = &view.proxies[0];
    assert_eq!(
        (proxy.state, proxy.version.as_str()),
        (State::Answers, "1.40.0")
    );
    assert_eq!(proxy.policies, ["default/search"]);
    near(proxy.arrival_rate, policy.traffic.arrival_rate.unwrap());
}

#[test]
fn one_answer_has_gauges_and_no_rates() {
    let mut proxies = Proxies::new();
    proxies.answers("a:1", &[BEFORE]);
    let view = proxies.view(None);
    let policy = &view.policies[0];
    assert_eq!(policy.slots, Some(4));
    assert_eq!(policy.traffic, Traffic::default());
    assert_eq!(policy.types[0].queue_wait_ms, None);
    assert!(
        policy.types[0]
            .objectives
            .iter()
            .all(|o| o.attainment.is_none())
    );
}

#[test]
fn proxies_of_a_policy_add_up_and_the_silent_ones_do_not() {
    let mut proxies = Proxies::new();
    proxies.answers("a:1", &[BEFORE, AFTER]);
    proxies.answers("b:1", &[BEFORE, AFTER]);
    proxies.answers("c:1", &[BEFORE, AFTER]);
    let failed = Err("nothing listens there".to_owned());
    proxies.fleet.hear("c:1", proxies.start + SPAN, failed);
    let (both, one) = (proxies.view(None), proxies.view(Some("b:1")));
    let (all, single) = (&both.policies[0], &one.policies[0]);
    assert_eq!((all.proxies, single.proxies), (2, 1));
    assert_eq!(all.slots, Some(8));
    let rate = |p: &PolicyRow| p.traffic.arrival_rate.unwrap();
    assert!((rate(all) - 2.0 * rate(single)).abs() < 0.01);
    assert_eq!(all.types[0].queue_wait_ms, single.types[0].queue_wait_ms);
    assert_eq!(all.types[0].objectives, single.types[0].objectives);
    assert_eq!(both.unreachable(), 1);
    let silent = &both.proxies[2];
    assert_eq!(silent.state, State::Unreachable);
    assert_eq!(silent.problem.as_deref(), Some("nothing listens there"));
    assert_eq!(silent.arrival_rate, None);
    assert_eq!(
        one.proxies.len(),
        3,
        "their list is whole whatever is chosen"
    );
}

#[test]
fn after_a_restart_nothing_counts_backwards() {
    let mut proxies = Proxies::new();
    // Another process: rates need a second response of it.
    let young = AFTER.replacen("server.uptime: ", "server.uptime: 0", 1);
    let uptime = young
        .lines()
        .find(|l| l.starts_with("server.uptime"))
        .unwrap();
    let young = young.replacen(uptime, "server.uptime: 0", 1);
    proxies.answers("a:1", &[BEFORE, AFTER, &young]);
    let view = proxies.view(None);
    assert_eq!(view.proxies[0].restarts, 1);
    assert_eq!(view.policies[0].traffic.arrival_rate, None);
    // The same process, but the policy was removed and came back: the counter began anew.
    let mut proxies = Proxies::new();
    let of = "wasmcustom.headgate.policy.a/p.type.t.rq_total";
    let (before, after) = (format!("{of}: 1000"), format!("{of}: 50"));
    proxies.answers("a:1", &[&before, &after]);
    let row = &proxies.view(None).policies[0];
    assert_eq!(row.traffic.arrival_rate, Some(5.0));
    // A new counter has counted from 0.
    let mut proxies = Proxies::new();
    proxies.answers("a:1", &["", &after]);
    let row = &proxies.view(None).policies[0];
    assert_eq!(row.traffic.arrival_rate, Some(5.0));
}

#[test]
fn what_a_version_does_not_have_is_unknown_rather_than_zero() {
    let mut proxies = Proxies::new();
    let of = "wasmcustom.headgate.policy.a/p.type.t";
    let text = |n| format!("{of}.rq_total: {n}\n{of}.rq_of_tomorrow: {n}\n");
    proxies.answers("a:1", &[&text(0), &text(10)]);
    let view = proxies.view(None);
    let kind = &view.policies[0].types[0];
    assert_eq!(kind.traffic.arrival_rate, Some(1.0));
    assert_eq!(kind.traffic.refused_rate, None);
    assert_eq!(view.policies[0].slots, None);
    let json = serde_json::to_value(&view).unwrap();
    assert!(json["policies"][0]["types"][0]["refusedRate"].is_null());
}

#[test]
fn a_policy_that_was_removed_is_not_shown() {
    let mut proxies = Proxies::new();
    let text = "wasmcustom.headgate.policy.a/p.slots: 0\n\
                wasmcustom.headgate.policy.a/p.type.t.rq_total: 9\n";
    proxies.answers("a:1", &[text, text]);
    let view = proxies.view(None);
    assert!(view.policies.is_empty() && view.proxies[0].policies.is_empty());
}

#[test]
fn a_dry_run_refuses_nothing() {
    let mut proxies = Proxies::new();
    let of = "wasmcustom.headgate.policy.a/p.type.t";
    let text = |n| {
        format!(
            "{of}.rq_total: {n}\n{of}.rq_rejected: {n}\n{of}.rq_rejected_enforced: 0\n\
             {of}.rq_rejected.reason.queue_full: {n}\n{of}.rq_rejected.reason.backlog: 0\n"
        )
    };
    proxies.answers("a:1", &[&text(0), &text(10)]);
    let view = proxies.view(None);
    let traffic = &view.policies[0].traffic;
    assert_eq!(traffic.refused_rate, Some(0.0));
    assert_eq!(traffic.would_refuse_rate, Some(1.0));
    assert_eq!(
        traffic.refused_by_reason,
        [("queue_full".to_owned(), 1.0)].into()
    );
    assert_eq!(view.policies[0].hurt, 0.0);
}

#[test]
fn a_dry_run_of_workflows_refuses_nothing() {
    let mut proxies = Proxies::new();
    let text = |offered, limited| {
        let enforced = format!("rq_rejected_enforced: {limited}");
        workflows(offered, limited, "limited=1 rate_mhz=37500")
            .replace(&enforced, "rq_rejected_enforced: 0")
    };
    proxies.answers("a:1", &[&text(0, 0), &text(600, 225)]);
    let view = proxies.view(None);
    let row = &view.policies[0].workflows.as_ref().unwrap().rows[0];
    assert_eq!((row.refused_rate, row.hurt), (Some(0.0), 0.0));
    assert_eq!(row.would_refuse_rate, Some(22.5));
    assert_eq!(row.rate_limited_rate, Some(22.5));
}

#[test]
fn workflows_have_rates_and_bottlenecks() {
    let gauges = "limited=1 rate_mhz=37500 local_rate_mhz=80000 demand_mhz=60000 queue_length=4 \
                  completion_us=20000 bottleneck=2";
    let mut proxies = Proxies::new();
    proxies.answers(
        "a:1",
        &[&workflows(0, 0, gauges), &workflows(600, 225, gauges)],
    );
    let here = gauges.replace("bottleneck=2", "bottleneck=0");
    proxies.answers(
        "b:1",
        &[&workflows(0, 0, &here), &workflows(400, 25, &here)],
    );
    let view = proxies.view(None);
    let policy = &view.policies[0];
    let all = policy.workflows.as_ref().unwrap();
    assert_eq!((all.known, all.folded_rate), (Some(2), Some(25.0)));
    assert_eq!(all.rates_refused_rate, Some(0.0));
    let row = &all.rows[0];
    assert_eq!(row.workflow, "checkout");
    assert_eq!(row.demand_rate, Some(120.0));
    assert_eq!(
        (row.limit_rate, row.local_limit_rate),
        (Some(75.0), Some(160.0))
    );
    assert_eq!(
        (row.offered_rate, row.admitted_rate),
        (Some(100.0), Some(75.0))
    );
    assert_eq!(
        (
            row.rate_limited_rate,
            row.refused_rate,
            row.would_refuse_rate
        ),
        (Some(25.0), Some(25.0), Some(0.0))
    );
    assert_eq!(row.calls_rate, Some(150.0));
    assert_eq!(row.queue_length, Some(8));
    assert_eq!(row.completion_ms, Some(20.0));
    assert_eq!(
        row.wait_ms,
        Some(Percentiles {
            p50: 0.5,
            p99: 0.99
        })
    );
    let places: Vec<&str> = row.bottlenecks.iter().map(|b| b.place.as_str()).collect();
    assert_eq!(places, ["extent-node", "local"]);
    assert_eq!(
        policy.hurt, 25.0,
        "what a rate refuses never reaches a type"
    );
    assert_eq!(view.proxies[0].refused_rate, Some(22.5));
}

#[test]
fn without_a_rate_in_force_there_is_no_limit() {
    let gauges = "limited=0 rate_mhz=0 local_rate_mhz=0 demand_mhz=60000 bottleneck=0";
    let mut proxies = Proxies::new();
    proxies.answers(
        "a:1",
        &[&workflows(0, 0, gauges), &workflows(600, 0, gauges)],
    );
    let view = proxies.view(None);
    let row = &view.policies[0].workflows.as_ref().unwrap().rows[0];
    assert_eq!((row.limit_rate, row.local_limit_rate), (None, None));
    assert!(row.bottlenecks.is_empty());
    assert_eq!(row.hurt, 0.0);
}
