//! Tests of every queue discipline in Envoy with two workers.
//!
//! In each test, the same requests wait on connections of both workers. The test compares the order
//! in which they reach the backend with a model of the discipline. The orders of any two
//! disciplines differ by far more than the tolerated difference, so a test fails if another
//! discipline is in force.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use headgate_tests::backend::{BackendConfig, ServiceType};
use headgate_tests::load::{self, Lateness};
use headgate_tests::policy;
use headgate_tests::rig::{Rig, Waiter, inversions};
use serde_json::{Value, json};

/// The tolerated number of pairs of requests that are served in the reverse order. Slots are left
/// to a worker for some ms, and a worker whose thread doesn't run in this time is passed over once.
const TOLERATED: usize = 6;

/// The service time of the compared requests, if the discipline doesn't charge service times. A
/// slot is offered to a worker again only after this time. So a worker whose thread pauses for a
/// shorter time is passed over only once, rather than by all requests of the other worker.
const SERVED: Duration = Duration::from_millis(30);

/// The tolerated pause of a thread of the backend, half of [`SERVED`]. If a thread of the backend
/// pauses for longer, Envoy's workers may have paused as well and may have been passed over more
/// than once. Then the run is repeated.
const LATE: Duration = Duration::from_millis(15);

/// The least number of pairs in which the orders of any two disciplines differ.
const DISTANCE: usize = 4 * TOLERATED;

/// The service time of a type, and its objectives at p50 and p90.
#[derive(Debug, Clone, Copy)]
struct Kind {
    name: &'static str,
    path: &'static str,
    served: Duration,
    p50: Duration,
    p90: Duration,
}

/// The types of the compared requests. Their objectives are far apart, because the differences
/// between arrival times must not change the order of deadlines.
const KINDS: [Kind; 3] = [
    kind("brief", "/brief", 4, 180, 200),
    kind("medium", "/medium", 30, 100, 400),
    kind("long", "/long", 90, 140, 300),
];

const fn kind(
    name: &'static str,
    path: &'static str,
    served_ms: u64,
    p50_s: u64,
    p90_s: u64,
) -> Kind {
    Kind {
        name,
        path,
        served: Duration::from_millis(served_ms),
        p50: Duration::from_secs(p50_s),
        p90: Duration::from_secs(p90_s),
    }
}

/// The name of a type, a class and a workflow that no compared request has.
const OTHERS: &str = "others";
const OTHERS_PATH: &str = "/others";
const OTHERS_SERVED: Duration = Duration::from_millis(30);

/// A request and the values that it states. Times are in seconds.
#[derive(Debug, Clone, Copy)]
struct Request {
    kind: Kind,
    class: &'static str,
    workflow: &'static str,
    deadline: Option<u64>,
    elapsed: u64,
    total: Option<u64>,
    work: u64,
    total_work: Option<u64>,
}

/// The type, the class, the workflow, the deadline, the elapsed and the total service time, the
/// work so far, and the total work.
type Row = (
    &'static str,
    &'static str,
    &'static str,
    Option<u64>,
    u64,
    Option<u64>,
    u64,
    Option<u64>,
);

/// The requests in the order of their arrival. They were chosen among many random lists, because
/// the orders of the disciplines differ most for them.
#[rustfmt::skip]
const REQUESTS: [Row; 18] = [
    ("long", "rest", "batch", Some(280), 5, Some(90), 14, Some(40)),
    ("long", "gold", "checkout", Some(360), 5, Some(70), 6, Some(75)),
    ("medium", "silver", "checkout", Some(120), 0, None, 15, None),
    ("medium", "silver", "batch", Some(260), 0, Some(110), 7, Some(115)),
    ("medium", "rest", "batch", Some(220), 5, Some(160), 10, Some(105)),
    ("brief", "silver", "batch", Some(180), 5, Some(80), 16, None),
    ("brief", "gold", "search", Some(440), 8, Some(50), 9, Some(110)),
    ("medium", "rest", "checkout", None, 0, Some(180), 5, Some(70)),
    ("long", "gold", "search", None, 0, Some(30), 8, Some(65)),
    ("medium", "rest", "checkout", Some(340), 8, Some(140), 17, Some(85)),
    ("brief", "silver", "search", Some(380), 0, Some(130), 18, Some(55)),
    ("long", "gold", "search", Some(160), 8, Some(100), 13, Some(90)),
    ("long", "gold", "checkout", Some(240), 0, None, 12, Some(45)),
    ("medium", "rest", "batch", Some(420), 5, Some(190), 4, Some(60)),
    ("brief", "rest", "batch", Some(100), 0, Some(150), 2, Some(50)),
    ("brief", "silver", "checkout", Some(320), 0, Some(40), 3, Some(35)),
    ("long", "silver", "search", Some(140), 5, Some(20), 11, None),
    ("brief", "gold", "search", None, 0, None, 1, Some(95)),
];

