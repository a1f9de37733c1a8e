//! Tests of types with more requests than are measured.

use std::collections::VecDeque;

use headgate_strategies::request::TypeId;

use super::broken::{arrive_at, by_value, held};
use super::*;
use crate::config::AutoParallelism;

const TICK: Duration = Duration::from_millis(10);

/// The requests of the busy type that were sent, with the ticks in which they end.
#[derive(Default)]
struct Load {
    prompt: VecDeque<(u64, u32)>,
    slow: VecDeque<(u64, u32)>,
    tick: u64,
    sent: u64,
}

impl Load {
    /// For `ticks`, sends `count` requests per tick. One in `every` is slow: it ends after `slow`
    /// ticks with `outcome`. The others are answered after two ticks.
    fn run(
        &mut self,
        process: &mut Process,
        (ticks, count): (u64, u64),
        every: u64,
        (slow, outcome): (u64, Outcome),
    ) {
        for _ in 0..ticks {
            for _ in 0..count {
                let stream = process.arrive(0, "/");
                self.sent += 1;
                match self.sent.is_multiple_of(every) {
                    true => self.slow.push_back((self.tick + slow, stream)),
                    false => self.prompt.push_back((self.tick + 2, stream)),
                }
            }
            process.run_for(TICK);
            self.tick += 1;
            let ends = [
                (&mut self.prompt, Outcome::Completed),
                (&mut self.slow, outcome),
            ];
            for (ends, outcome) in ends {
                while let Some((_, stream)) = ends.pop_front_if(|(end, _)| *end <= self.tick) {
                    process.finish(stream, outcome);
                }
            }
        }
    }
}

/// Sets an objective for the p90 of the busy type.
fn with_objective(stage: &mut StageConfig, ms: u64) {
    stage.types[1].slo = vec![Objective {
        percentile: 90.0,
        objective_us: ms * 1_000,
    }];
}

/// 9% of the requests of the busy type miss its last objective, a p90. If the type were broken, the
/// other type, which is worth more per slot time, would be protected from it.
#[test]
fn a_busy_type_that_meets_its_objectives_is_not_broken() {
    for outcome in [Outcome::Completed, Outcome::Failed, Outcome::Abandoned] {
        let mut process = Process::new(1, &by_value(2_000));
        let mut load = Load::default();
        for _ in 0..50 {
            let other = process.arrive(0, "/slow");
            process.pass_time(Duration::from_millis(2));
            process.finish(other, Outcome::Completed);
            load.run(&mut process, (10, 160), 11, (70, outcome));
        }
        assert_eq!(process.refused, [], "{outcome:?}");
    }
}

/// Most timeouts of a busy type are those of requests that aren't measured.
#[test]
fn timeouts_of_a_busy_type_do_not_hide_a_host_that_hangs() {
    let mut process = Process::new(1, &by_value(2_000));
    Load::default().run(&mut process, (500, 40), 1_000, (100, Outcome::Failed));
    let (slots, _) = held(&process);
    arrive_at(&mut process, 0, 0);
    for _ in 0..100 {
        let stream = arrive_at(&mut process, 0, 1);
        process.run_for(TICK);
        process.finish(stream, Outcome::Completed);
    }
    assert_eq!(held(&process), (slots, 1));
}

#[test]
fn a_busy_type_that_meets_its_objectives_is_not_limited() {
    let config = config(4, |stage| {
        stage.auto_parallelism = Some(AutoParallelism { min: 2, max: 2_000 });
        with_objective(stage, 150);
    });
    for (every, is_unlimited) in [(11, true), (2, false)] {
        let mut process = Process::new(1, &config);
        let mut load = Load::default();
        load.run(&mut process, (200, 1), 11, (2, Outcome::Completed));
        load.run(&mut process, (300, 40), every, (20, Outcome::Completed));
        assert_eq!(
            process.stage(0).is_unlimited(),
            is_unlimited,
            "1 in {every}"
        );
    }
}

/// 9% of the clients leave after the objective, and the answers to the others are in time.
#[test]
fn clients_that_leave_a_busy_type_count_as_its_answers_do() {
    let config = config(2_000, |stage| with_objective(stage, 300));
    let mut process = Process::new(1, &config);
    Load::default().run(&mut process, (300, 80), 11, (40, Outcome::Abandoned));
    let p90 = process
        .stage(0)
        .service_times()
        .estimate(TypeId(1))
        .quantiles[0];
    assert!(p90 < 3 * TICK, "{p90:?}");
}
