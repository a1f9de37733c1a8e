use headgate_core::config::{ResourceConfig, ResourceReport};
use proptest::prelude::*;

use super::*;

const INF: f64 = f64::INFINITY;

fn load(workflow: u16, demand: f64, cost: f64) -> Load {
    Load {
        workflow: WorkflowId(workflow),
        demand,
        downstream: INF,
        cost: Some([cost, 0.0]),
        leaf: true,
        weight: 1.0,
        guarantee: 0.0,
        memory: Memory::default(),
        rate: INF,
    }
}

fn bottleneck(max_utilization: f64) -> Sharing {
    Sharing::new(&SharingConfig::BottleneckFairness {
        probe: 10.0,
        max_utilization,
    })
}

fn dominant(max_utilization: f64, capacity: f64) -> Sharing {
    Sharing::new(&SharingConfig::DominantResource {
        probe: 10.0,
        max_utilization,
        resource: ResourceConfig {
            capacity,
            report: ResourceReport::ServerTiming {
                metric: "io".to_owned(),
            },
        },
    })
}

fn capacity(slots: f64, utilization: f64) -> Capacity {
    Capacity {
        slots,
        utilization: [utilization, 0.0],
        intervals: 1.0,
    }
}

struct Process {
    policy: Sharing,
    memory: Vec<Memory>,
    rates: Vec<f64>,
}

impl Process {
    fn new(policy: Sharing) -> Self {
        Self {
            policy,
            memory: vec![Memory::default(); 64],
            rates: Vec::new(),
        }
    }

    fn run(&mut self, capacity: &Capacity, loads: &[Load]) -> Vec<f64> {
        let mut loads = loads.to_vec();
        for load in &mut loads {
            load.memory = self.memory[usize::from(load.workflow.0)];
        }
        self.policy.run(capacity, &mut loads);
        for load in &loads {
            self.memory[usize::from(load.workflow.0)] = load.memory;
        }
        self.rates = loads.iter().map(|load| load.rate).collect();
        self.rates.clone()
    }
}

#[test]
fn overload_shares_the_slots_and_leaves_the_others_room() {
    let mut process = Process::new(bottleneck(1.0));
    let loads = [
        load(1, 400.0, 0.002),
        load(2, 100.0, 0.002),
        load(3, 100.0, 0.002),
    ];
    for _ in 0..10 {
        let rates = process.run(&capacity(1.0, 1.0), &loads);
        for (rate, expected) in rates.iter().zip([300.0, 200.0, 200.0]) {
            assert!((rate - expected).abs() < 1e-6, "{rates:?}");
        }
    }
    // The throttled workflow now sends at its rate, and keeps its share.
    let cut = [load(1, 300.0, 0.002), loads[1], loads[2]];
    for _ in 0..10 {
        let rates = process.run(&capacity(1.0, 1.0), &cut);
        assert!((rates[0] - 300.0).abs() < 1e-6, "{rates:?}");
        assert!((rates[1] - 200.0).abs() < 1e-6, "{rates:?}");
    }
    // The demand of the throttled workflow stays lower, so the others may use the rest.
    let less = [load(1, 50.0, 0.002), loads[1], loads[2]];
    let rates = process.run(&capacity(1.0, 1.0), &less);
    assert!((rates[1] - 350.0).abs() < 1e-6, "{rates:?}");
    // The workflows have equal shares of slots, not of requests.
    let dear = [load(1, 400.0, 0.004), load(2, 400.0, 0.001)];
    let rates = Process::new(bottleneck(0.8)).run(&capacity(1.0, 0.5), &dear);
    assert!((rates[0] - 100.0).abs() < 1e-6, "{rates:?}");
    assert!((rates[1] - 400.0).abs() < 1e-6, "{rates:?}");
}

#[test]
fn without_a_limit_there_is_nothing_to_share() {
    let mut process = Process::new(bottleneck(0.9));
    let throttled = [load(1, 800.0, 0.002), load(2, 800.0, 0.002)];
    process.run(&capacity(1.0, 1.0), &throttled);
    assert_eq!(process.run(&capacity(INF, 0.0), &throttled), [INF, INF]);
    // P is found, and has room for more than the load.
    let rates = process.run(&capacity(10.0, 0.3), &throttled);
    assert!((rates[0] - 3_700.0).abs() < 1e-6, "{rates:?}");

    let gold = Load {
        guarantee: 100.0,
        ..load(1, 0.0, 0.05)
    };
    let mut process = Process::new(Sharing::new(&SharingConfig::StaticGuarantees));
    let rates = process.run(&capacity(INF, 0.0), &[gold, load(2, 1.0, 0.05)]);
    assert_eq!(rates, [100.0, INF]);
}

