use proptest::prelude::{Just, Strategy, prop_assert, prop_assert_eq, prop_oneof, proptest};

use super::ranks::{EQUAL, PROBES};
use super::record::Work;
use super::*;
use crate::memory::MemoryHost;
use crate::reason::Reason;
use crate::service_times::{Objective, Settings, TypeSettings};
use crate::strategy::bouncer::{Bouncer, ByValue};
use crate::strategy::{Admission, ErrorBudget, View};

/// A type with known value, mean and slack, ms, and the number of slots that it demands.
#[derive(Debug, Clone, Copy)]
struct Known(f64, f64, f64, f64);

/// The mix of the module's measurements at twice the full load of 16 slots. It has 60% × 2.5 ms,
/// 30% × 4 ms and 10% × 60 ms.
const MIX: [Known; 3] = [
    Known(1.0, 2.5, 47.0, 32.0 * 1.5 / 8.7),
    Known(1.0, 4.0, 46.0, 32.0 * 1.2 / 8.7),
    Known(1.0, 60.0, 141.0, 32.0 * 6.0 / 8.7),
];
const SLOTS: f64 = 16.0;

fn known(types: &[Known], scales: &[f64]) -> ValueCut {
    let values: Vec<f64> = types.iter().map(|known| known.0).collect();
    let mut cut = ValueCut::new(&values, scales);
    for (kind, known) in cut.kinds.iter_mut().zip(types) {
        *kind = Kind {
            measured: known.1 / 1e3,
            mean: known.1 / 1e3,
            own_time: known.1 / 1e3,
            part: 1.0,
            slack: Some(known.2 / 1e3),
            own: true,
            ..Kind::default()
        };
    }
    for (at, cell) in cut.cells.iter_mut().enumerate() {
        cell.rate = types[at / cut.classes].3 / cut.classes as f64;
    }
    (cut.slots, cut.rho) = (SLOTS, 1.0);
    cut
}

fn filled(types: &[Known]) -> ValueCut {
    let mut cut = known(types, &[]);
    cut.fill();
    cut
}

/// Returns the service times of types with these objectives, before the first measurement.
fn times<const N: usize>(min_samples: u32, objectives: [Vec<Objective>; N]) -> ServiceTimes {
    let kind = |(at, objectives): (usize, Vec<Objective>)| TypeSettings {
        name: at.to_string(),
        objectives,
    };
    ServiceTimes::new(Settings {
        interval: Duration::from_secs(5),
        steps: 1,
        min_samples,
        types: objectives.into_iter().enumerate().map(kind).collect(),
    })
}

fn of(kind: u16) -> Attributes {
    Attributes::of(TypeId(kind))
}

fn ms(ms: f64) -> Duration {
    Duration::from_secs_f64(ms / 1e3)
}

fn at(ms: u64) -> Instant {
    Instant::from_nanos(ms * 1_000_000)
}

#[test]
fn slot_time_goes_to_what_is_worth_most() {
    let cut = filled(&MIX);
    assert_eq!(
        (cut.admitted(TypeId(0)), cut.admitted(TypeId(1))),
        (1.0, 1.0)
    );
    let left = SLOTS - MIX[0].3 - MIX[1].3;
    assert!((cut.admitted(TypeId(2)) - left / MIX[2].3).abs() < 1e-9);

    // A type of thirty times the value has a higher rank than the cheap types.
    let mut dear = MIX;
    dear[2].0 = 30.0;
    let cut = filled(&dear);
    assert!((cut.admitted(TypeId(2)) - SLOTS / MIX[2].3).abs() < 1e-9);
    assert!(cut.admitted(TypeId(0)) < 0.01 && cut.admitted(TypeId(1)) < 0.01);
}

#[test]
fn the_cut_refuses_as_many_as_find_no_slot_time() {
    let mut cut = filled(&MIX);
    let part = cut.admitted(TypeId(2));
    assert!((0.1..0.9).contains(&part), "{part}");
    let mut rng = Rng::new(1);
    let mut admitted = |kind| {
        let yes = |_: &i32| cut.admits(&of(kind), at(0), &mut rng) == Admitted::Yes;
        f64::from((0..10_000).filter(yes).count() as u32) / 1e4
    };
    assert_eq!([admitted(0), admitted(1)], [1.0, 1.0]);
    assert!((admitted(2) - part).abs() < 0.02, "{part}");
}

