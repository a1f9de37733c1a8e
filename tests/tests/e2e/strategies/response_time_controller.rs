//! Tests of SEDA's response time controller: its rate, its classes, and degraded service.

use anyhow::{Error, Result};
use headgate_tests::http::{Answer, Pending};
use headgate_tests::rig::Rig;
use headgate_tests::wait::until;
use serde_json::{Value, json};

use super::{ALONE, Kind, QUICK, SLOW, at_once, changed, policy, start};

/// Returns the settings of SEDA's controller for a target of 500 ms. The controller reacts fast: it
/// runs after every five requests, or after 50 ms without requests.
fn controller(changes: &Value) -> Value {
    let settings = json!({
        "target": "500ms",
        "requests": 5,
        "timeout": "50ms",
        "smoothing": 0,
        "decrease": 4,
        "maxRate": 1000,
        "minRate": 1,
        "increase": 100,
    });
    json!({
        "type": "ResponseTimeController",
        "responseTimeController": changed(settings, changes),
    })
}

/// Returns a policy with the classes `gold` and `rest`.
fn with_gold(kinds: &[Kind], strategy: &Value) -> Value {
    let mut policy = policy(100, kinds, strategy);
    let header = json!({"name": "x-class", "value": "gold"});
    policy["spec"]["classes"] =
        json!([{"name": "gold", "matches": [{"headers": [header]}]}, {"name": "rest"}]);
    policy
}

/// Sends a request that takes `service_us` while no other request is in progress, and returns the
/// response.
fn alone(rig: &Rig, class: &str, service_us: &str) -> Result<Answer> {
    let headers = [("x-class", class), ("x-backend-service-us", service_us)];
    let answer = rig.request("/work", &headers)?.answer()?;
    match answer.refusal_reason() {
        None => assert_eq!(answer.status, 200, "{answer:?}"),
        Some(reason) => assert_eq!(reason, "response_time"),
    }
    Ok(answer)
}

/// Sends requests of a class one after the other until a response fulfils the condition.
fn send_until(
    rig: &Rig,
    class: &str,
    service_us: &str,
    what: &str,
    condition: impl Fn(&Answer) -> bool,
) -> Result<Answer> {
    until(what, || {
        let answer = alone(rig, class, service_us).map_err(|e| e.to_string())?;
        if condition(&answer) {
            Ok(answer)
        } else {
            Err(format!("{answer:?}"))
        }
    })
}

fn is_refused(answer: &Answer) -> bool {
    answer.refusal_reason().is_some()
}

#[test]
fn response_time_controller_refuses_after_slow_answers_and_recovers_after_quick_ones() -> Result<()>
{
    refuses_and_recovers(&controller(&json!({})))
}

#[test]
fn response_time_controller_with_its_defaults_refuses_and_recovers() -> Result<()> {
    let defaults = json!({"target": "100ms"});
    refuses_and_recovers(
        &json!({"type": "ResponseTimeController", "responseTimeController": defaults}),
    )
}

