//! Checks that a run of Algorithm 1 doesn't allocate once all processes have been seen, for any
//! input, and that its state has a bounded size.
//!
//! There is only one test, because the counter is global.

mod counting;

use std::sync::atomic::Ordering;
use std::time::Duration;

use counting::{ALLOCATIONS, IN_USE};

use headgate_core::config::{
    ResourceConfig, ResourceReport, SharingConfig, WorkflowSource, WorkflowsConfig,
};
use headgate_mesh::workflows::adaptation::{Adaptation, Interval, State};
use headgate_mesh::workflows::measurements::{Measured, Measurements};
use headgate_mesh::workflows::{ProcessId, ServiceId, WorkflowId};
use headgate_strategies::time::Instant;

/// The maximum memory of an adaptation with the maximum numbers of workflows and processes, bytes.
const MOST_BYTES: u64 = 4 << 20;
const WORKFLOWS: u16 = 1001;

fn config(sharing: SharingConfig) -> WorkflowsConfig {
    WorkflowsConfig {
        identify: vec![WorkflowSource::Type],
        quantile: 0.5,
        service_quantiles: [("storage".to_owned(), 0.25)].into(),
        interval_us: 100_000,
        rate_ttl_us: 1_000_000,
        sharing,
        max_workflows: WORKFLOWS - 1,
        max_queue_length: 100,
        workflows: Default::default(),
        edge: false,
        peers: Vec::new(),
    }
}

/// Replaces `measured` with the measurements of all workflows in the interval `n`. The ids of
/// processes are new in each generation of ten seconds. An interval has nearly as many pairs as a
/// worker counts, and all generations together have more than a process keeps.
fn fill(measured: &mut Measurements, n: u64, now: Instant) {
    measured.clear();
    measured.busy = Duration::from_millis(70);
    let generation = n / 100;
    for id in 0..WORKFLOWS {
        let workflow = WorkflowId(id);
        let offered = (n + u64::from(id)) % 7;
        *measured.workflow(workflow) = Measured {
            offered,
            completed: offered,
            service: Duration::from_micros(offered * (100 + u64::from(id))),
            reported: offered,
            resource: offered as f64 * f64::from(id % 5),
            answered: offered,
            completion: Duration::from_micros(offered * 1_000),
            ..Measured::default()
        };
        for number in 0..4 {
            let process = ProcessId(1 + number + generation % 4 * (number % 2) * 1_000);
            let service = ServiceId(u16::from(number > 2));
            let callee = (workflow, service, process);
            measured.called(callee, offered);
            measured.heard(callee, (n * 37 % 100 + number) as f64, now);
            measured.arrived((workflow, process), offered);
        }
    }
}

fn allocations() -> u64 {
    ALLOCATIONS.load(Ordering::Relaxed)
}

#[test]
fn running_allocates_nothing_and_memory_is_bounded() {
    let mut measured = Measurements::default();
    fill(&mut measured, 0, Instant::default());
    let resource = ResourceConfig {
        capacity: 1e4,
        report: ResourceReport::Orca {
            metric: "io".to_owned(),
        },
    };
    for sharing in [
        SharingConfig::StaticGuarantees,
        SharingConfig::BottleneckFairness {
            probe: 10.0,
            max_utilization: 0.9,
        },
        SharingConfig::DominantResource {
            probe: 10.0,
            max_utilization: 0.9,
            resource,
        },
    ] {
        let name = format!("{sharing:?}");
        let config = config(sharing);
        let before = IN_USE.load(Ordering::Relaxed);
        let mut adaptation = Adaptation::new(&config, true);
        let mut state = State::default();
        let mut counted = 0;
        let mut spent = Vec::with_capacity(1_000);
        for n in 0..1_000 {
            let now = Instant::from_nanos(n * 100_000_000);
            fill(&mut measured, n, now);
            let interval = Interval {
                now,
                elapsed: Duration::from_millis(100),
                slots: 8.0,
                measured: &measured,
            };
            let (so_far, begun) = (allocations(), std::time::Instant::now());
            adaptation.run(&config, &mut state, &interval);
            // From here on, all generations of processes have occurred once.
            if n >= 400 {
                counted += allocations() - so_far;
                spent.push(begun.elapsed());
            }
            let so_far = allocations();
            for (_, _, rate) in state.announcements() {
                std::hint::black_box(rate);
            }
            assert_eq!(allocations(), so_far);
        }
        assert_eq!(counted, 0, "{name}");
        let used = IN_USE.load(Ordering::Relaxed) - before;
        assert!(used <= MOST_BYTES, "{name}: {used} bytes");
        spent.sort_unstable();
        println!(
            "{name}: {WORKFLOWS} workflows, {used} bytes, {:?} a run",
            spent[spent.len() / 2],
        );
    }
}
