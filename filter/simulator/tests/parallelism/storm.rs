//! A retry storm and the end of a spike, with P found.

use std::collections::VecDeque;
use std::time::Duration;

use headgate_simulator::{Answer, Ending, Request, Run, Source, Until};
use headgate_strategies::strategy::TypeId;

use crate::SLEEP;
use crate::service::paced::Paced;
use crate::service::{Kind, PAPER_NATURAL, SECOND, Service};

/// Requests of a constant service time.
const CHEAP: &[Kind] = &[("fast", 1.0, 20.0, 20.0, [50, 150])];
/// Time between an answer and the retry.
const ROUND_TRIP: u64 = SECOND / 1_000;

/// Clients that repeat requests which were refused, failed or answered after `patience`, ns, up to
/// `retries` times.
struct Clients<'a, S> {
    inner: S,
    /// The part of the requests of `inner` that is sent at this time.
    kept: &'a dyn Fn(u64) -> f64,
    part: f64,
    patience: u64,
    retries: u32,
    limits: Vec<u64>,
    again: VecDeque<Request>,
    /// The time of each attempt, ns, whether the attempt was answered in time, and whether it was
    /// refused.
    seen: Vec<(u64, bool, bool)>,
}

impl<S: Source> Clients<'_, S> {
    fn skip(&mut self) {
        while let Some(at) = self.inner.peek() {
            self.part += (self.kept)(at);
            if self.part >= 1.0 {
                self.part -= 1.0;
                return;
            }
            self.inner.take();
        }
    }

    fn repeats(&self) -> bool {
        let first = self.inner.peek();
        (self.again.front()).is_some_and(|retry| first.is_none_or(|first| retry.at <= first))
    }
}

impl<S: Source> Source for Clients<'_, S> {
    fn peek(&self) -> Option<u64> {
        let retry = self.again.front().filter(|_| self.repeats());
        retry.map(|retry| retry.at).or_else(|| self.inner.peek())
    }

    fn take(&mut self) -> Option<Request> {
        if self.repeats() {
            return self.again.pop_front();
        }
        let taken = self.inner.take();
        self.skip();
        taken.map(|request| Request {
            client: 1,
            ..request
        })
    }

    fn answered(&mut self, request: &Request, at: u64, answer: Answer) {
        let (time, served) = (at - request.at, answer.ending == Ending::Served);
        let in_time = served && time <= self.limits[request.kind];
        let refused = answer.ending == Ending::Refused;
        self.seen.push((request.at, in_time, refused));
        if (!served || time > self.patience) && request.client <= self.retries {
            self.again.push_back(Request {
                at: at + ROUND_TRIP,
                client: request.client + 1,
                is_retry: true,
                ..*request
            });
        }
    }
}

/// Runs the service with these clients. `kept` is relative to the service's load.
fn run(
    service: &Service,
    slots: Option<u32>,
    (patience, retries): (Duration, u32),
    kept: &dyn Fn(u64) -> f64,
    backend: Paced,
) -> Vec<(u64, bool, bool)> {
    let workload = service.workload();
    let kinds: Vec<TypeId> = workload.types().iter().map(|kind| kind.kind).collect();
    let stage = service.stage(slots);
    let run = Run {
        stage: &stage,
        kinds: &kinds,
        warm_up: Duration::ZERO,
        until: Until::Time(Duration::from_secs(service.seconds)),
        seed: !service.seed,
    };
    let mut clients = Clients {
        inner: workload.steady(service.per_second(), service.seed),
        kept,
        part: 0.0,
        patience: patience.as_nanos() as u64,
        retries,
        limits: service
            .kinds
            .iter()
            .map(|kind| kind.4[1] * 1_000_000)
            .collect(),
        again: VecDeque::new(),
        seen: Vec::new(),
    };
    clients.skip();
    run.with(&mut clients, backend).unwrap();
    clients.seen
}

fn per_second(seen: &[(u64, bool, bool)], seconds: u64) -> Vec<u32> {
    let mut good = vec![0; seconds as usize];
    for &(at, in_time, _) in seen {
        if let Some(good) = good.get_mut((at / SECOND) as usize) {
            *good += u32::from(in_time);
        }
    }
    good
}

