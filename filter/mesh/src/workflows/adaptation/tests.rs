//! Tests of complete processes in memory: Figure 3 of the paper in lockstep, the hand-over between
//! workers, and invariants for any measurements.

use headgate_core::config::{ResourceConfig, ResourceReport, WorkflowConfig, WorkflowSource};
use proptest::prelude::*;

use super::*;
use crate::shared;
use crate::workflows::measurements::CalleeKey;

mod figure_3;

impl shared::Record for State {
    const SCHEMA: u32 = 0;
}

impl State {
    /// Returns the rate of `workflow` that `upstream` may send, requests/s, or `None` for no limit.
    fn announced(&self, workflow: WorkflowId, upstream: ProcessId) -> Option<f64> {
        let mut known = self.upstream.iter();
        let own = known.find(|(w, process, _)| (*w, *process) == (workflow, upstream));
        let newcomer = || self.announced_to_newcomers(workflow);
        let rate = own.map_or_else(newcomer, |(_, _, rate)| Some(rate));
        rate.filter(|rate| rate.is_finite())
    }

    fn completion(&self, workflow: WorkflowId) -> Option<Duration> {
        seconds(self.seen(workflow)?.estimates.completion()?)
    }
}

/// A process with one worker.
struct Process {
    config: WorkflowsConfig,
    adaptation: Adaptation,
    state: State,
}

impl Process {
    fn new(config: &WorkflowsConfig) -> Self {
        Self {
            config: config.clone(),
            adaptation: Adaptation::new(config, true),
            state: State::default(),
        }
    }

    fn reconfigure(&mut self, config: &WorkflowsConfig) {
        let state = std::mem::take(&mut self.state);
        *self = Self {
            state,
            ..Self::new(config)
        };
    }

    fn run(&mut self, interval: &Interval<'_>) -> u64 {
        self.adaptation.run(&self.config, &mut self.state, interval)
    }
}

impl std::ops::Deref for Process {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state
    }
}

impl std::ops::DerefMut for Process {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state
    }
}

fn config(quantile: f64, sharing: SharingConfig) -> WorkflowsConfig {
    WorkflowsConfig {
        identify: vec![WorkflowSource::Type],
        quantile,
        service_quantiles: Default::default(),
        interval_us: 100_000,
        rate_ttl_us: 1_000_000,
        sharing,
        max_workflows: 100,
        max_queue_length: 100,
        workflows: Default::default(),
        edge: false,
        peers: Vec::new(),
    }
}

fn bottleneck(max_utilization: f64) -> SharingConfig {
    SharingConfig::BottleneckFairness {
        probe: 10.0,
        max_utilization,
    }
}

const INTERVAL: Duration = Duration::from_millis(100);

fn at(interval: u64) -> Instant {
    Instant::from_nanos(7_000_000 + interval * 100_000_000)
}

/// Runs an interval with one workflow of `rps` from `upstream`. Its requests take 2 ms of one slot,
/// and call `process` of service 1 twice.
fn step(
    adaptation: &mut Process,
    now: Instant,
    workflow: u16,
    rps: u64,
    heard: Option<f64>,
) -> u64 {
    let workflow = WorkflowId(workflow);
    let (service, process) = (ServiceId(1), ProcessId(77));
    let n = rps / 10;
    let spent = Duration::from_millis(2) * n as u32;
    let mut measured = Measurements {
        busy: spent.min(INTERVAL),
        ..Measurements::default()
    };
    *measured.workflow(workflow) = Measured {
        offered: n,
        completed: n,
        service: spent,
        answered: n,
        completion: spent * 5,
        ..Measured::default()
    };
    measured.called((workflow, service, process), 2 * n);
    if let Some(rate) = heard {
        measured.heard((workflow, service, process), rate, now);
    }
    measured.arrived((workflow, ProcessId(5)), n);
    run(adaptation, now, &measured)
}

/// Runs an interval of one slot. Returns the number of expired rates.
fn run(adaptation: &mut Process, now: Instant, measured: &Measurements) -> u64 {
    adaptation.run(&Interval {
        now,
        elapsed: INTERVAL,
        slots: 1.0,
        measured,
    })
}