/// The standard library's sort panics if an order is inconsistent.
#[test]
fn a_rank_that_is_no_number_breaks_no_order() {
    let mut rng = Rng::new(7);
    let types: Vec<Known> = (0..500)
        .map(|_| Known(1.0, 1.0 + 50.0 * rng.next_f64(), 40.0, 0.1))
        .collect();
    let mut cut = known(&types, &[]);
    for kind in cut.kinds.iter_mut().step_by(3) {
        kind.part = f64::NAN;
    }
    cut.fill();
    let admitted = |kind| cut.admitted(TypeId(kind));
    assert!((0..500).all(|kind| (0.0..=1.0).contains(&admitted(kind))));
}

#[test]
fn equals_are_cut_alike() {
    for costs in [[10.0, 10.0, 10.0], [10.0, 10.4, 10.8], [10.8, 10.4, 10.0]] {
        let cut = filled(&costs.map(|cost| Known(1.0, cost, 40.0, 10.0)));
        for kind in 0..3 {
            let part = cut.admitted(TypeId(kind));
            assert!((part - SLOTS / 30.0).abs() < 1e-9, "{costs:?}: {part}");
        }
    }
}

#[test]
fn a_class_scales_the_value() {
    let mut cut = known(&[Known(1.0, 10.0, 40.0, 20.0)], &[1.0, 0.2]);
    cut.fill();
    let admitted = |class| cut.cells[cut.cell(TypeId(0), ClassId(class))].admitted;
    assert_eq!(admitted(0), 1.0);
    assert!((admitted(1) - 0.6).abs() < 1e-9);
    assert!((cut.admitted(TypeId(0)) - 0.8).abs() < 1e-9);
    // Classes with the same value share a cell.
    assert_eq!(known(&MIX, &[0.5, 0.5]).cells.len(), 3);
}

#[test]
fn floors_come_first_and_say_when_they_do_not_fit() {
    let mut cut = known(&MIX, &[]);
    cut.kinds[2].floor = 0.3;
    cut.fill();
    assert!(cut.floors_fit());
    // `search` gets the slots that 0.3 of the reports and all of `fast` leave free.
    let left = SLOTS - MIX[0].3 - MIX[1].3 - 0.3 * MIX[2].3;
    assert!(left < 0.0, "the cut is among the cheap now");
    assert_eq!(cut.admitted(TypeId(0)), 1.0);
    let search = (SLOTS - MIX[0].3 - 0.3 * MIX[2].3) / MIX[1].3;
    assert!((cut.admitted(TypeId(1)) - search).abs() < 1e-9);

    cut.kinds[2].floor = 0.8;
    cut.fill();
    assert!(!cut.floors_fit());
}

#[test]
fn the_ceiling_is_the_slack_of_what_is_worth_more() {
    let cut = filled(&MIX);
    assert!(
        cut.is_below_ceiling(&of(0), ms(1e6), ms(1e6)),
        "nothing is worth more"
    );
    assert!(cut.is_below_ceiling(&of(2), ms(41.3), ms(0.0)));
    assert!(!cut.is_below_ceiling(&of(2), ms(41.5), ms(0.0)));
    assert!(!cut.is_below_ceiling(&of(2), ms(0.0), ms(41.5)));
    assert_eq!(
        cut.rival(&of(2)),
        None,
        "a report waits longer than what it must spare"
    );
    assert_eq!(
        cut.rival(&of(1)),
        Some(TypeId(0)),
        "under Slack fast waits longer than search"
    );
    assert!(!cut.is_below_ceiling(&of(1), ms(0.0), ms(42.4)));

    // A type with hardly any traffic puts no ceiling on the others.
    let mut rare = [MIX[0], MIX[1], MIX[2], Known(1.0, 1.0, 0.5, 0.001)];
    assert!(filled(&rare).is_below_ceiling(&of(2), ms(41.3), ms(0.0)));
    rare[3].3 = 1.0;
    assert!(!filled(&rare).is_below_ceiling(&of(2), ms(1.0), ms(0.0)));
}