#[test]
fn leaves_probe_by_what_is_spare_and_others_go_ahead() {
    let mut process = Process::new(bottleneck(0.9));
    let throttled = [load(1, 800.0, 0.002), load(2, 800.0, 0.002)];
    let before = process.run(&capacity(1.0, 1.0), &throttled);
    assert!((before[0] - 225.0).abs() < 1e-9);
    // A third of the allowed use is in use, so the rate of a leaf increases by two thirds of β.
    let inner = Load {
        leaf: false,
        ..load(2, 75.0, 0.002)
    };
    let calm = [load(1, 75.0, 0.002), inner];
    let rates = process.run(&capacity(1.0, 0.3), &calm);
    assert!(
        (rates[0] - (225.0 + 10.0 * 2.0 / 3.0)).abs() < 1e-9,
        "{rates:?}"
    );
    assert!((rates[1] - 375.0).abs() < 1e-9, "{rates:?}");
    for _ in 0..1_000 {
        process.run(&capacity(1.0, 0.3), &calm);
    }
    assert!(
        (process.rates[0] - 375.0).abs() < 1e-9,
        "never above its share"
    );
    // A new workflow starts with its share.
    let three = [calm[0], calm[1], load(3, 1.0, 0.002)];
    let rates = process.run(&capacity(1.0, 0.3), &three);
    assert!((rates[2] - 300.0).abs() < 1e-9, "{rates:?}");
}

#[test]
fn others_use_the_rate_that_downstream_processes_refuse() {
    let mut process = Process::new(bottleneck(1.0));
    let cut = Load {
        downstream: 75.0,
        ..load(1, 1_000.0, 0.002)
    };
    let loads = [cut, load(2, 800.0, 0.002)];
    for _ in 0..3 {
        let rates = process.run(&capacity(1.0, 1.0), &loads);
        assert!((rates[1] - 425.0).abs() < 1e-6, "{rates:?}");
        assert!(
            (rates[0] - 250.0).abs() < 1e-6,
            "its own share here: {rates:?}"
        );
    }
}

#[test]
fn guarantees_and_weights() {
    for policy in [bottleneck(1.0), dominant(1.0, 1e9)] {
        let mut process = Process::new(policy);
        let guaranteed = Load {
            guarantee: 350.0,
            ..load(1, 500.0, 0.002)
        };
        let heavy = Load {
            weight: 2.0,
            ..load(3, 500.0, 0.002)
        };
        let rates = process.run(
            &capacity(1.0, 1.0),
            &[guaranteed, load(2, 500.0, 0.002), heavy],
        );
        for (rate, expected) in rates.iter().zip([350.0, 50.0, 100.0]) {
            assert!((rate - expected).abs() < 1e-6, "{rates:?}");
        }
    }
    let mut process = Process::new(Sharing::new(&SharingConfig::StaticGuarantees));
    let guaranteed = Load {
        guarantee: 100.0,
        ..load(1, 0.0, 0.002)
    };
    let heavy = Load {
        weight: 3.0,
        ..load(3, 500.0, 0.002)
    };
    let loads = [guaranteed, load(2, 1.0, 0.002), heavy, load(4, 0.0, 0.002)];
    let rates = process.run(&capacity(1.0, 0.0), &loads);
    for (rate, expected) in rates.iter().zip([100.0, 100.0, 300.0, 80.0]) {
        assert!((rate - expected).abs() < 1e-6, "{rates:?}");
    }
    let all = Load {
        guarantee: 600.0,
        ..guaranteed
    };
    let rates = process.run(&capacity(1.0, 0.0), &[all, loads[1]]);
    assert_eq!(rates[0], 600.0);
    assert!((rates[1] - 5.0).abs() < 1e-9, "best effort: {rates:?}");
}

#[test]
fn the_scarcer_resource_decides() {
    let mut process = Process::new(dominant(1.0, 100.0));
    let reads = Load {
        cost: Some([0.001, 1.0]),
        ..load(1, 200.0, 0.0)
    };
    let metadata = Load {
        cost: Some([0.001, 0.0]),
        ..load(2, 300.0, 0.0)
    };
    let rates = process.run(&capacity(1.0, 0.5), &[reads, metadata]);
    // The slots suffice for both workflows. The resource suffices for half of the reads.
    assert!((rates[0] - 100.0).abs() < 1e-6, "{rates:?}");
    // With more demand, both workflows would have equal dominant shares: 10/11 of the slots for
    // one, and 10/11 of the resource for the other.
    assert!((rates[1] - 10_000.0 / 11.0).abs() < 1e-6, "{rates:?}");
}