#[test]
fn adopts_what_is_announced_downstream_until_it_runs_out() {
    let mut adaptation = Process::new(&config(0.5, bottleneck(0.9)));
    let w = WorkflowId(1);
    adaptation.assign(w, "checkout");
    assert_eq!(adaptation.rate(w), f64::INFINITY);
    assert_eq!(adaptation.announced(w, ProcessId(5)), None);
    assert_eq!(adaptation.completion(w), None);
    for n in 0..20 {
        step(&mut adaptation, at(n), 1, 100, Some(60.0));
    }
    assert!((adaptation.rate(w) - 30.0).abs() < 1e-6);
    assert_eq!(adaptation.completion(w), Some(Duration::from_millis(10)));
    let announced = adaptation.announced(w, ProcessId(5)).unwrap();
    assert!((announced - 30.0).abs() < 1e-6);
    assert_eq!(adaptation.announcements().count(), 1);
    let newcomer = adaptation.announced_to_newcomers(w).unwrap();
    assert!((newcomer - 15.0).abs() < 1e-6);
    assert_eq!(adaptation.announced(w, ProcessId(6)), Some(newcomer));
    let seen: Vec<Snapshot> = adaptation.workflows().collect();
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0].bottleneck, Some(Bottleneck::Service(ServiceId(1))));
    assert!((seen[0].local_rate - 450.0).abs() < 1e-6);
    assert!((seen[0].demand - 100.0).abs() < 1e-6);
    // Announcements have stopped, so only the local limit remains.
    let mut expired = 0;
    for n in 20..31 {
        expired += step(&mut adaptation, at(n), 1, 100, None);
    }
    assert!((adaptation.rate(w) - 450.0).abs() < 1e-6);
    assert_eq!(expired, 1);
    let seen = adaptation.workflows().next().unwrap();
    assert_eq!(seen.bottleneck, Some(Bottleneck::Local));
}

#[test]
fn settings_follow_the_workflows_names() {
    let mut settings = config(1.0, bottleneck(1.0));
    let named = WorkflowConfig {
        guarantee: Some(123.0),
        quantile: Some(0.0),
        ..WorkflowConfig::default()
    };
    settings.workflows.insert("named".to_owned(), named);
    settings
        .service_quantiles
        .insert("extent-node".to_owned(), 0.5);
    let w = WorkflowId(1);
    let run = |adaptation: &mut Process| {
        for n in 0..10 {
            let mut measured = Measurements {
                busy: INTERVAL,
                ..Measurements::default()
            };
            *measured.workflow(w) = Measured {
                offered: 10,
                completed: 10,
                service: INTERVAL,
                ..Measured::default()
            };
            for (process, rate) in [(1, 1.0), (2, 3.0)] {
                let callee = (w, ServiceId(1), ProcessId(process));
                measured.called(callee, 10);
                measured.heard(callee, rate, at(n));
            }
            run(adaptation, at(n), &measured);
        }
        adaptation.workflows().next().unwrap()
    };
    let mut adaptation = Process::new(&settings);
    adaptation.assign(w, "other");
    assert!((run(&mut adaptation).rate - 3.0).abs() < 1e-9);
    adaptation.assign(w, "named");
    assert_eq!(adaptation.workflows().count(), 0, "another one's");
    let seen = run(&mut adaptation);
    assert!((seen.rate - 1.0).abs() < 1e-9);
    assert!((seen.local_rate - 123.0).abs() < 1e-9);
    // The service's quantile has precedence over the workflow's.
    adaptation.assign_service(ServiceId(1), "extent-node");
    assert!((run(&mut adaptation).rate - 2.0).abs() < 1e-9);
    adaptation.assign(w, "named");
    adaptation.assign_service(ServiceId(1), "extent-node");
    assert!((run(&mut adaptation).rate - 2.0).abs() < 1e-9);
    // The quantile of the pair of workflow and service has precedence over both, and applies to no
    // other workflow.
    let named = settings.workflows.get_mut("named").unwrap();
    named
        .service_quantiles
        .insert("extent-node".to_owned(), 0.25);
    adaptation.reconfigure(&settings);
    assert!((run(&mut adaptation).rate - 1.5).abs() < 1e-9);
    adaptation.assign(w, "other");
    assert!((run(&mut adaptation).rate - 2.0).abs() < 1e-9);
    adaptation.assign(w, "named");
    settings.workflows.clear();
    settings.service_quantiles.clear();
    adaptation.reconfigure(&settings);
    let seen = run(&mut adaptation);
    assert!((seen.rate - 3.0).abs() < 1e-9);
    assert!((seen.local_rate - 100.0).abs() < 1e-6);
    settings.sharing = SharingConfig::StaticGuarantees;
    adaptation.reconfigure(&settings);
    assert!((run(&mut adaptation).local_rate - 100.0).abs() < 1e-6);
    adaptation.forget(w);
    assert_eq!(adaptation.workflows().count(), 0);
    assert_eq!(adaptation.rate(w), f64::INFINITY);
}