#[test]
fn types_without_a_known_value_per_slot_time_are_left_to_alg_1() {
    let mut cut = known(&MIX, &[]);
    cut.kinds[0] = Kind {
        cold: true,
        ..Kind::default()
    };
    cut.fill();
    assert_eq!(cut.admitted(TypeId(0)), 1.0);
    let left = SLOTS - MIX[0].3 - MIX[1].3;
    assert!(
        (cut.admitted(TypeId(2)) - left / MIX[2].3).abs() < 1e-9,
        "its work is set aside"
    );
}

/// If the work of the last type were set aside, its tokens would use up the whole budget.
#[test]
fn a_type_without_a_known_slot_time_is_ranked_by_its_tokens() {
    let mut cut = known(&MIX, &[]);
    cut.kinds[2] = Kind {
        cold: true,
        tokens: 0.06,
        part: 1.0,
        ..Kind::default()
    };
    cut.fill();
    let left = SLOTS - MIX[0].3 - MIX[1].3;
    let admitted = [0, 1, 2].map(|kind| cut.admitted(TypeId(kind)));
    assert_eq!(admitted[..2], [1.0; 2]);
    assert!((admitted[2] - left / MIX[2].3).abs() < 1e-9, "{admitted:?}");
    assert!(cut.density(TypeId(2)) > 0.0);
}

/// Free slots admit requests below the cut after a calm second, except requests that take tokens.
#[test]
fn free_slots_are_no_room_for_tokens() {
    let times = times(50, MIX.map(|_| Vec::new()));
    let view = View {
        now: at(2_000),
        parallelism: SLOTS as u32,
        slots_in_use: 0,
        queue_length: 0,
        queue_work: 0,
        work: 1_000,
        queue_wait: Duration::ZERO,
        rival_wait: Duration::ZERO,
        service_times: &times,
    };
    let refused = |tokens| {
        let mut cut = known(&MIX, &[]);
        cut.rho = 0.3;
        cut.fill();
        assert!(cut.admitted(TypeId(2)) < 0.01);
        let budget = ErrorBudget::new(MIX.len(), 0);
        let mut bouncer = Bouncer::default();
        bouncer.by_value = Some(ByValue { cut, budget });
        let request = Attributes { tokens, ..of(2) };
        let mut rng = Rng::new(1);
        (0..1_000)
            .filter(|_| bouncer.decide(&request, &view, &mut rng) == Err(Reason::Value))
            .count()
    };
    assert_eq!(refused(0), 0);
    assert!(refused(1) > 980);
}

/// A type that holds its slots for a third of the other type's time is worth less than the other if
/// its tokens are worth twice the other's time.
#[test]
fn a_type_counts_with_the_larger_part_of_slots_and_tokens() {
    let types = [Known(1.0, 20.0, 80.0, 0.0), Known(1.0, 60.0, 80.0, 0.0)];
    let admitted = |tokens: [f64; 2]| {
        let mut cut = known(&types, &[]);
        for (kind, ms) in cut.kinds.iter_mut().zip(tokens) {
            kind.tokens = ms / 1e3;
        }
        for kind in [0, 1] {
            cut.admits(&of(kind), at(0), &mut Rng::new(1));
            let cell = &mut cut.cells[usize::from(kind)];
            // There are 200 such requests per second.
            cell.rate = 200.0 * cell.fresh;
        }
        cut.fill();
        [0, 1].map(|kind| cut.admitted(TypeId(kind)))
    };
    // The types demand 4 and 12 of 16 slots.
    assert_eq!(admitted([0.0, 0.0]), [1.0, 1.0]);
    // By their tokens, the types demand 24 and 12 slots.
    let [first, second] = admitted([120.0, 60.0]);
    assert!((first - 4.0 / 24.0).abs() < 1e-9, "{first}");
    assert!((second - 1.0).abs() < 1e-9, "{second}");
}

