use super::*;
use crate::config::{FilterConfig, StrategyConfig};
use crate::request::{ClassId, TypeId};
use crate::service_times::{ServiceTimes, Settings};

const P: u32 = 4;

/// Returns a control with S_t = 2 s and T = 1 s, as in Table 1, with P = 4 and costs from a header.
fn control(change: impl FnOnce(&mut BacklogControlConfig)) -> BacklogControl {
    let json = format!(
        r#"{{"stages":[{{"policy":"ns/p","parallelism":{P},
        "queue":{{"max_length":1000,"timeout_us":60000000}},
        "strategy":{{"type":"BacklogControl","target_us":2000000,"control":"Backlog",
            "cost":{{"type":"Header","header":"x-cost"}},"period_us":1000000,"hint":true}},
        "types":[{{"name":"default"}}]}}]}}"#
    );
    let stage = FilterConfig::from_json(json.as_bytes())
        .unwrap()
        .stages
        .remove(0);
    let StrategyConfig::BacklogControl(mut control) = stage.strategy.clone() else {
        panic!("no backlog control in {stage:?}");
    };
    change(&mut control);
    BacklogControl::new(&control, &stage)
}

fn at(ms: u64) -> Instant {
    Instant::from_nanos(ms * 1_000_000)
}

/// Serves requests of `cost` each. They take 10 ms per unit of cost.
fn serve(control: &mut BacklogControl, requests: u32, cost: u64, wait_ms: u64) {
    for _ in 0..requests {
        control.completed(
            &Served {
                kind: TypeId(0),
                class: ClassId(0),
                age: Duration::ZERO,
                queue_wait: Duration::from_millis(wait_ms),
                processing: Duration::from_millis(10) * cost as u32,
                slot: Duration::from_millis(10) * cost as u32,
                weight: 1,
                work: cost,
            },
            at(0),
        );
    }
}

/// A record that several workers share, encoded.
struct Shared(Vec<u8>);

impl Shared {
    fn new(control: &BacklogControl, now: Instant) -> Self {
        let mut record = Vec::new();
        let begun = Record::new(control.fingerprint, now, control.period);
        shared::encode(&begun, &mut record);
        Self(record)
    }

    fn sync(&mut self, control: &mut BacklogControl, now: Instant) {
        if control.sync(now, &mut self.0) {
            control.stored();
        }
    }
}

/// Decides on a request of `cost` that finds all slots busy, and `queue` requests with a total cost
/// of `backlog`.
fn decide(control: &mut BacklogControl, queue: u32, backlog: u64, cost: u64) -> bool {
    decide_with(control, P, queue, backlog, cost)
}

fn decide_with(
    control: &mut BacklogControl,
    slots: u32,
    queue: u32,
    backlog: u64,
    cost: u64,
) -> bool {
    let times = ServiceTimes::new(Settings {
        interval: Duration::from_secs(1),
        steps: 1,
        min_samples: 1,
        types: Vec::new(),
    });
    let view = View {
        now: at(0),
        parallelism: P,
        slots_in_use: slots,
        queue_length: queue,
        queue_work: backlog,
        work: cost,
        queue_wait: Duration::ZERO,
        rival_wait: Duration::ZERO,
        service_times: &times,
    };
    let request = Attributes::of(TypeId(0));
    let admitted = control.decide(&request, &view, &mut Rng::new(1)) == Ok(());
    control.decided(admitted);
    admitted
}

#[test]
fn there_is_no_bound_before_anything_was_measured_and_then_half_the_target() {
    let mut control = control(|_| {});
    let mut shared = Shared::new(&control, at(0));
    assert!(decide(&mut control, 900, 1_000_000, 50));
    shared.sync(&mut control, at(10));
    assert_eq!(control.bound(), None);
    serve(&mut control, 19, 10, 0);
    shared.sync(&mut control, at(20));
    assert_eq!(control.bound(), None, "19 are too few");
    serve(&mut control, 1, 10, 0);
    shared.sync(&mut control, at(30));
    // A request takes 100 ms. A unit takes 10 ms in one of four slots. So the bound is (2 s − 0.1
    // s) / 2 at 400 units/s.
    assert!((control.bound().unwrap() - 380.0).abs() < 1e-6);
    assert!((control.time_per_work().unwrap() - 0.01).abs() < 1e-12);
}

#[test]
fn one_request_is_enough_once_a_period_has_ended() {
    let mut control = control(|_| {});
    let mut shared = Shared::new(&control, at(0));
    assert!(decide(&mut control, 0, 0, 10));
    serve(&mut control, 1, 10, 0);
    shared.sync(&mut control, at(999));
    assert_eq!(control.bound(), None);
    shared.sync(&mut control, at(1_000));
    assert!(control.bound().is_some());
}

/// Returns a control whose bound is 380 units.
fn bounded(change: impl FnOnce(&mut BacklogControlConfig)) -> (BacklogControl, Shared) {
    let mut control = control(change);
    let mut shared = Shared::new(&control, at(0));
    assert!(decide(&mut control, 9, 100, 10));
    serve(&mut control, 20, 10, 0);
    shared.sync(&mut control, at(10));
    (control, shared)
}