#[test]
fn a_new_workflow_is_taken_for_one_like_the_others() {
    let mut adaptation = Process::new(&config(0.5, bottleneck(1.0)));
    let mut interval = |n: u64, workflows: &[(u16, u64, u64)]| {
        let mut measured = Measurements {
            busy: INTERVAL,
            ..Measurements::default()
        };
        for &(workflow, offered, completed) in workflows {
            *measured.workflow(WorkflowId(workflow)) = Measured {
                offered,
                completed,
                service: Duration::from_millis(2) * completed as u32,
                ..Measured::default()
            };
        }
        run(&mut adaptation, at(n), &measured);
        [1, 2].map(|workflow| adaptation.rate(WorkflowId(workflow)))
    };
    let [rate, _] = interval(0, &[(1, 100, 0)]);
    assert_eq!(rate, f64::INFINITY, "nothing is known");
    for n in 1..49 {
        interval(n, &[(1, 100, 50)]);
    }
    let [rate, _] = interval(49, &[(1, 100, 50)]);
    assert!((rate - 500.0).abs() < 1.0);
    let [_, rate] = interval(50, &[(1, 100, 50), (2, 5, 0)]);
    assert!((rate - 250.0).abs() < 1.0);
}

fn workflows_of(adaptation: &Process) -> Vec<Snapshot> {
    adaptation.workflows().collect()
}

#[test]
fn another_worker_goes_on_where_one_stopped() {
    let config = config(0.5, bottleneck(0.9));
    let mut first = Process::new(&config);
    let assign = |adaptation: &mut Process| {
        adaptation.assign(WorkflowId(1), "one");
        adaptation.assign(WorkflowId(2), "two");
        adaptation.assign_service(ServiceId(1), "storage");
    };
    assign(&mut first);
    for n in 0..20 {
        step(
            &mut first,
            at(n),
            1 + (n % 2) as u16,
            200,
            Some(60.0 + n as f64),
        );
    }
    let mut bytes = Vec::new();
    shared::encode(&first.state, &mut bytes);
    let state: State = shared::decode(&bytes).unwrap();
    assert!(state.is_valid());
    let going_on = |state: &State| Process {
        state: state.clone(),
        ..Process::new(&config)
    };
    let mut second = going_on(&state);
    assign(&mut second);
    for n in 20..40 {
        step(&mut first, at(n), 1, 200, None);
        step(&mut second, at(n), 1, 200, None);
        let (one, two) = (workflows_of(&first), workflows_of(&second));
        assert_eq!(one.len(), two.len());
        for (one, two) in one.iter().zip(&two) {
            assert_eq!(
                (one.workflow, one.bottleneck),
                (two.workflow, two.bottleneck)
            );
            assert!(
                (one.rate - two.rate).abs() < 1e-3 * one.rate,
                "{one:?} {two:?}"
            );
            assert!((one.demand - two.demand).abs() < 1e-3 * (1.0 + one.demand));
        }
    }
    // An id that got another name in the meantime starts anew.
    let mut third = going_on(&state);
    third.assign(WorkflowId(1), "one");
    third.assign(WorkflowId(2), "three");
    let seen: Vec<WorkflowId> = third.workflows().map(|w| w.workflow).collect();
    assert_eq!(seen, [WorkflowId(1)]);
}