/// The disciplines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Discipline {
    Fifo,
    Edf,
    Lstf,
    Sjf,
    Srtf,
    Lasf,
    Slack,
    DrrByType,
    DrrByClass,
    DrrByWorkflow,
    WfqByClass,
    Priority,
}

use Discipline::{
    DrrByClass, DrrByType, DrrByWorkflow, Edf, Fifo, Lasf, Lstf, Priority, Sjf, Slack, Srtf,
    WfqByClass,
};

const DISCIPLINES: [Discipline; 12] = [
    Fifo,
    Edf,
    Lstf,
    Sjf,
    Srtf,
    Lasf,
    Slack,
    DrrByType,
    DrrByClass,
    DrrByWorkflow,
    WfqByClass,
    Priority,
];

impl Discipline {
    /// Returns `spec.queue` of a policy.
    fn queue(self) -> Value {
        let name = match self {
            Fifo => "FIFO",
            Edf => "EDF",
            Lstf => "LSTF",
            Sjf => "SJF",
            Srtf => "SRTF",
            Lasf => "LASF",
            Slack => "Slack",
            DrrByType | DrrByClass | DrrByWorkflow => "DRR",
            WfqByClass => "WFQ",
            Priority => "Priority",
        };
        let mut queue = json!({"discipline": name, "timeout": "600s"});
        match self.turns() {
            Some((by, Some(quantum), weights)) => {
                let quantum = policy::duration(quantum);
                queue["drr"] = json!({"by": by, "quantum": quantum, "weights": weights});
            }
            Some((by, None, weights)) => queue["wfq"] = json!({"by": by, "weights": weights}),
            None => {}
        }
        queue
    }

    /// Returns the key of the flows of a fair queue, the quantum if the queue has rounds, and the
    /// weights other than 1.
    fn turns(self) -> Option<(&'static str, Option<Duration>, BTreeMap<&'static str, f64>)> {
        let (by, quantum_ms, weights) = match self {
            DrrByType => ("Type", Some(60), [("long", 3.0)].into()),
            // Weights in the order of the priorities would give an order close to that of Priority.
            DrrByClass => ("Class", Some(40), [("gold", 2.0), ("silver", 3.0)].into()),
            DrrByWorkflow => ("Workflow", Some(40), [("checkout", 4.0)].into()),
            WfqByClass => {
                let weights = [("gold", 8.0), ("silver", 0.25), ("rest", 2.0)];
                ("Class", None, weights.into())
            }
            _ => return None,
        };
        Some((by, quantum_ms.map(Duration::from_millis), weights))
    }

    /// Returns the order in which the discipline serves `requests`. `costs` are the mean service
    /// times of their types.
    fn order(self, requests: &[Request], costs: &[Duration]) -> Vec<usize> {
        let mut finish: BTreeMap<&str, f64> = BTreeMap::new();
        let ranks: Vec<f64> = requests
            .iter()
            .zip(costs)
            .map(|(request, cost)| self.rank(request, cost.as_secs_f64(), &mut finish))
            .collect();
        let mut order: Vec<usize> = (0..requests.len()).collect();
        // The sort is stable: requests of equal rank stay in the order of their arrival.
        order.sort_by(|&a, &b| ranks[a].total_cmp(&ranks[b]));
        order
    }