#[test]
fn the_backlog_with_the_request_stays_within_the_bound() {
    let (mut control, _) = bounded(|_| {});
    assert!(decide(&mut control, 37, 370, 10), "Eq. 2: equal is within");
    assert!(!decide(&mut control, 37, 371, 10));
    assert!(decide(&mut control, 300, 300, 80), "however many wait");
    assert!(!decide(&mut control, 1, 370, 11));
}

#[test]
fn fc_q_counts_requests_and_not_what_they_cost() {
    let (mut control, _) = bounded(|c| c.control = BacklogSignal::QueueLength);
    // Requests take 100 ms each in four slots, which is 40 requests per second.
    assert!((control.bound().unwrap() - 38.0).abs() < 1e-6);
    assert!(decide(&mut control, 37, 1_000_000, 1_000));
    assert!(!decide(&mut control, 38, 38, 1));
}

#[test]
fn ac_refuses_in_proportion_to_the_relative_error() {
    let (mut control, mut shared) = bounded(|c| c.control = BacklogSignal::Proportional);
    assert_eq!(control.bound(), Some(0.0));
    for (period, (wait_ms, probability)) in [
        (1_900, 0.0),
        (1_000, 0.0),
        (2_400, 0.25),
        (3_900, 1.0),
        (9_900, 1.0),
    ]
    .into_iter()
    .enumerate()
    {
        // A new period starts here, so that the last one doesn't count.
        shared.sync(&mut control, at(1_000 * (2 * period as u64 + 1)));
        serve(&mut control, 10, 10, wait_ms);
        shared.sync(&mut control, at(1_000 * (2 * period as u64 + 2)));
        let bound = control.bound().unwrap();
        assert!((bound - probability).abs() < 1e-9, "{wait_ms}: {bound}");
    }
    assert!(!decide(&mut control, 1, 1, 1));
    assert!(decide_with(&mut control, P - 1, 0, 0, 1), "a free slot");
}

#[test]
fn a_free_slot_and_no_queue_admit_whatever_the_bound() {
    let (mut control, mut shared) = bounded(|_| {});
    for period in 1..20 {
        assert!(!decide(&mut control, 40, 400, 10));
        serve(&mut control, 10, 10, 60_000);
        shared.sync(&mut control, at(period * 1_000));
    }
    assert_eq!(control.bound(), Some(0.0));
    assert!(control.needs_slots_in_use(0, 1) && !control.needs_slots_in_use(1, 1));
    assert!(decide_with(&mut control, P - 1, 0, 0, 500));
    assert!(!decide_with(&mut control, P, 0, 0, 1), "it would wait");
    assert!(
        !decide_with(&mut control, P - 1, 1, 1, 1),
        "somebody is first"
    );
}

#[test]
fn a_period_without_served_requests_changes_nothing() {
    let (mut control, mut shared) = bounded(|_| {});
    shared.sync(&mut control, at(1_000));
    let before = control.known.control;
    for period in 2..10 {
        assert!(!decide(&mut control, 40, 400, 10));
        shared.sync(&mut control, at(period * 1_000));
    }
    assert_eq!(control.known.control, before);
}

#[test]
fn a_record_of_other_units_is_not_mistaken_for_ours() {
    let (_, mut shared) = bounded(|_| {});
    let mut other = control(|c| c.cost = CostConfig::Measured);
    shared.sync(&mut other, at(20));
    assert_eq!(other.bound(), None);
    let mut third = control(|c| c.cost = CostConfig::Measured);
    shared.sync(&mut third, at(30));
    assert_eq!(third.known, other.known, "and the new one is shared");
}

#[test]
fn costs_in_time_are_configured_in_ms() {
    let measured = control(|c| {
        c.cost = CostConfig::Measured;
        c.max_backlog = Some(300.0);
        c.proportional_gain = Some(2.0);
    });
    assert_eq!(measured.max, Some(300_000.0));
    assert_eq!(measured.proportional, Some(2_000.0));
    let counted = control(|c| c.max_backlog = Some(300.0));
    assert_eq!(counted.max, Some(300.0));
}

#[test]
fn the_hint_is_the_rejection_rate_of_all_workers() {
    let (mut a, mut shared) = bounded(|_| {});
    let mut b = control(|_| {});
    shared.sync(&mut b, at(20));
    assert_eq!(b.bound(), a.bound());
    for n in 0..30 {
        decide(&mut a, 1, 10, 10);
        decide(&mut b, 38, if n < 20 { 380 } else { 10 }, 10);
    }
    shared.sync(&mut a, at(30));
    shared.sync(&mut b, at(40));
    shared.sync(&mut a, at(50));
    // Of 61 requests, 20 were refused. One came before there was a bound.
    for worker in [&a, &b] {
        assert_eq!(worker.rejection_rate(), Some(20.0 / 61.0));
    }
    let silent = control(|c| c.hint = false);
    assert_eq!(silent.rejection_rate(), None);
}