#[test]
fn an_invalid_state_is_refused() {
    let mut adaptation = Process::new(&config(0.5, bottleneck(0.9)));
    adaptation.assign_service(ServiceId(1), "storage");
    for n in 0..5 {
        step(&mut adaptation, at(n), 1 + n as u16, 100, Some(60.0));
    }
    let mut bytes = Vec::new();
    shared::encode(&adaptation.state, &mut bytes);
    let read = |bytes: &[u8]| shared::decode::<State>(bytes);
    assert!(read(&bytes).is_some_and(|state| state.is_valid()));
    for length in 0..bytes.len() {
        assert_eq!(read(&bytes[..length]), None, "{length}");
    }
    bytes.push(0);
    assert_eq!(read(&bytes), None);
    // States with a rate that is no rate, and with pairs out of order, are invalid.
    for rate in [-1.0, f64::NAN, f64::INFINITY] {
        let mut other = adaptation.state.clone();
        other.workflows[1].memory.rate = Some(rate);
        assert!(!other.is_valid());
    }
    let mut other = adaptation.state.clone();
    other.downstream.entries.reverse();
    assert!(!other.is_valid());
}

fn anything() -> impl Strategy<Value = f64> {
    let odd = vec![-1.0, f64::NAN, f64::INFINITY, 1e300, 0.0];
    prop_oneof![5 => 0.0..1e3_f64, 1 => prop::sample::select(odd)]
}

prop_compose! {
    fn measured()(
        workflow in prop_oneof![9 => 0..4_u16, 1 => any::<u16>()],
        counts in [0..500_u64, 0..500_u64, 0..500_u64, 0..500_u64, 0..500_u64],
        millis in [0..10_000_u64, 0..10_000_u64, 0..10_000_u64, 0..10_000_u64],
        resource in anything(),
    ) -> (WorkflowId, Measured) {
        (
            WorkflowId(workflow),
            Measured {
                offered: counts[0],
                completed: counts[1],
                service: Duration::from_millis(millis[0]),
                reported: counts[2],
                resource,
                answered: counts[3],
                completion: Duration::from_millis(millis[1]),
                entered: counts[4],
                elapsed: Duration::from_millis(millis[2]),
                work: Duration::from_millis(millis[3]),
            },
        )
    }
}

prop_compose! {
    /// A called process, the number of calls, the rate that the process announced, and the time
    /// since then.
    fn call()(
        workflow in 0..4_u16,
        service in 0..3_u16,
        process in 0..4_u64,
        count in 0..500_u64,
        rate in anything(),
        late in 0..2_000_u64,
    ) -> (CalleeKey, u64, f64, u64) {
        ((WorkflowId(workflow), ServiceId(service), ProcessId(process)), count, rate, late)
    }
}

type Round = (
    Vec<(WorkflowId, Measured)>,
    Vec<(CalleeKey, u64, f64, u64)>,
    Vec<(u16, u64, u64)>,
    (f64, u64),
    u64,
);

fn round() -> impl Strategy<Value = Round> {
    (
        prop::collection::vec(measured(), 0..6),
        prop::collection::vec(call(), 0..8),
        prop::collection::vec((0..4_u16, 0..5_u64, 0..300_u64), 0..8),
        (anything(), 0..5_000_u64),
        0..5_000_u64,
    )
}

fn run_round(adaptation: &mut Process, now: Instant, round: &Round) {
    let (workflows, calls, upstream, (slots, busy), elapsed) = round;
    let mut measured = Measurements {
        busy: Duration::from_millis(*busy),
        ..Measurements::default()
    };
    for (workflow, own) in workflows {
        *measured.workflow(*workflow) = *own;
    }
    for &(callee, count, rate, late) in calls {
        measured.called(callee, count);
        let at = now + Duration::from_millis(500) - Duration::from_millis(late);
        measured.heard(callee, rate, at);
    }
    for &(workflow, process, offered) in upstream {
        measured.arrived((WorkflowId(workflow), ProcessId(process)), offered);
    }
    adaptation.run(&Interval {
        now,
        elapsed: Duration::from_millis(*elapsed),
        slots: *slots,
        measured: &measured,
    });
}

fn policies() -> [SharingConfig; 3] {
    [
        SharingConfig::StaticGuarantees,
        bottleneck(0.9),
        SharingConfig::DominantResource {
            probe: 10.0,
            max_utilization: 0.9,
            resource: ResourceConfig {
                capacity: 100.0,
                report: ResourceReport::Orca {
                    metric: "io".to_owned(),
                },
            },
        },
    ]
}