    /// Returns the rank of a request by the definition of the discipline. The lowest rank is served
    /// first. All requests count as arriving at the same time, because other times are longer than
    /// the time between the first and the last arrival.
    fn rank(self, request: &Request, mean_s: f64, finish: &mut BTreeMap<&'static str, f64>) -> f64 {
        let seconds = |span: u64| span as f64;
        let deadline = request
            .deadline
            .map_or(request.kind.p90.as_secs_f64(), seconds);
        let remaining = request
            .total
            .map_or(mean_s, |total| seconds(total - request.elapsed));
        match self {
            Fifo => 0.0,
            Edf => deadline,
            Lstf => deadline - remaining,
            Sjf => request
                .total_work
                .map_or(seconds(request.work) + mean_s, seconds),
            Srtf => remaining,
            Lasf => seconds(request.work),
            Priority => match request.class {
                "gold" => 0.0,
                "silver" => 1.0,
                _ => 2.0,
            },
            // All processing times are far shorter than the differences between objectives.
            Slack => request.kind.p50.min(request.kind.p90).as_secs_f64(),
            DrrByType | DrrByClass | DrrByWorkflow | WfqByClass => {
                let flow = match self {
                    DrrByType => request.kind.name,
                    DrrByClass | WfqByClass => request.class,
                    _ => request.workflow,
                };
                let (_, quantum, weights) = self.turns().unwrap_or_default();
                let weight = weights.get(flow).copied().unwrap_or(1.0);
                let finish = finish.entry(flow).or_default();
                match quantum {
                    Some(quantum) => {
                        *finish += mean_s / (quantum.as_secs_f64() * weight);
                        finish.ceil()
                    }
                    None => {
                        *finish += mean_s / weight;
                        *finish
                    }
                }
            }
        }
    }
}

fn requests() -> Vec<Request> {
    let request = |&(name, class, workflow, deadline, elapsed, total, work, total_work): &Row| {
        let kind = KINDS.iter().find(|kind| kind.name == name);
        Request {
            kind: *kind.unwrap_or(&KINDS[0]),
            class,
            workflow,
            deadline,
            elapsed,
            total,
            work,
            total_work,
        }
    };
    REQUESTS.iter().map(request).collect()
}

impl Request {
    fn waiter(&self, discipline: Discipline) -> Waiter {
        let ms = |seconds: u64| seconds * 1_000;
        let mut progress = format!("elapsed={}, work={}", ms(self.elapsed), ms(self.work));
        if let Some(total) = self.total {
            progress += &format!(", total={}", ms(total));
        }
        if let Some(total_work) = self.total_work {
            progress += &format!(", total-work={}", ms(total_work));
        }
        let mut headers = vec![
            ("x-class", self.class.to_owned()),
            ("x-headgate-workflow", self.workflow.to_owned()),
            ("x-headgate-progress", progress),
        ];
        if discipline.turns().is_none() {
            // The test compares the starts of service, so all requests take the same time. Fair
            // queues charge the service time, so there it stays the time of the type.
            headers.push(("x-backend-service-us", SERVED.as_micros().to_string()));
        }
        if let Some(deadline) = self.deadline {
            headers.push(("x-headgate-timeout-ms", ms(deadline).to_string()));
        }
        Waiter {
            path: self.kind.path,
            headers,
        }
    }
}

/// Returns a policy with one slot, and objectives that no request misses.
fn policy(discipline: Discipline) -> Value {
    let slo =
        |kind: &Kind| json!({"p50": policy::duration(kind.p50), "p90": policy::duration(kind.p90)});
    let mut types: Vec<Value> = KINDS
        .iter()
        .map(|kind| {
            let path = json!({"type": "PathPrefix", "value": kind.path});
            json!({"name": kind.name, "matches": [{"path": path}], "slo": slo(kind)})
        })
        .collect();
    let others = json!({"type": "PathPrefix", "value": OTHERS_PATH});
    types.push(json!({"name": OTHERS, "matches": [{"path": others}], "slo": slo(&KINDS[0])}));
    types.push(json!({"name": "default", "slo": slo(&KINDS[0])}));
    let mut policy = policy::policy(1, &types);
    policy["spec"]["queue"] = discipline.queue();
    policy["spec"]["strategy"] =
        json!({"type": "Bouncer", "bouncer": {"minSamples": 4, "shedByValue": false}});
    let class = |name: &str| {
        let header = json!({"name": "x-class", "value": name});
        json!({"name": name, "matches": [{"headers": [header]}]})
    };
    // The requests that hold the slot meanwhile have a class of their own.
    policy["spec"]["classes"] =
        json!([class("gold"), class("silver"), class("rest"), {"name": OTHERS}]);
    policy
}

