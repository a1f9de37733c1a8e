use std::time::Duration;

use super::*;
use crate::sample::{About, Sample};

/// Two responses of a real Envoy 1.40, 10 s apart, while its backend gets 1.6 times its capacity.
const BEFORE: &str = include_str!("../recorded/before.txt");
const AFTER: &str = include_str!("../recorded/after.txt");

const SPAN: Duration = Duration::from_secs(10);

/// Returns the stats of workflow `checkout` at a process. The downstream service `extent-node`
/// determines the workflow's rate.
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
            fleet: Fleet {
                window: SPAN,
                ..Fleet::default()
            },
            start: Instant::now(),
        }
    }

    /// Adds the texts as responses of a proxy, each a window after the one before.
    fn answers(&mut self, proxy: &str, texts: &[&str]) {
        let proxies = &mut self.fleet.proxies;
        proxies.entry(proxy.to_owned()).or_default();
        for (at, text) in (0..).zip(texts) {
            let mut sample = Sample::parse(text);
            sample.about = About {
                version: "1.40.0".to_owned(),
                node: "search-1".to_owned(),
            };
            self.fleet.hear(proxy, self.start + at * SPAN, Ok(sample));
        }
    }

    fn view(&self, only: Option<&str>) -> Value {
        view(&self.fleet, only, self.start + SPAN, SystemTime::UNIX_EPOCH)
    }
}

/// Returns the rate of a counter in the recorded responses, in requests/s.
fn recorded(name: &str) -> f64 {
    let value = |text: &str| {
        let sample = Sample::parse(text);
        let mut types = of(&sample.policies["default/search"], TYPE);
        let (_, slow) = types.find(|(name, _)| *name == "slow").unwrap();
        slow.value(name).unwrap()
    };
    (value(AFTER) - value(BEFORE)) as f64 / SPAN.as_secs_f64()
}

#[test]
fn a_real_proxy_is_shown_as_it_is() {
    let mut proxies = Proxies::new();
    proxies.answers("a:1", &[BEFORE, AFTER]);
    let view = proxies.view(None);
    assert_eq!(view["windowSeconds"], 10.0);
    let policy = &view["policies"][0];
    assert_eq!(policy["policy"], "default/search");
    assert_eq!(policy["proxies"], 1);
    assert_eq!(policy["slots"], 4);
    assert!(policy["workflows"].is_null());
    // The costly type has the most refusals.
    let slow = &policy["types"][0];
    assert_eq!(slow["type"], "slow");
    let near = |a: &Value, b: f64| assert!((a.as_f64().unwrap() - b).abs() < 0.002, "{a:?}, {b}");
    near(&slow["arrivalRate"], recorded("rq_total"));
    near(&slow["acceptedRate"], recorded("rq_accepted"));
    near(&slow["refusedRate"], recorded("rq_rejected_enforced"));
    near(&slow["wouldRefuseRate"], 0.0);
    let reasons = slow["refusedByReason"].as_object().unwrap();
    assert_eq!(reasons.keys().collect::<Vec<_>>(), ["slo_p50"]);
    let wait = |part: &str| slow["queueWaitMs"][part].as_f64().unwrap();
    let (p50, p99) = (wait("p50"), wait("p99"));
    assert!(0.0 < p50 && p50 < p99 && p99 < 200.0, "{p50}, {p99}");
    let [p50, p90] = &slow["objectives"].as_array().unwrap()[..] else {
        panic!("{slow}");
    };
    assert_eq!(p50["objective"], "p50");
    assert_eq!(p50["target"], 0.5);
    assert_eq!(p50["responseTimeMs"], 72.0);
    assert!(
        margin(p50).unwrap() < 0.0 && margin(p90).unwrap() >= 0.0,
        "{slow}"
    );
    let hurt = |row: &Value| row["hurt"].as_f64().unwrap();
    assert!(hurt(slow) > slow["refusedRate"].as_f64().unwrap());
    near(&policy["hurt"], each(&policy["types"]).map(hurt).sum());
    let proxy = &view["proxies"][0];
    assert_eq!(proxy["state"], "Answers");
    assert_eq!(proxy["version"], "1.40.0");
    assert_eq!(proxy["policies"], json!(["default/search"]));
    near(
        &proxy["arrivalRate"],
        policy["traffic"]["arrivalRate"].as_f64().unwrap(),
    );
}