#[test]
fn a_type_has_a_rank_before_it_has_a_histogram() {
    let objectives = |p50: u64| {
        vec![Objective {
            percentile: 50.0,
            response_time: Duration::from_millis(p50),
        }]
    };
    let mut times = times(50, [50, 200, 200].map(objectives));
    let host = MemoryHost::new();
    let mut cut = ValueCut::new(&[1.0, 1.0, 1.0], &[]);
    for _ in 0..100 {
        times.record(TypeId(0), ms(2.0), 1);
    }
    let mut admitted = Vec::new();
    for sample in 1..=20 {
        times.record(TypeId(1), ms(60.0), 1);
        times.sync(at(sample), &host, "times").unwrap();
        cut.learn((16.0, f64::INFINITY), false, &times, |_| 0.0, |_| 0.0);
        cut.rho = 1.0;
        // Each type demands 15 of 16 slots.
        cut.cells[0].rate = 15.0;
        cut.cells[1].rate = 15.0;
        cut.fill();
        admitted.push(cut.admitted(TypeId(1)));
    }
    let (first, last) = admitted.split_at(19);
    assert_eq!(first, [1.0; 19], "its cost is not known");
    assert!((last[0] - 1.0 / 15.0).abs() < 1e-9, "{last:?}");
    assert_eq!(cut.admitted(TypeId(0)), 1.0);
    // Alg. 1 judges the type by the times of other types, so its refusals don't affect the budget.
    cut.decided(&of(1), at(0), false, false);
    assert_eq!(cut.fresh.refused, 0.0);
}

#[test]
fn a_type_that_misses_its_objective_by_itself_keeps_its_rank() {
    let parts = |condemned: usize| {
        let mut cut = known(&MIX, &[]);
        (cut.kinds[condemned].condemned, cut.kinds[condemned].slack) = (true, None);
        cut.fill();
        // The refusals of a condemned type don't count as lost.
        cut.decided(&of(condemned as u16), at(0), false, false);
        assert_eq!(cut.fresh.refused, 0.0);
        [0, 1, 2].map(|kind| cut.admitted(TypeId(kind)))
    };
    let left = SLOTS - MIX[0].3 - MIX[1].3;
    for condemned in 0..3 {
        let [fast, search, report] = parts(condemned);
        assert_eq!((fast, search), (1.0, 1.0), "{condemned}");
        assert!(
            (report - left / MIX[2].3).abs() < 1e-9,
            "{condemned}: {report}"
        );
    }
}

#[test]
fn a_type_that_is_usually_late_is_silent_beyond_twice_its_usual_time() {
    for (usual, silent) in [(100.0, 150.0), (200.0, 400.0)] {
        let objective = Objective {
            percentile: 90.0,
            response_time: ms(150.0),
        };
        let mut times = times(20, [vec![objective], vec![objective]]);
        for _ in 0..20 {
            times.record(TypeId(0), ms(usual), 1);
        }
        times.sync(at(1), &MemoryHost::new(), "times").unwrap();
        let mut cut = ValueCut::new(&[1.0, 1.0], &[]);
        cut.learn((16.0, f64::INFINITY), false, &times, |_| 0.0, |_| 0.0);
        cut.longest = f64::INFINITY;
        let after = cut.silent_after(TypeId(0)).unwrap().as_secs_f64() * 1e3;
        assert!(
            (after / silent - 1.0).abs() < 0.02,
            "{usual} ms: {after} ms"
        );
    }
}

/// A long request or a lull leaves a type without outcomes. Its histogram stays.
#[test]
fn a_measured_type_without_outcomes_is_late_beyond_its_last_objective() {
    let objective = |(percentile, response_time)| Objective {
        percentile,
        response_time: ms(response_time),
    };
    let mut times = times(
        20,
        [[(50.0, 50.0), (90.0, 1_000.0)].map(objective).to_vec()],
    );
    let mut cut = ValueCut::new(&[1.0], &[]);
    let mut late_after = |times: &ServiceTimes| {
        cut.learn((16.0, f64::INFINITY), false, times, |_| 0.0, |_| 0.0);
        cut.late_after(TypeId(0))
    };
    assert_eq!(late_after(&times), Some(ms(50.0)));
    for _ in 0..20 {
        times.record(TypeId(0), ms(100.0), 1);
    }
    times.sync(at(1), &MemoryHost::new(), "times").unwrap();
    assert_eq!(late_after(&times), Some(ms(1_000.0)));
}

