//! Tests of stages with a budget of tokens.

use super::*;
use crate::config::{AutoParallelism, TokensConfig};
use crate::requests::Phase;

const MS: Duration = Duration::from_millis(1);

/// Returns a budget of `tokens`. Requests take the tokens of prompt and output, each of which a
/// header states. Without these headers, a request takes 10 tokens for its prompt and none for its
/// output.
fn budget(tokens: u32) -> TokensConfig {
    let json = format!(
        r#"{{"budget":{tokens},"prompt":{{"header":"x-tokens","otherwise":10}},
        "output":{{"header":"x-most","otherwise":0}}}}"#
    );
    serde_json::from_str(&json).unwrap()
}

fn budgeted(parallelism: u32, tokens: u32) -> FilterConfig {
    config(parallelism, |stage| {
        stage.tokens = Some(budget(tokens));
        stage.queue.timeout_us = 60_000_000;
    })
}

/// Returns the number of tokens that running requests hold, summed over all requests.
pub(super) fn held(process: &Process) -> u64 {
    let policies = process.workers.iter().flatten();
    let policies = policies.flat_map(|engine| &engine.policies);
    let requests = policies.flat_map(|policy| policy.stage.requests.iter());
    let holds = |of: &&crate::requests::Request| {
        matches!(of.phase, Phase::Running { .. }) && of.freed.is_none()
    };
    requests.filter(holds).map(|of| u64::from(of.tokens)).sum()
}

impl Process {
    fn arrive_with_tokens(&mut self, worker: usize, tokens: u32) -> u32 {
        let request = MemoryRequest::get("/").with("x-tokens", tokens.to_string());
        self.arrive_as(worker, &request, None)
    }

    fn arrive_with_output(&mut self, worker: usize, prompt: u32, most: u32) -> u32 {
        let request = MemoryRequest::get("/").with("x-tokens", prompt.to_string());
        self.arrive_as(worker, &request.with("x-most", most.to_string()), None)
    }

    /// Reports the output of a response so far. Does nothing while the request waits.
    fn writes(&mut self, stream: u32, output: u32) {
        let (worker, _, At::Backend(ticket)) = self.requests[&stream] else {
            return;
        };
        self.with(worker, |engine, host, _, _| {
            let stage = engine.stage_mut(ticket.policy).unwrap();
            stage.grows(host, ticket, output).unwrap();
            stage.tokens(ticket, output, true, None);
        });
    }

    /// Lets each worker learn that outputs have up to 11 tokens.
    fn learn_outputs(&mut self) {
        for n in 0..200 * self.workers.len() {
            let stream = self.arrive_with_output(n % self.workers.len(), 10, 90);
            self.writes(stream, 10);
            self.end(stream, Outcome::Completed);
        }
    }

    fn running(&self) -> Vec<u32> {
        let running = |(&stream, (_, _, at)): (&u32, &(usize, Instant, At))| {
            matches!(at, At::Backend(_)).then_some(stream)
        };
        self.requests.iter().filter_map(running).collect()
    }

    fn end(&mut self, stream: u32, outcome: Outcome) {
        self.finish(stream, outcome);
        self.settle();
    }
}

#[test]
fn heavy_requests_run_fewer_at_once_than_light_ones() {
    for (tokens, at_once) in [(10, 8), (30, 3), (60, 1), (5_000, 1)] {
        let mut process = Process::new(2, &budgeted(8, 100));
        for n in 0..20 {
            process.arrive_with_tokens(n % 2, tokens);
        }
        assert_eq!(process.in_backend(), at_once, "{tokens}");
        while let Some(&stream) = process.running().first() {
            process.end(stream, Outcome::Completed);
            assert_eq!(process.in_backend(), at_once.min(process.requests.len()));
        }
        process.assert_nothing_booked();
    }
}

/// Each of two workers sees free slots of a policy for whose first waiter, on the other worker,
/// there are no tokens.
#[test]
fn full_budgets_of_two_policies_do_not_keep_workers_awake() {
    let stage = |name: &str| StageConfig {
        policy: format!("ns/{name}"),
        routes: vec![name.to_owned()],
        ..budgeted(8, 100).stages.remove(0)
    };
    let config = FilterConfig {
        stages: vec![stage("a"), stage("b")],
        ..budgeted(8, 100)
    };
    let mut process = Process::new(2, &config);
    let mut arrive = |worker: usize, route: &'static str, tokens: u32| {
        let request = MemoryRequest {
            route: Some(route.into()),
            ..MemoryRequest::get("/").with("x-tokens", tokens.to_string())
        };
        process.arrive_as(worker, &request, None)
    };
    let light = arrive(1, "a", 5);
    let heavy = arrive(0, "a", 90);
    let next = arrive(0, "a", 90);
    for _ in 0..2 {
        arrive(1, "b", 90);
    }
    process.end(light, Outcome::Completed);
    assert_eq!(process.queued().len(), 2);
    process.end(heavy, Outcome::Completed);
    assert!(process.running().contains(&next));
}