#[test]
fn one_answer_has_gauges_and_no_rates() {
    let mut proxies = Proxies::new();
    proxies.answers("a:1", &[BEFORE]);
    let view = proxies.view(None);
    let policy = &view["policies"][0];
    assert_eq!(policy["slots"], 4);
    assert!(policy["traffic"]["arrivalRate"].is_null());
    assert!(policy["traffic"]["refusedRate"].is_null());
    assert_eq!(policy["traffic"]["refusedByReason"], json!({}));
    assert!(policy["types"][0]["queueWaitMs"].is_null());
    let mut objectives = each(&policy["types"][0]["objectives"]);
    assert!(objectives.all(|o| o["attainment"].is_null()));
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
    let (all, single) = (&both["policies"][0], &one["policies"][0]);
    assert_eq!(all["proxies"], 2);
    assert_eq!(single["proxies"], 1);
    assert_eq!(all["slots"], 8);
    let rate = |p: &Value| p["traffic"]["arrivalRate"].as_f64().unwrap();
    assert!((rate(all) - 2.0 * rate(single)).abs() < 0.01);
    let (all, single) = (&all["types"][0], &single["types"][0]);
    assert_eq!(all["queueWaitMs"], single["queueWaitMs"]);
    assert_eq!(all["objectives"], single["objectives"]);
    let silent = &both["proxies"][2];
    assert_eq!(silent["state"], "Unreachable");
    assert_eq!(silent["problem"], "nothing listens there");
    assert!(silent["arrivalRate"].is_null());
    let listed = each(&one["proxies"]).count();
    assert_eq!(listed, 3, "their list is whole whatever is chosen");
}

#[test]
fn after_a_restart_nothing_counts_backwards() {
    let mut proxies = Proxies::new();
    // The third response is from another process, so rates need a second response of this process.
    let young = AFTER.replacen("server.uptime: ", "server.uptime: 0", 1);
    let uptime = young
        .lines()
        .find(|l| l.starts_with("server.uptime"))
        .unwrap();
    let young = young.replacen(uptime, "server.uptime: 0", 1);
    proxies.answers("a:1", &[BEFORE, AFTER, &young]);
    let view = proxies.view(None);
    assert_eq!(view["proxies"][0]["restarts"], 1);
    assert!(view["policies"][0]["traffic"]["arrivalRate"].is_null());
    // The process is the same, but the policy was removed and added again, so the counter was
    // restarted.
    let mut proxies = Proxies::new();
    let of = "wasmcustom.headgate.policy.a/p.type.t.rq_total";
    let (before, after) = (format!("{of}: 1000"), format!("{of}: 50"));
    proxies.answers("a:1", &[&before, &after]);
    let view = proxies.view(None);
    assert_eq!(view["policies"][0]["traffic"]["arrivalRate"], 5.0);
    // A new counter started at 0.
    let mut proxies = Proxies::new();
    proxies.answers("a:1", &["", &after]);
    let view = proxies.view(None);
    assert_eq!(view["policies"][0]["traffic"]["arrivalRate"], 5.0);
}

#[test]
fn a_stat_that_a_version_lacks_is_unknown_rather_than_zero() {
    let mut proxies = Proxies::new();
    let of = "wasmcustom.headgate.policy.a/p.type.t";
    let text = |n| format!("{of}.rq_total: {n}\n{of}.rq_of_tomorrow: {n}\n");
    proxies.answers("a:1", &[&text(0), &text(10)]);
    let view = proxies.view(None);
    let policy = &view["policies"][0];
    assert_eq!(policy["types"][0]["arrivalRate"], 1.0);
    assert!(policy["types"][0]["refusedRate"].is_null());
    assert!(policy["slots"].is_null());
}

#[test]
fn a_policy_that_was_removed_is_not_shown() {
    let mut proxies = Proxies::new();
    let text = "wasmcustom.headgate.policy.a/p.slots: 0\n\
                wasmcustom.headgate.policy.a/p.type.t.rq_total: 9\n";
    proxies.answers("a:1", &[text, text]);
    let view = proxies.view(None);
    assert_eq!(view["policies"], json!([]));
    assert_eq!(view["proxies"][0]["policies"], json!([]));
    assert_eq!(view["proxies"][0]["hurt"].to_string(), "0.0");
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
    let traffic = &view["policies"][0]["traffic"];
    assert_eq!(traffic["refusedRate"], 0.0);
    assert_eq!(traffic["wouldRefuseRate"], 1.0);
    assert_eq!(traffic["refusedByReason"], json!({"queue_full": 1.0}));
    assert_eq!(view["policies"][0]["hurt"], 0.0);
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
    let row = &view["policies"][0]["workflows"]["rows"][0];
    assert_eq!(row["refusedRate"], 0.0);
    assert_eq!(row["hurt"].to_string(), "0.0");
    assert_eq!(row["wouldRefuseRate"], 22.5);
    assert_eq!(row["rateLimitedRate"], 22.5);
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
    let policy = &view["policies"][0];
    let all = &policy["workflows"];
    assert_eq!(all["known"], 2);
    assert_eq!(all["foldedRate"], 25.0);
    assert_eq!(all["ratesRefusedRate"], 0.0);
    let row = &all["rows"][0];
    assert_eq!(row["workflow"], "checkout");
    for (name, rate) in [
        ("demandRate", 120.0),
        ("limitRate", 75.0),
        ("localLimitRate", 160.0),
        ("offeredRate", 100.0),
        ("admittedRate", 75.0),
        ("rateLimitedRate", 25.0),
        ("refusedRate", 25.0),
        ("wouldRefuseRate", 0.0),
        ("callsRate", 150.0),
        ("completionMs", 20.0),
    ] {
        assert_eq!(row[name], rate, "{name}");
    }
    assert_eq!(row["queueLength"], 8);
    assert_eq!(row["waitMs"], json!({"p50": 0.5, "p99": 0.99}));
    let places = [("extent-node", 1), ("local", 1)];
    let places = places.map(|(place, n)| json!({"place": place, "proxies": n}));
    assert_eq!(row["bottlenecks"], json!(places));
    assert_eq!(
        policy["hurt"], 25.0,
        "what a rate refuses never reaches a type"
    );
    assert_eq!(view["proxies"][0]["refusedRate"], 22.5);
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
    let row = &view["policies"][0]["workflows"]["rows"][0];
    assert!(row["limitRate"].is_null() && row["localLimitRate"].is_null());
    assert_eq!(row["bottlenecks"], json!([]));
    assert_eq!(row["hurt"], 0.0);
}