#[test]
fn a_type_without_requests_takes_no_slots() {
    let types = [MIX[0], MIX[1], Known(1.0, 8.0, 40.0, 0.0), MIX[2]];
    let mut cut = known(&types, &[]);
    for cold in [false, true] {
        cut.kinds[2].cold = cold;
        cut.fill();
        let left = SLOTS - MIX[0].3 - MIX[1].3;
        assert!((cut.admitted(TypeId(3)) - left / MIX[2].3).abs() < 1e-9);
    }
}

#[test]
fn a_type_that_is_cut_is_still_measured() {
    let cut = filled(&[Known(1.0, 1.0, 40.0, 20.0), Known(1.0, 100.0, 40.0, 5.0)]);
    assert!((cut.admitted(TypeId(1)) - PROBES * SLOTS / 5.0).abs() < 1e-9);
    // A type without traffic is not cut.
    let cut = filled(&[Known(1.0, 1.0, 40.0, 20.0), Known(1.0, 100.0, 40.0, 0.0)]);
    assert_eq!(cut.admitted(TypeId(1)), 1.0);
}

/// Of 0.08 slots, a type that demands 0.01 and one without traffic leave 0.07 to the others.
#[test]
fn types_with_hardly_any_traffic_take_no_probes_of_others() {
    let cut = filled(&[
        Known(1.0, 1.0, 40.0, 20.0),
        Known(1.0, 100.0, 40.0, 5.0),
        Known(1.0, 200.0, 40.0, 0.0),
        Known(1.0, 300.0, 40.0, 0.01),
        Known(1.0, 400.0, 40.0, 7.0),
    ]);
    let admitted = [1, 2, 3, 4].map(|kind| cut.admitted(TypeId(kind)));
    let half = (PROBES * SLOTS - 0.01) / 2.0;
    for (part, expected) in admitted.into_iter().zip([half / 5.0, 1.0, 1.0, half / 7.0]) {
        assert!((part - expected).abs() < 1e-9, "{admitted:?}");
    }
}

#[test]
fn the_budget_follows_refusals_above_the_cut() {
    let mut cut = filled(&MIX);
    let mut record = Vec::new();
    cut.sync(at(0), &mut record);
    let mut rho = |ms: u64, refused: u32| {
        for n in 0..100 {
            cut.decided(&of(0), at(0), n >= refused, n >= refused);
        }
        // The type that is admitted in part doesn't count.
        cut.cells[2].above = false;
        cut.decided(&of(2), at(0), false, false);
        assert!(cut.sync(at(ms), &mut record));
        cut.stored();
        cut.budget()
    };
    assert_eq!(rho(100, 2), 1.3);
    assert!((rho(200, 3) - 1.3 * 0.98).abs() < 1e-9);
    assert!((rho(300, 2) - 1.3 * 0.98 - 0.004).abs() < 1e-9);
    for step in 0..200 {
        rho(400 + 100 * step, 50);
    }
    assert_eq!(rho(30_000, 50), 0.3);
    for step in 0..300 {
        rho(30_100 + 100 * step, 0);
    }
    assert_eq!(rho(70_000, 0), 1.3);
}

#[test]
fn no_type_is_protected_until_one_needs_it() {
    // All types fit easily.
    let types = [MIX[0], MIX[2]].map(|known| Known(known.0, known.1, known.2, 1.0));
    let mut cut = known(&types, &[]);
    let mut record = Vec::new();
    cut.sync(at(0), &mut record);
    let mut ceiling = |ms: u64, missed: u32| {
        for n in 0..100 {
            cut.decided(&of(0), at(0), n >= missed, n >= missed);
        }
        // The rates that the record averages are those of the test.
        for (cell, known) in cut.cells.iter_mut().zip(&types) {
            cell.fresh = 0.1 * known.3;
        }
        cut.sync(at(ms), &mut record);
        cut.stored();
        cut.cells[1].ceiling
    };
    assert_eq!(ceiling(100, 0), f64::INFINITY);
    assert_eq!(ceiling(200, 3), f64::INFINITY, "1.5% may be a burst");
    assert!(ceiling(300, 10) < 0.1, "4% are none");
    for step in 0..20 {
        assert!(ceiling(400 + 100 * step, 0) < 0.1, "more than 0.2% remain");
    }
    for step in 0..60 {
        ceiling(2_400 + 100 * step, 0);
    }
    assert_eq!(ceiling(10_000, 0), f64::INFINITY);
}