#[test]
fn no_request_overtakes_the_first_waiter() {
    let mut process = Process::new(2, &budgeted(8, 100));
    let light: Vec<u32> = (0..4)
        .map(|n| process.arrive_with_tokens(n % 2, 20))
        .collect();
    process.pass_time(5 * MS);
    let heavy = process.arrive_with_tokens(0, 90);
    process.pass_time(5 * MS);
    let behind: Vec<u32> = (0..4)
        .map(|n| process.arrive_with_tokens(n % 2, 10))
        .collect();
    process.run_for(50 * MS);
    for (n, &stream) in light.iter().enumerate() {
        assert_eq!(
            process.running(),
            light[n..],
            "20 tokens are free, and 4 slots"
        );
        process.end(stream, Outcome::Completed);
        process.run_for(20 * MS);
    }
    assert_eq!(process.running(), [heavy, behind[0]]);
    process.end(heavy, Outcome::Abandoned);
    assert_eq!(process.running(), behind);
}

#[test]
fn a_waiter_that_leaves_lets_the_next_one_start() {
    let mut process = Process::new(1, &budgeted(8, 100));
    process.arrive_with_tokens(0, 50);
    let heavy = process.arrive_with_tokens(0, 100);
    let light = process.arrive_with_tokens(0, 50);
    assert_eq!(process.queued(), [heavy, light]);
    process.end(heavy, Outcome::Unmeasured);
    assert_eq!(process.queued(), Vec::<u32>::new());
    assert_eq!(process.gauge("tokens_in_use"), 100);
}

#[test]
fn without_a_budget_no_tokens_are_counted() {
    let mut process = Process::new(1, &config(8, |_| {}));
    process.arrive_with_tokens(0, 50);
    let stat = |name: &str| process.host.value(&format!("headgate.policy.ns/p.{name}"));
    assert_eq!((stat("tokens"), stat("tokens_in_use")), (None, None));
    assert_eq!(stat("worker.0.tokens_in_use"), None);
}

#[test]
fn a_budget_can_be_added_changed_and_removed() {
    let mut process = Process::new(2, &config(8, |_| {}));
    let before: Vec<u32> = (0..3).map(|_| process.arrive_with_tokens(0, 50)).collect();
    process.configure(&budgeted(8, 100));
    assert_eq!(process.gauge("tokens"), 100);
    // Requests that arrived without a budget hold no tokens.
    let own: Vec<u32> = (0..3).map(|_| process.arrive_with_tokens(1, 50)).collect();
    assert_eq!(process.gauge("tokens_in_use"), 100);
    assert_eq!(process.queued(), own[2..]);
    process.configure(&budgeted(8, 150));
    process.settle();
    assert_eq!(process.queued(), Vec::<u32>::new());
    process.configure(&budgeted(8, 20));
    let late = process.arrive_with_tokens(0, 50);
    process.end(own[0], Outcome::Completed);
    process.end(own[1], Outcome::Completed);
    assert_eq!(process.queued(), [late], "50 of 20 are in use");
    process.end(own[2], Outcome::Completed);
    assert_eq!(process.queued(), Vec::<u32>::new());
    assert_eq!(process.gauge("tokens_in_use"), 20, "at most the budget");
    process.configure(&config(8, |_| {}));
    assert_eq!(
        (process.gauge("tokens"), process.gauge("tokens_in_use")),
        (0, 20)
    );
    for stream in before.into_iter().chain([late]) {
        process.end(stream, Outcome::Completed);
    }
    process.assert_nothing_booked();
}

#[test]
fn a_request_takes_the_usual_output_and_more_when_it_grows() {
    let mut process = Process::new(1, &budgeted(8, 100));
    let pair: Vec<u32> = (0..2)
        .map(|_| process.arrive_with_output(0, 10, 90))
        .collect();
    assert_eq!(process.queued(), pair[1..]);
    pair.into_iter()
        .for_each(|stream| process.end(stream, Outcome::Completed));
    process.learn_outputs();
    process.assert_nothing_booked();
    let all: Vec<u32> = (0..6)
        .map(|_| process.arrive_with_output(0, 10, 90))
        .collect();
    assert_eq!(process.queued(), all[4..], "each takes 21");
    process.writes(all[0], 11);
    assert_eq!(process.gauge("tokens_in_use"), 4 * 21);
    process.writes(all[0], 12);
    assert_eq!(
        process.gauge("tokens_in_use"),
        34 + 3 * 21,
        "with twice its output"
    );
    process.writes(all[1], 30);
    assert_eq!(process.gauge("tokens_in_use"), 34 + 70 + 2 * 21);
    process.end(all[2], Outcome::Abandoned);
    assert_eq!(process.queued(), all[4..], "more than the budget is in use");
    process.end(all[1], Outcome::Completed);
    assert_eq!(process.queued(), Vec::<u32>::new());
    assert_eq!(process.gauge("tokens_in_use"), 34 + 3 * 21);
    let rest = process.running();
    rest.into_iter()
        .for_each(|stream| process.end(stream, Outcome::Completed));
    process.assert_nothing_booked();
}