/// Half of eight workers stop from the fifth to the tenth second, at 0.8 of the capacity. Clients
/// send requests again that were refused or answered after 0.5 s, up to three times. The means over
/// 24 seeds are 184 of 200/s with P found and 196 with P given.
///
/// Of the 200 answers that are possible, the seconds of the stop have 160, 196, 193, 180 and 188.
/// In the fourth and fifth of these seconds, slots are free while requests are refused by value.
/// The reason is that the demanded slots follow the mean slot time of the second before, in which
/// all slots were in use.
#[test]
fn half_of_the_workers_stop_in_a_retry_storm() {
    let during = |slots: Option<u32>| {
        let of = |seed| {
            let service = Service {
                load: 0.8,
                seconds: 12,
                seed,
                shed_by_value: true,
                ..Service::new(CHEAP, 8, SLEEP, 8.0)
            };
            let halved = [(5 * SECOND, 0.5), (10 * SECOND, 2.0)];
            let backend = Paced::new(service.network(), &[], &halved);
            let clients = (Duration::from_millis(500), 3);
            let good = per_second(&run(&service, slots, clients, &|_| 1.0, backend), 12);
            f64::from(good[5..10].iter().sum::<u32>()) / 5.0
        };
        (0..24).map(of).sum::<f64>() / 24.0
    };
    let (found, given) = (during(None), during(Some(8)));
    println!("{found:.0}/s of 200, {given:.0}/s with P given");
    assert!(found >= 182.0, "{found:.0}/s with P found");
    assert!(given >= 194.0, "{given:.0}/s with P given");
}

/// An overload ends, and P rests at the capacity of 8 workers. Then 32 workers serve 0.8 of their
/// capacity without a limit, until a second overload. In its first 4 s, the means over 8 seeds are
/// 1,482/s with P found and 1,568/s with P given.
#[test]
fn a_backend_that_grew_while_nothing_was_limited_is_used_in_the_next_overload() {
    let during = |slots: Option<u32>| {
        let of = |seed| {
            let service = Service {
                load: 6.0,
                seconds: 46,
                seed,
                shed_by_value: true,
                ..Service::new(PAPER_NATURAL, 8, SLEEP, 8.0)
            };
            let load = |at: u64| match at / SECOND {
                0..20 => 1.5,
                20..30 => 0.3,
                30..42 => 3.2,
                _ => 6.0,
            };
            let backend = Paced::new(service.network(), &[], &[(25 * SECOND, 4.0)]);
            let kept = |at| load(at) / service.load;
            let good = per_second(
                &run(&service, slots, (Duration::MAX, 0), &kept, backend),
                46,
            );
            f64::from(good[42..46].iter().sum::<u32>()) / 4.0
        };
        (0..8).map(of).sum::<f64>() / 8.0
    };
    let (found, given) = (during(None), during(Some(32)));
    println!("{found:.0}/s, {given:.0}/s with P given");
    assert!(
        found >= 0.9 * given,
        "{found:.0}/s, {given:.0}/s with P given"
    );
}

/// The load is three times the capacity for 5 s, and 0.8 of the capacity before and after. The
/// table shows the goodput, and the time from the end of the spike until hardly a request is
/// refused for 0.5 s, with the refusals per 0.1 s.
#[test]
#[ignore = "prints a table"]
fn spikes() {
    let show = |slots: Option<u32>, seeds: std::ops::Range<u64>| {
        let (mut ends, mut goods) = (0.0, 0.0);
        let count = (seeds.end - seeds.start) as f64;
        for seed in seeds {
            let service = Service {
                load: 3.0,
                seconds: 20,
                seed,
                shed_by_value: true,
                ..Service::new(PAPER_NATURAL, 16, SLEEP, 16.0)
            };
            let spike = 5 * SECOND..10 * SECOND;
            let kept = |at: u64| if spike.contains(&at) { 1.0 } else { 0.8 / 3.0 };
            let backend = Paced::new(service.network(), &[], &[]);
            let seen = run(&service, slots, (Duration::MAX, 0), &kept, backend);
            let tenths: Vec<(u32, u32)> = (95..200)
                .map(|tenth| {
                    let of = |seen: &&(u64, bool, bool)| {
                        (tenth * SECOND / 10..(tenth + 1) * SECOND / 10).contains(&seen.0)
                    };
                    let all = seen.iter().filter(of);
                    (
                        all.clone().count() as u32,
                        all.filter(|seen| seen.2).count() as u32,
                    )
                })
                .collect();
            let end = (5..100)
                .find(|&from| {
                    let (sent, refused) = tenths[from..from + 5]
                        .iter()
                        .fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
                    f64::from(refused) <= 0.005 * f64::from(sent)
                })
                .map_or(10.0, |from| (from - 5) as f64 / 10.0);
            let good = per_second(&seen, 20);
            let during = f64::from(good[5..10].iter().sum::<u32>()) / 5.0;
            ends += end;
            goods += during;
            let refused: Vec<u32> = tenths.iter().map(|of| of.1).take(45).collect();
            println!(
                "P {slots:?} seed {seed} {during:.0} refusals end {end:.1} s {refused:?} {good:?}"
            );
        }
        println!(
            "P {slots:?}: {:.0}/s, refusals end after {:.2} s",
            goods / count,
            ends / count
        );
    };
    show(Some(16), 0..8);
    show(None, 0..16);
}