#[test]
fn a_workflow_without_measurements_has_no_limit() {
    let unknown = Load {
        cost: None,
        ..load(1, 100.0, 0.0)
    };
    for policy in [
        bottleneck(0.9),
        dominant(0.9, 10.0),
        Sharing::new(&SharingConfig::StaticGuarantees),
    ] {
        let rates = Process::new(policy).run(&capacity(1.0, 0.0), &[unknown]);
        assert_eq!(rates, [INF]);
    }
}

fn anything() -> impl Strategy<Value = f64> {
    prop_oneof![
        6 => 0.0..1e4_f64,
        2 => 0.0..1e-3_f64,
        1 => prop::sample::select(vec![
            0.0, -1.0, INF, -INF, f64::NAN, 1e300, 1e-300, f64::MIN_POSITIVE,
        ]),
    ]
}

fn any_load() -> impl Strategy<Value = Load> {
    let cost = prop::option::weighted(0.9, [anything(), anything()]);
    let guarantee = prop_oneof![3 => Just(0.0), 1 => 0.0..1e4_f64];
    (
        anything(),
        anything(),
        cost,
        any::<bool>(),
        anything(),
        guarantee,
    )
        .prop_map(|(demand, downstream, cost, leaf, weight, guarantee)| Load {
            workflow: WorkflowId(0),
            demand,
            downstream,
            cost,
            leaf,
            weight,
            guarantee,
            memory: Memory::default(),
            rate: INF,
        })
}

proptest! {
    #[test]
    fn a_rate_exists_for_any_measurements(
        rounds in prop::collection::vec(
            (
                prop::collection::vec(any_load(), 0..12),
                anything(),
                [anything(), anything()],
                anything(),
            ),
            1..8,
        ),
        resource in anything(),
        max_utilization in anything(),
    ) {
        for policy in [
            bottleneck(max_utilization),
            dominant(max_utilization, resource),
            Sharing::new(&SharingConfig::StaticGuarantees),
        ] {
            let mut process = Process::new(policy);
            for (loads, slots, utilization, intervals) in &rounds {
                let mut loads = loads.clone();
                for (i, load) in loads.iter_mut().enumerate() {
                    load.workflow = WorkflowId(i as u16);
                }
                let capacity = Capacity {
                    slots: *slots,
                    utilization: *utilization,
                    intervals: *intervals,
                };
                let rates = process.run(&capacity, &loads);
                prop_assert_eq!(rates.len(), loads.len());
                for (rate, load) in rates.iter().zip(&loads) {
                    prop_assert!(*rate >= 0.0 && *rate >= load.guarantee, "{} {:?}", rate, load);
                    let has_limit = *slots < INF && load.cost.is_some();
                    prop_assert!(rate.is_finite() || !has_limit, "{:?}", load);
                }
            }
        }
    }

    /// Workflows that send at their rates, up to their demands, use the slots up to the allowed
    /// ratio, and share the slots fairly.
    #[test]
    fn closed_loop_settles_on_fair_shares(
        wanted in prop::collection::vec(10.0..1_000.0_f64, 2..8), max_utilization in 0.5..1.0_f64,
    ) {
        let cost = 0.002;
        let mut process = Process::new(bottleneck(max_utilization));
        let mut sent = wanted.clone();
        let mut low = vec![INF; wanted.len()];
        let mut high = vec![0.0_f64; wanted.len()];
        for round in 0..1_500 {
            let loads: Vec<Load> = sent
                .iter()
                .enumerate()
                .map(|(i, &sent)| load(i as u16, sent, cost))
                .collect();
            let used: f64 = sent.iter().sum::<f64>() * cost;
            let rates = process.run(&capacity(1.0, used.min(1.0)), &loads);
            for i in 0..wanted.len() {
                sent[i] = wanted[i].min(rates[i]);
                if round >= 1_000 {
                    low[i] = low[i].min(sent[i]);
                    high[i] = high[i].max(sent[i]);
                }
            }
        }
        let fair = {
            let mut fill = crate::workflows::shares::WaterFill::default();
            fill.fill(max_utilization, wanted.iter().map(|&demand| crate::workflows::shares::Claim {
                growth: 1.0, floor: 0.0, demand: demand * cost,
            }));
            (0..wanted.len()).map(|i| fill.share(i) / cost).collect::<Vec<_>>()
        };
        for i in 0..wanted.len() {
            prop_assert!(
                low[i] >= fair[i] * 0.95 - 2.0,
                "{} of {}: {:?} {:?}",
                low[i],
                fair[i],
                low,
                fair
            );
            prop_assert!(
                high[i] <= fair[i] * 1.05 + 2.0,
                "{} of {}: {:?} {:?}",
                high[i],
                fair[i],
                high,
                fair
            );
        }
    }
}