/// Two heavy requests use up the budget with two of eight slots, and the five requests behind them
/// wait for up to 2.5 times their service time. Without a budget, they would wait for at most the
/// service time.
#[test]
fn estimated_waits_are_by_the_requests_that_fit() {
    let config = config(8, |stage| {
        stage.tokens = Some(budget(100));
        decide_by_median(stage, 350_000);
    });
    let mut process = Process::new(1, &config);
    for _ in 0..30 {
        let pair: Vec<u32> = (0..2).map(|_| process.arrive_with_tokens(0, 50)).collect();
        process.run_for(100 * MS);
        for stream in pair {
            process.end(stream, Outcome::Completed);
        }
    }
    process.run_for(Duration::from_secs(1));
    for _ in 0..40 {
        process.arrive_with_tokens(0, 50);
    }
    assert_eq!(process.in_backend(), 2);
    // A waiting request takes 100 ms itself, and waits for 50 ms until a running request ends and
    // 50 ms for each request before it.
    let waiting = process.queued().len();
    assert!((4..=5).contains(&waiting), "{waiting} wait");
    assert!(
        process
            .refused
            .iter()
            .all(|(_, why)| *why == Reason::Objective(50.0))
    );
}

/// An automatically found P stays the same while the budget binds, regardless of requests that wait
/// or are refused.
#[test]
fn the_search_for_p_does_not_take_a_full_budget_for_free_slots() {
    let found = |tokens| {
        config(4, |stage| {
            stage.auto_parallelism = Some(AutoParallelism { min: 2, max: 64 });
            stage.tokens = Some(budget(tokens));
            stage.queue.timeout_us = 60_000_000;
            stage.types[1].slo = vec![Objective {
                percentile: 90.0,
                objective_us: 150_000,
            }];
        })
    };
    let mut process = Process::new(2, &found(1_000_000));
    for n in 0..150 {
        let stream = process.arrive(n % 2, "/");
        process.run_for(10 * MS);
        process.finish(stream, Outcome::Completed);
    }
    // These requests are late because there is no limit, so P is set to a few slots.
    let late: Vec<u32> = (0..40).map(|n| process.arrive(n % 2, "/")).collect();
    process.run_for(200 * MS);
    // The law of P acts when a request ends.
    process.end(late[0], Outcome::Completed);
    process.run_for(10 * MS);
    for &stream in &late[1..] {
        process.end(stream, Outcome::Unmeasured);
    }
    let slots = process.gauge("slots");
    assert!((2..20).contains(&slots), "{slots}");
    // For a minute, one request runs at a time, and twenty wait.
    process.configure(&found(10));
    for n in 0..6_000 {
        while process.queued().len() < 20 {
            process.arrive(n % 2, "/");
            process.settle();
        }
        process.run_for(10 * MS);
        for stream in process.running() {
            process.end(stream, Outcome::Completed);
        }
        assert!(process.in_backend() <= 1);
        assert_eq!(process.gauge("slots"), slots, "after {n} turns");
    }
}

/// Answers that are late because requests waited for tokens give no information about slots.
#[test]
fn waits_for_tokens_close_no_open_law() {
    let config = config(4, |stage| {
        stage.auto_parallelism = Some(AutoParallelism { min: 2, max: 64 });
        stage.tokens = Some(budget(40));
        stage.queue.timeout_us = 60_000_000;
        stage.types[1].slo = vec![Objective {
            percentile: 90.0,
            objective_us: 150_000,
        }];
    });
    let mut process = Process::new(2, &config);
    for n in 0..2_000 {
        while process.queued().len() < 40 {
            process.arrive(n % 2, "/");
            process.settle();
        }
        process.run_for(20 * MS);
        for stream in process.running() {
            process.end(stream, Outcome::Completed);
        }
        // Each request waits until ten others have used its slot, for 200 ms.
        assert_eq!(process.in_backend(), 4, "after {n} turns");
    }
}