fn refuses_and_recovers(strategy: &Value) -> Result<()> {
    let rig = start(&ALONE, policy(100, &ALONE, strategy))?;
    // Before the first measurement, all requests are admitted, more than the maximum rate admits at
    // once.
    for answer in at_once(&rig, "any", QUICK, 30)? {
        assert!(!is_refused(&answer), "{answer:?}");
    }
    // Responses are slow, the queue is empty, and nearly all slots are free. No other strategy
    // refuses requests in this state.
    until("refusals after slow answers", || {
        let answers = at_once(&rig, "any", SLOW, 20).map_err(|e| e.to_string())?;
        match answers.iter().filter(|a| is_refused(a)).count() {
            0 => Err("none".to_owned()),
            _ => Ok(()),
        }
    })?;
    let reason = "type.work.rq_rejected.reason.response_time";
    until("their reason to be counted", || {
        match rig.policy_stat(reason) {
            Ok(1..) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })?;
    until("no refusals after quick answers", || {
        let answers = at_once(&rig, "any", QUICK, 20).map_err(|e| e.to_string())?;
        match answers.iter().filter(|a| is_refused(a)).count() {
            0 => Ok(()),
            refused => Err(format!("{refused} of {}", answers.len())),
        }
    })
}

#[test]
fn response_time_controller_takes_from_lower_classes_first() -> Result<()> {
    let strategy = controller(&json!({
        "classTargets": {"gold": "500ms", "rest": "1000s"},
        "lowerClassPatience": 1_000_000,
    }));
    let rig = start(&ALONE, with_gold(&ALONE, &strategy))?;
    // Class `gold` misses its target, and `rest` is far within its own target.
    until("refusals of the rest", || {
        let gold = at_once(&rig, "gold", SLOW, 10).map_err(|e| e.to_string())?;
        assert!(!gold.iter().any(is_refused), "gold has a class below it");
        let rest = at_once(&rig, "rest", QUICK, 10).map_err(|e| e.to_string())?;
        match rest.iter().filter(|a| is_refused(a)).count() {
            0 => Err("none".to_owned()),
            _ => Ok(()),
        }
    })?;
    // The rate of `rest` can't be reduced further, and `gold` is still not refused.
    for answer in at_once(&rig, "gold", SLOW, 20)? {
        assert!(!is_refused(&answer), "{answer:?}");
    }
    Ok(())
}

#[test]
fn response_time_controller_holds_a_target_of_a_type_and_class() -> Result<()> {
    const KINDS: [Kind; 2] = [
        Kind("/work", 1, &[("p50", 1)]),
        Kind("/bulk", 1, &[("p50", 1)]),
    ];
    let strategy = controller(&json!({"typeTargets": {"bulk": {"rest": "1000s"}}}));
    let rig = start(&KINDS, with_gold(&KINDS, &strategy))?;
    let refused = |path: &str, class: &str, service_us: &str| -> Result<usize, String> {
        let headers = [("x-class", class), ("x-backend-service-us", service_us)];
        let send = |_| rig.request(path, &headers).map_err(|e| e.to_string());
        let sent: Vec<Pending> = (0..20).map(send).collect::<Result<_, _>>()?;
        let answer = |sent: Pending| sent.answer().map_err(|e| e.to_string());
        let answers: Vec<Answer> = sent.into_iter().map(answer).collect::<Result<_, _>>()?;
        Ok(answers.iter().filter(|a| is_refused(a)).count())
    };
    let some = |refused: usize| match refused {
        0 => Err("none".to_owned()),
        _ => Ok(()),
    };
    // The class `rest` is equally slow in both types, and misses the target for all types. Without
    // requests, a controller recovers, so the requests of a type follow each other.
    let mut rounds = 0;
    until("refusals of work", || {
        rounds += 1;
        some(refused("/work", "rest", SLOW)?)
    })?;
    for _ in 0..rounds {
        let of_bulk = refused("/bulk", "rest", SLOW).map_err(Error::msg)?;
        assert_eq!(of_bulk, 0, "in {rounds} rounds");
    }
    // For `gold`, the target for all types applies to `bulk`, so requests of class `rest` are
    // refused first.
    until("refusals of the rest of bulk", || {
        refused("/bulk", "gold", SLOW)?;
        some(refused("/bulk", "rest", QUICK)?)
    })
}

/// Returns the quality that the filter announced to the application, as received by the backend.
fn quality(answer: &Answer) -> Option<f64> {
    answer.header("x-backend-quality")?.parse().ok()
}

#[test]
fn response_time_controller_asks_for_less_quality_before_it_refuses() -> Result<()> {
    let degradation = json!({"minQuality": 0.25, "decrease": 2, "increase": 0.25});
    // The timeout is longer than any service and pause below, because quality rises after a timeout
    // without answers.
    let strategy = controller(&json!({"degradation": degradation, "timeout": "3s"}));
    let rig = start(&ALONE, policy(100, &ALONE, &strategy))?;
    assert_eq!(quality(&alone(&rig, "any", QUICK)?), Some(1.0));
    let mut lowest = Vec::new();
    let mut highest = Vec::new();
    until("the lowest quality and then refusals", || {
        let answers = at_once(&rig, "any", SLOW, 10).map_err(|e| e.to_string())?;
        let told: Vec<f64> = answers.iter().filter_map(quality).collect();
        assert!(
            told.iter().all(|q| [1.0, 0.5, 0.25].contains(q)),
            "{told:?}"
        );
        lowest.extend(told.iter().copied().reduce(f64::min));
        highest.extend(told.iter().copied().reduce(f64::max));
        match answers.iter().filter(|a| is_refused(a)).count() {
            0 => Err(format!("no refusals; {told:?}")),
            _ => Ok(()),
        }
    })?;
    // Quality is halved in each step down to the minimum, and requests are refused only at the
    // minimum. A worker that hasn't read the last step of the other worker sends the quality before
    // it.
    assert_eq!(highest.last(), Some(&0.25), "{highest:?}");
    for rounds in [&lowest, &highest] {
        assert!(rounds.is_sorted_by(|a, b| a >= b), "{rounds:?}");
    }
    let full = send_until(&rig, "any", QUICK, "full quality again", |answer| {
        quality(answer) == Some(1.0)
    })?;
    assert!(!is_refused(&full));
    Ok(())
}

#[test]
fn response_time_controller_without_admission_degrades_and_never_refuses() -> Result<()> {
    let degradation =
        json!({"minQuality": 0.25, "decrease": 2, "increase": 0.25, "admission": false});
    // The timeout is longer than any pause between rounds, because quality rises after a timeout
    // without answers.
    let strategy = controller(&json!({"degradation": degradation, "timeout": "3s"}));
    let rig = start(&ALONE, policy(100, &ALONE, &strategy))?;
    let mut lowest = 0;
    until("several runs at the lowest quality", || {
        let answers = at_once(&rig, "any", SLOW, 10).map_err(|e| e.to_string())?;
        assert!(!answers.iter().any(is_refused), "{answers:?}");
        lowest += usize::from(answers.iter().all(|a| quality(a) == Some(0.25)));
        match lowest {
            3.. => Ok(()),
            _ => Err(format!("{:?}", answers.last().and_then(quality))),
        }
    })
}

#[test]
fn response_time_controller_measures_since_a_request_entered_the_mesh() -> Result<()> {
    let strategy = controller(&json!({}));
    let mut policy = policy(100, &ALONE, &strategy);
    policy["spec"]["workflows"] = json!({
        "identifyBy": [{"type": "Header", "header": {"name": "x-tenant"}}],
        // Slots must not limit concurrency in this test.
        "sharing": {"type": "StaticGuarantees"},
    });
    let rig = start(&ALONE, policy)?;
    let served = |headers: &[(&str, &str)]| -> Result<Vec<Answer>, String> {
        let headers = [&[("x-backend-service-us", QUICK)], headers].concat();
        let send = |_| rig.request("/work", &headers).map_err(|e| e.to_string());
        let sent: Vec<Pending> = (0..20).map(send).collect::<Result<_, _>>()?;
        let answer = |sent: Pending| sent.answer().map_err(|e| e.to_string());
        sent.into_iter().map(answer).collect()
    };
    let gauge = "type.work.controlled_response_time_us";
    until("a response time", || {
        let answers = served(&[])?;
        assert!(!answers.iter().any(is_refused), "{answers:?}");
        match rig.policy_stat(gauge) {
            Ok(1..400_000) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })?;
    // These requests are served fast, but their callers have already waited for 800 ms.
    let aged = [
        ("x-headgate-process", "0000000000000007"),
        ("x-headgate-progress", "elapsed=1, work=1, age=800"),
    ];
    let mut refused = 0;
    // The gauge shows the response time after a tick. It is reset at a tick after a timeout without
    // responses, so requests continue until the test has read the gauge.
    until("refusals of aged requests, and their response time", || {
        refused += served(&aged)?.iter().filter(|a| is_refused(a)).count();
        match (refused, rig.policy_stat(gauge)) {
            (1.., Ok(800_000..)) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
}
