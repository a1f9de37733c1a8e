//! Consecutive plans share their unchanged parts.

use std::sync::Arc;

use headgate_core::config::{AcceptFractionConfig, StrategyConfig};

use super::*;

fn two_workloads() -> World {
    World::default()
        .policy("a/x", "total: 20", &["Service/a/x"])
        .policy("a/y", "total: 20", &["Service/a/y"])
        .service("a/x", "app=x", 2)
        .service("a/y", "app=y", 2)
        .pods(2, "a/x", "app=x")
        .pods(2, "a/y", "app=y")
}

#[test]
fn an_unchanged_part_of_a_plan_is_the_same_object() {
    let mut world = two_workloads();
    let mut planner = Planner::default();
    let before = planner.plan(&world.cluster);
    let [x, y] = ["app=x", "app=y"].map(|pod| by_labels(&before, "a", pod));
    let object = Arc::make_mut(&mut world.cluster.policies).get_mut(&key("a/y"));
    let object = Arc::make_mut(object.unwrap());
    let edited = object.effective.as_mut().unwrap();
    edited.stage.queue.max_length += 1;

    let after = planner.plan(&world.cluster);
    assert_eq!(after, world.plan(), "and all the same as afresh");
    assert!(Arc::ptr_eq(
        &by_labels(&after, "a", "app=x").config,
        &x.config
    ));
    assert_ne!(by_labels(&after, "a", "app=y").config, y.config);
    let workload = |plan: &Plan, name: &str| Arc::clone(&plan.workloads[&target(name)]);
    assert!(Arc::ptr_eq(
        &workload(&before, "Service/a/x"),
        &workload(&after, "Service/a/x")
    ));
    assert_ne!(
        workload(&before, "Service/a/y"),
        workload(&after, "Service/a/y")
    );
    // This holds also if the previous plan is dropped and only the proxy still holds its
    // configuration.
    drop((before, after));
    let again = planner.plan(&world.cluster);
    assert!(Arc::ptr_eq(
        &by_labels(&again, "a", "app=x").config,
        &x.config
    ));
}

#[test]
fn scaling_one_workload_leaves_the_other() {
    let world = two_workloads();
    let mut planner = Planner::default();
    let before = planner.plan(&world.cluster);
    let x = by_labels(&before, "a", "app=x");
    let more = world.pods(5, "a/y", "app=y");
    let after = planner.plan(&more.cluster);
    assert_eq!(slots(&by_labels(&after, "a", "app=y")), [("a/y".into(), 4)]);
    assert!(Arc::ptr_eq(
        &by_labels(&after, "a", "app=x").config,
        &x.config
    ));
}

#[test]
fn pods_of_one_workload_share_a_configuration() {
    let plan = two_workloads().plan();
    let [one, two] = ["1", "2"].map(|hash| by_labels(&plan, "a", &format!("app=x,hash={hash}")));
    assert!(Arc::ptr_eq(&one, &two));
}

#[test]
fn labels_that_proxies_make_up_do_not_fill_memory() {
    let world = (0..12).fold(World::default(), |world, i| {
        world.policy(&format!("a/p{i}"), "total: 20", &[&format!("Pod/a/l{i}=x")])
    });
    let plan = world.plan();
    // Each `set` is a subset of the policies.
    for set in 0..4_096_u32 {
        let names: Vec<String> = (0..12)
            .filter(|i| set & (1 << i) != 0)
            .map(|i| format!("l{i}=x"))
            .collect();
        if set > 0 {
            let first = set.trailing_zeros();
            let enforced = by_labels(&plan, "a", &names.join(","));
            assert_eq!(slots(&enforced)[0].0, format!("a/p{first}"));
        }
    }
    assert!(plan.attachments.remembered() <= 12 + 1_024);
}

/// The processing units of a second resource are divided exactly, also while slots stay the same.
#[test]
fn fractions_follow_scale_where_slots_do_not() {
    let mut world = World::default()
        .policy("a/x", "total: 2", &["Service/a/x"])
        .service("a/x", "app=x", 2)
        .pods(2, "a/x", "app=x");
    let object = Arc::make_mut(&mut world.cluster.policies).get_mut(&key("a/x"));
    let object = Arc::make_mut(object.unwrap());
    let policy = object.effective.as_mut().unwrap();
    policy.stage.strategy = StrategyConfig::AcceptFraction(AcceptFractionConfig {
        max_utilization: 0.5,
        units: Some(12.0),
        window_us: 1_000_000,
        step_us: 100_000,
    });
    let mut planner = Planner::default();
    let before = planner.plan(&world.cluster);
    let more = world.pods(4, "a/x", "app=x");
    let after = planner.plan(&more.cluster);
    assert_eq!(after, more.plan());
    let units = |plan: &Plan| {
        let stage = &by_labels(plan, "a", "app=x").config.stages[0];
        (
            stage.parallelism,
            stage.strategy.accept_fraction().unwrap().units.unwrap(),
        )
    };
    assert_eq!([&before, &after].map(units), [(1, 6.0), (1, 3.0)]);
}