#[derive(Debug, Clone)]
enum Step {
    Arrive(usize, u32, u32),
    Write(usize, u32),
    End(usize, bool),
    Pass(u64),
    Tick,
    Die(usize),
    Edit(u32, Option<u32>),
}

fn steps() -> impl proptest::strategy::Strategy<Value = Vec<Step>> {
    let tokens = prop_oneof![8 => 1_u32..40, 1 => 90_u32..300];
    let step = prop_oneof![
        8 => (0_usize..3, tokens, prop_oneof![Just(0), 1_u32..100])
            .prop_map(|(worker, prompt, most)| Step::Arrive(worker, prompt, most)),
        4 => (any::<usize>(), 0_u32..150).prop_map(|(n, output)| Step::Write(n, output)),
        5 => (any::<usize>(), any::<bool>()).prop_map(|(n, answered)| Step::End(n, answered)),
        4 => (1_u64..5_000).prop_map(Step::Pass),
        1 => Just(Step::Tick),
        1 => (1_u32..8, prop::option::weighted(0.8, 20_u32..150))
            .prop_map(|(slots, tokens)| Step::Edit(slots, tokens)),
        1 => (0_usize..20).prop_map(Step::Die),
    ];
    prop::collection::vec(step, 1..120)
}

proptest! {
    /// After any steps, the tokens in use are those of the running requests. They exceed the budget
    /// only by outputs that are longer than expected. A request that is first and fits does not
    /// wait. At the end no tokens are in use.
    #[test]
    fn tokens_are_conserved_and_never_idle_beside_a_first_waiter_that_fits(steps in steps()) {
        let (mut slots, mut tokens) = (4, Some(100));
        let mut process = Process::new(3, &budgeted(slots, 100));
        process.learn_outputs();
        let mut asked: BTreeMap<u32, u32> = BTreeMap::new();
        for step in steps {
            let mut before = process.gauge("tokens_in_use");
            match step {
                Step::Arrive(worker, prompt, most) => {
                    let stream = process.arrive_with_output(worker, prompt, most);
                    asked.insert(stream, prompt + most);
                }
                Step::Write(n, output) => {
                    let all: Vec<u32> = process.requests.keys().copied().collect();
                    if !all.is_empty() {
                        process.writes(all[n % all.len()], output);
                        before = process.gauge("tokens_in_use");
                    }
                }
                Step::End(n, answered) => {
                    let all: Vec<u32> = process.requests.keys().copied().collect();
                    if !all.is_empty() {
                        let outcome = match answered {
                            true => Outcome::Completed,
                            false => Outcome::Abandoned,
                        };
                        process.finish(all[n % all.len()], outcome);
                    }
                }
                Step::Pass(micros) => process.pass_time(Duration::from_micros(micros)),
                Step::Tick => process.run_for(10 * MS),
                Step::Edit(new_slots, new_tokens) => {
                    (slots, tokens) = (new_slots, new_tokens);
                    process.configure(&match tokens {
                        Some(tokens) => budgeted(slots, tokens),
                        None => config(slots, |stage| stage.queue.timeout_us = 60_000_000),
                    });
                }
                // The requests of the worker are lost, and their slots and tokens are given back
                // when its lease ends.
                Step::Die(worker) if worker < 2 => {
                    process.workers[worker] = None;
                    process.requests.retain(|_, (at, _, _)| *at != worker);
                    process.run_for(Duration::from_secs(10));
                }
                Step::Die(_) => {}
            }
            process.settle();
            let in_use = process.gauge("tokens_in_use");
            prop_assert_eq!(in_use, held(&process));
            prop_assert_eq!(process.gauge("slots_in_use"), process.in_backend() as u64);
            let Some(most) = tokens else { continue };
            prop_assert!(in_use <= u64::from(most).max(before), "{in_use} of {most}");
            // The first waiter of one worker may overtake the first waiter of another within a
            // tolerance.
            let waiting = process.queued();
            let arrived = |stream: &u32| process.requests[stream].1;
            let first = waiting.iter().map(arrived).min();
            let are_first = waiting.iter()
                .filter(|stream| first.is_some_and(|at| arrived(stream) <= at + ORDER_TOLERANCE));
            // A request that arrived without a budget takes no tokens.
            let needed = are_first.map(|stream| u64::from(asked[stream].min(most))).max();
            prop_assert!(
                process.in_backend() >= slots as usize
                    || needed.is_none_or(|needed| in_use + needed > u64::from(most)),
                "{waiting:?} wait for {needed:?} with {in_use} of {most} in use"
            );
        }
        let all: Vec<u32> = process.requests.keys().copied().collect();
        for stream in all {
            process.end(stream, Outcome::Completed);
        }
        process.assert_nothing_booked();
    }
}