/// Serves enough requests of other flows that all flows of the test begin a new round. The usage of
/// a flow counts only within a round.
fn end_rounds(rig: &Rig) -> Result<()> {
    let other = Waiter::at(OTHERS_PATH)
        .header("x-class", OTHERS)
        .header("x-headgate-workflow", OTHERS);
    rig.line_up(1, &vec![other; 12])?.release(rig)?;
    Ok(())
}

/// The result of serving the requests.
struct Served {
    /// The requests, in the order in which they were served.
    order: Vec<usize>,
    /// The cost of each request.
    costs: Vec<Duration>,
}

/// Serves all requests, and returns their order and their costs.
fn serve(discipline: Discipline) -> Result<(Served, Lateness)> {
    let services = KINDS
        .iter()
        .map(|kind| ServiceType::constant(kind.path, kind.served))
        .chain([
            ServiceType::constant(OTHERS_PATH, OTHERS_SERVED),
            ServiceType::constant("/held", Duration::ZERO),
        ]);
    let backend = BackendConfig::new(100, services.collect());
    let rig = Rig::builder(backend, policy(discipline))
        .concurrency(2)
        .balanced()
        .start()?;
    rig.learn(1, &KINDS.map(|kind| kind.path), 5)?;
    end_rounds(&rig)?;

    let waiters: Vec<Waiter> = requests()
        .iter()
        .map(|request| request.waiter(discipline))
        .collect();
    let lineup = rig.line_up(1, &waiters)?;
    let costs: Vec<Duration> = lineup
        .costs_us()
        .iter()
        .map(|&us| Duration::from_micros(us))
        .collect();
    let order = lineup.release(&rig)?;
    let lateness = Lateness::of_backend(&rig.backend.stats());
    rig.wait_until_idle()?;
    Ok((Served { order, costs }, lateness))
}

/// Checks that requests are served in the order of `discipline`, and that this order differs from
/// the orders of all other disciplines.
fn check(discipline: Discipline) -> Result<()> {
    let Served {
        order: served,
        costs,
    } = load::undisturbed(LATE, |_| serve(discipline))?;
    let requests = requests();
    assert_eq!(served.len(), requests.len());

    let expected = discipline.order(&requests, &costs);
    let off = inversions(&served, &expected);
    println!("{discipline:?}: {off} pairs out of order; {served:?}");
    for other in DISCIPLINES.into_iter().filter(|d| *d != discipline) {
        let order = other.order(&requests, &costs);
        let distance = inversions(&order, &expected);
        assert!(
            distance >= DISTANCE,
            "{other:?} is told from {discipline:?} by {distance} pairs only"
        );
    }
    assert!(
        off <= TOLERATED,
        "{off} pairs out of order, expected {expected:?}; types cost {costs:?}"
    );
    Ok(())
}

#[test]
fn fifo_serves_in_order_of_arrival() -> Result<()> {
    check(Fifo)
}

#[test]
fn edf_serves_the_earliest_deadline_first() -> Result<()> {
    check(Edf)
}

#[test]
fn lstf_serves_the_least_slack_to_the_deadline_first() -> Result<()> {
    check(Lstf)
}

#[test]
fn sjf_serves_the_least_total_work_first() -> Result<()> {
    check(Sjf)
}

#[test]
fn srtf_serves_the_shortest_remaining_time_first() -> Result<()> {
    check(Srtf)
}

#[test]
fn lasf_serves_the_least_work_so_far_first() -> Result<()> {
    check(Lasf)
}

#[test]
fn slack_serves_the_latest_start_by_objectives_first() -> Result<()> {
    check(Slack)
}

#[test]
fn drr_gives_turns_to_types() -> Result<()> {
    check(DrrByType)
}

#[test]
fn drr_gives_turns_to_classes() -> Result<()> {
    check(DrrByClass)
}

#[test]
fn drr_gives_turns_to_workflows() -> Result<()> {
    check(DrrByWorkflow)
}

#[test]
fn wfq_serves_classes_by_their_finish_tags() -> Result<()> {
    check(WfqByClass)
}

#[test]
fn priority_serves_higher_classes_first() -> Result<()> {
    check(Priority)
}