/// Returns the stats of a proxy whose value cut allots `budget` thousandths of 10 slots.
fn cutting(budget: u64, types: &[(&str, u64, u64, u64)]) -> String {
    let of = "wasmcustom.headgate.policy.a/p.";
    let mut text = format!("{of}slots: 10\n{of}value_budget_permille: {budget}\n");
    for (name, density, asked, admitted) in types {
        text += &format!(
            "{of}type.{name}.value_per_slot_second_milli: {density}\n\
             {of}type.{name}.value_slots_asked_milli: {asked}\n\
             {of}type.{name}.value_admitted_permille: {admitted}\n",
        );
    }
    text
}

#[test]
fn the_value_cut_is_that_of_all_proxies() {
    let mut proxies = Proxies::new();
    let one = [
        ("dear", 10_000, 9_000, 500),
        ("cheap", 200_000, 4_000, 1_000),
    ];
    let other = [("dear", 16_000, 3_000, 900), ("cheap", 0, 0, 1_000)];
    proxies.answers("a:1", &[&cutting(900, &one)]);
    proxies.answers("b:1", &[&cutting(1_100, &other)]);
    let view = proxies.view(None);
    let policy = &view["policies"][0];
    let all = json!({"slotsAsked": 16.0, "slotsGiven": 20.0});
    assert_eq!(policy["valueCut"], all);
    let of = |name: &str| {
        let types = { each(&policy["types"]) }.find(|t| t["type"] == name);
        types.unwrap()["valueCut"].clone()
    };
    assert_eq!(
        of("dear"),
        json!({
            "perSlotSecond": 11.5, "slotsAsked": 12.0, "slotsBefore": 4.0, "admitted": 0.6,
            "ofAll": all,
        })
    );
    let cheap = of("cheap");
    assert_eq!(
        (&cheap["slotsBefore"], &cheap["admitted"]),
        (&json!(0.0), &json!(1.0))
    );
    proxies.answers("c:1", &[BEFORE]);
    let without = &proxies.view(Some("c:1"))["policies"][0];
    assert!(without["valueCut"].is_null() && without["types"][0]["valueCut"].is_null());
}

#[test]
fn a_rank_is_the_mean_of_the_proxies_that_have_one() {
    let mut proxies = Proxies::new();
    let ranked = [("dear", 10_000, 4_000, 1_000), ("new", 0, 1_000, 1_000)];
    let other = [("dear", 0, 4_000, 1_000), ("new", 0, 1_000, 1_000)];
    proxies.answers("a:1", &[&cutting(900, &ranked)]);
    proxies.answers("b:1", &[&cutting(900, &other)]);
    let view = proxies.view(None);
    let ranks = each(&view["policies"][0]["types"]).map(|t| &t["valueCut"]["perSlotSecond"]);
    assert_eq!(ranks.collect::<Vec<_>>(), [&json!(10.0), &json!(0.0)]);
}

#[test]
fn a_cut_that_was_switched_off_is_none() {
    let mut proxies = Proxies::new();
    proxies.answers("a:1", &[&cutting(0, &[("dear", 0, 0, 0)])]);
    let view = proxies.view(None);
    let policy = &view["policies"][0];
    assert!(policy["valueCut"].is_null() && policy["types"][0]["valueCut"].is_null());
    // Another proxy still has the previous configuration.
    proxies.answers("b:1", &[&cutting(900, &[("dear", 10_000, 1_000, 500)])]);
    let view = proxies.view(None);
    let policy = &view["policies"][0];
    assert_eq!(policy["valueCut"]["slotsGiven"], 9.0);
    assert_eq!(policy["types"][0]["valueCut"]["admitted"], 0.5);
}