#[test]
fn refusals_of_a_type_that_hangs_leave_the_budget_alone() {
    let mut cut = known(&MIX[..1], &[]);
    let mut record = Vec::new();
    cut.sync(at(0), &mut record);
    let mut rho = |ms: u64| {
        (0..2).for_each(|_| cut.silent(TypeId(0)));
        for _ in 0..100 {
            cut.decided(&of(0), at(ms), false, false);
        }
        cut.sync(at(ms), &mut record);
        cut.stored();
        cut.budget()
    };
    // The first refusals come before the type is known to hang.
    let before = rho(100);
    assert!(rho(2_000) >= before);
}

#[test]
fn workers_count_arrivals_once_and_agree() {
    let mut rng = Rng::new(1);
    let mut workers: Vec<ValueCut> = (0..3).map(|_| known(&MIX, &[])).collect();
    let mut record = Vec::new();
    workers[0].sync(at(0), &mut record);
    for now in 1..=10_000_u64 {
        // Every ms some worker gets 4 requests × 2.5 ms of `fast` and, every tenth ms, a report.
        // They demand 10 and 6 slots.
        let worker = &mut workers[(now * 7 % 3) as usize];
        for _ in 0..4 {
            worker.admits(&of(0), at(0), &mut rng);
        }
        if now % 10 == 0 {
            worker.admits(&of(2), at(0), &mut rng);
        }
        for worker in &mut workers {
            if now % 10 == 0 && worker.due(at(now)) && worker.sync(at(now), &mut record) {
                worker.stored();
            }
        }
    }
    for worker in &mut workers {
        worker.sync(at(10_001), &mut record);
        assert!(
            (worker.cells[0].rate - 10.0).abs() < 0.1,
            "{:?}",
            worker.cells[0]
        );
        assert!(
            (worker.cells[2].rate - 6.0).abs() < 0.1,
            "{:?}",
            worker.cells[2]
        );
    }
    assert_eq!(workers[0].budget(), workers[2].budget());
}

/// The first type is worth more per slot time. It gets one request, and its slot time is not known.
#[test]
fn a_type_that_has_stopped_needs_no_slots() {
    let mut cut = known(&[MIX[0], MIX[2]], &[]);
    cut.kinds[0].unmeasured = true;
    let (mut record, mut rng) = (Vec::new(), Rng::new(1));
    cut.admits(&of(0), at(0), &mut rng);
    let mut serve = |from: u64| {
        for step in 10 * from..10 * from + 20 {
            cut.admits(&of(1), at(100 * step), &mut rng);
            cut.overdue(TypeId(1), 1);
            cut.sync(at(100 * step), &mut record);
            cut.stored();
        }
        let is_alone = cut.most_by_chance(TypeId(1)) == f64::INFINITY;
        (cut.is_broken(TypeId(1)), cut.longest.is_finite(), is_alone)
    };
    assert_eq!(serve(0), (true, false, false));
    assert_eq!(
        (2..30).step_by(2).map(&mut serve).last(),
        Some((false, true, true))
    );
}

/// Arrivals are 100 requests of 10 ms in each 100 ms, and later 300.
#[test]
fn a_step_of_the_arrival_rate_is_followed_at_once() {
    let mut cut = known(&[Known(1.0, 10.0, 50.0, 0.0)], &[]);
    let (mut record, mut rng) = (Vec::new(), Rng::new(7));
    let mut steps = |from: u64, steps: u64, arrivals: u64| {
        for step in from..from + steps {
            for _ in 0..arrivals {
                cut.admits(&of(0), at(100 * step), &mut rng);
            }
            cut.sync(at(100 * step), &mut record);
            cut.stored();
        }
        cut.cells[0].rate
    };
    let usual = steps(1, 30, 100);
    assert!((9.0..11.0).contains(&usual), "{usual}");
    let burst = steps(31, 1, 300);
    assert!(burst < 12.5, "{burst}: one step may be a burst");
    steps(32, 20, 100);
    let noisy = steps(52, 3, 120);
    assert!(noisy < 11.0, "{noisy}: two standard errors are no step");
    let risen = steps(55, 3, 300);
    assert!(risen > 23.0, "{risen}");
    let fallen = steps(58, 4, 100);
    assert!(fallen < 12.0, "{fallen}");
}