proptest! {
    #[test]
    fn rates_are_valid_for_any_measurements(
        rounds in prop::collection::vec(round(), 1..20),
        q in 0.0..=1.0_f64,
    ) {
        for sharing in policies() {
            let mut config = config(q, sharing);
            let guaranteed = WorkflowConfig { guarantee: Some(42.0), ..WorkflowConfig::default() };
            config.workflows.insert("guaranteed".to_owned(), guaranteed);
            let mut adaptation = Process::new(&config);
            adaptation.assign(WorkflowId(1), "guaranteed");
            let mut now = at(0);
            for round in &rounds {
                now = now + Duration::from_millis(round.4);
                run_round(&mut adaptation, now, round);
                for seen in adaptation.workflows() {
                    prop_assert!(seen.rate >= 0.0 && seen.rate <= seen.local_rate, "{:?}", seen);
                    prop_assert!(seen.demand >= 0.0 && seen.demand.is_finite());
                    prop_assert_eq!(seen.bottleneck.is_some(), seen.rate.is_finite());
                    if seen.workflow == WorkflowId(1) {
                        prop_assert!(seen.local_rate >= 42.0, "{:?}", seen);
                    }
                    let announced = adaptation.announcements().filter(|a| a.0 == seen.workflow);
                    let (count, sum) =
                        announced.fold((0, 0.0), |(count, sum), a| (count + 1, sum + a.2));
                    prop_assert!(
                        count == 0 || (sum - seen.rate).abs() <= 1e-6 * seen.rate,
                        "{} of {:?}",
                        sum,
                        seen
                    );
                }
                for (_, _, rate) in adaptation.announcements() {
                    prop_assert!(rate >= 0.0 && rate.is_finite());
                }
            }
            let (mut bytes, mut again) = (Vec::new(), Vec::new());
            shared::encode(&adaptation.state, &mut bytes);
            let read: State = shared::decode(&bytes).unwrap();
            prop_assert!(read.is_valid());
            shared::encode(&read, &mut again);
            prop_assert_eq!(bytes, again);
        }
    }

    /// Rates don't decrease when q increases (§4.1.3).
    #[test]
    fn rates_never_fall_as_q_rises(
        rounds in prop::collection::vec(round(), 1..10),
        qs in [0.0..=1.0_f64, 0.0..=1.0_f64],
    ) {
        let run = |q: f64| {
            // The sharing policy has no memory, so the runs differ only in q.
            let mut adaptation = Process::new(&config(q, SharingConfig::StaticGuarantees));
            let mut now = at(0);
            for round in &rounds {
                now = now + Duration::from_millis(round.4);
                run_round(&mut adaptation, now, round);
            }
            adaptation.workflows().map(|w| w.rate).collect::<Vec<_>>()
        };
        let (low, high) = (run(qs[0].min(qs[1])), run(qs[0].max(qs[1])));
        for (low, high) in low.iter().zip(&high) {
            prop_assert!(low <= high);
        }
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let bytes = [&shared::header(0)[..], &bytes].concat();
        if let Some(read) = shared::decode(&bytes).filter(State::is_valid) {
            let mut adaptation = Process::new(&config(0.5, bottleneck(0.9)));
            adaptation.state = read;
            step(&mut adaptation, at(1), 1, 100, None);
        }
    }

    /// The bytes of a valid state, with one byte changed, are read or refused. If they are read,
    /// rates stay valid.
    #[test]
    fn damaged_bytes_are_read_or_refused(
        flip in any::<prop::sample::Index>(),
        with in any::<u8>(),
    ) {
        let config = config(0.5, bottleneck(0.9));
        let mut adaptation = Process::new(&config);
        for n in 0..5 {
            step(&mut adaptation, at(n), 1 + (n % 2) as u16, 100, Some(60.0));
        }
        let mut bytes = Vec::new();
        shared::encode(&adaptation.state, &mut bytes);
        let flip = flip.index(bytes.len());
        bytes[flip] ^= with;
        if let Some(read) = shared::decode(&bytes).filter(State::is_valid) {
            adaptation.state = read;
            step(&mut adaptation, at(6), 1, 100, None);
            for seen in adaptation.workflows() {
                prop_assert!(seen.rate >= 0.0);
            }
        }
    }
}