/// Arrivals are 10 requests of 10 ms at once in each second.
#[test]
fn bursts_count_as_their_mean() {
    let mut cut = known(&[Known(1.0, 10.0, 50.0, 0.0)], &[]);
    let (mut record, mut rng) = (Vec::new(), Rng::new(7));
    for step in 1..200 {
        for _ in 0..if step % 10 == 0 { 10 } else { 0 } {
            cut.admits(&of(0), at(100 * step), &mut rng);
        }
        cut.sync(at(100 * step), &mut record);
        cut.stored();
        let rate = cut.cells[0].rate;
        assert!(step < 50 || (0.05..0.16).contains(&rate), "{step}: {rate}");
    }
}

#[test]
fn odd_records_and_clocks_cause_no_panic() {
    let mut cut = filled(&MIX);
    let huge = Work {
        rate: 1e300,
        fresh: 1e300,
    };
    let odd = Record {
        stepped: 1e300,
        first: 1e300,
        rho: 1e300,
        fresh: Totals {
            above: 1e300,
            refused: 1e300,
            ..Totals::default()
        },
        rows: vec![huge; cut.cells.len()],
        ..Record::new(0, 0.0, 0, cut.kinds.len())
    };
    let mut record = Vec::new();
    shared::encode(&odd, &mut record);
    assert!(cut.sync(at(1_000_000), &mut record));
    assert!(cut.budget() <= RHO.1);
    // The clock steps back by a quarter of an hour.
    assert!(cut.sync(at(100_000), &mut record));
    for step in 1..50 {
        let mut rng = Rng::new(step);
        cut.admits(&of(0), at(0), &mut rng);
        cut.sync(at(100_000 + 100 * step), &mut record);
        cut.stored();
    }
    assert!(
        cut.cells.iter().all(|c| c.rate.is_finite() && c.rate < 1.0),
        "{:?}",
        cut.cells
    );
}

fn any_type() -> impl Strategy<Value = Known> {
    let rate = prop_oneof![Just(0.0), 0.001..100.0];
    (0.001..1000.0, 0.01..10_000.0, -10.0..1_000.0, rate)
        .prop_map(|(value, mean, slack, rate)| Known(value, mean, slack, rate))
}

proptest! {
    #[test]
    fn the_budget_is_kept_and_the_order_too(
        types in proptest::collection::vec(any_type(), 1..20),
        rho in 0.3..1.3,
        floor in prop_oneof![Just(0.0), 0.0..1.0],
    ) {
        let mut cut = known(&types, &[]);
        cut.rho = rho;
        for kind in &mut cut.kinds {
            kind.floor = floor;
        }
        cut.fill();
        let fraction = |at: usize| cut.admitted(TypeId(at as u16));
        let (mut entering, mut floors) = (0.0, 0.0);
        for (at, known) in types.iter().enumerate() {
            prop_assert!((0.0..=1.0).contains(&fraction(at)));
            entering += known.3 * (floor + (1.0 - floor) * fraction(at));
            floors += known.3 * floor;
        }
        prop_assert!(entering <= f64::max(rho * SLOTS, floors) + PROBES * SLOTS + 1e-6);
        prop_assert_eq!(cut.floors_fit(), floors <= SLOTS);
        for (a, dearer) in types.iter().enumerate() {
            for (b, other) in types.iter().enumerate() {
                if dearer.0 / dearer.1 * EQUAL > other.0 / other.1 && cut.cells[b].above {
                    prop_assert!(cut.cells[a].above, "{dearer:?} before {other:?}");
                }
            }
        }
    }
}
