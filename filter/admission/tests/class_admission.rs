//! Tests of distributed class admission with the default constants and targets on the time scale of
//! HTTP. They measure the resulting percentile, the share of each sender and the time to recover.
//! The simulated time is hours, which is too long for a test in Envoy.

// Clippy doesn't recognize helpers outside of `#[test]` functions as test code.
#![allow(clippy::unwrap_used)]

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use headgate_admission::{ChannelLaw, Completion, Distributed, Limits, Settings};
use headgate_strategies::request::ClassId;
use headgate_strategies::rng::Rng;
use headgate_strategies::time::Instant;

const HIGH: ClassId = ClassId(0);
const TARGET: Duration = Duration::from_millis(100);
const SECOND: u64 = 1_000_000_000;

fn law() -> ChannelLaw {
    let settings = Settings {
        percentile: 99.0,
        ..Settings::new(vec![100_000])
    };
    ChannelLaw::try_from(settings).unwrap()
}

/// The outcomes of the calls to the class in the second half of the run.
struct Seen {
    /// The rate of each sender's calls that ran in the class, calls/s.
    rates: Vec<f64>,
    /// The ratio of each sender's calls that ran in the class to those that requested it.
    kept: Vec<f64>,
    /// The ratio of calls in the class that missed.
    missed: f64,
}

/// Runs one sender for each rate in `demand`, calls/s. The senders share the class's part of a
/// receiver, `room` calls/s, in the order of arrival.
fn run(demand: &[f64], room: f64, seconds: u64) -> Seen {
    let mut rng = Rng::new(7);
    let mut senders: Vec<_> = demand
        .iter()
        .map(|_| Distributed::new(law(), Limits::default()))
        .collect();
    let gap = |rng: &mut Rng, rate: f64| (-(1.0 - rng.next_f64()).ln() / rate * 1e9) as u64;
    // The arrivals, and the completions with their waits, by time.
    let mut events = BinaryHeap::new();
    for (sender, rate) in demand.iter().enumerate() {
        events.push(Reverse((gap(&mut rng, *rate), sender, None)));
    }
    let (work, mut free) = ((1e9 / room) as u64, 0);
    let mut asked = vec![0.0; demand.len()];
    let mut ran = vec![0.0; demand.len()];
    let mut missed = 0.0;
    while let Some(Reverse((at, sender, waited))) = events.pop() {
        let counts = at > seconds * SECOND / 2;
        let now = Instant::from_nanos(at);
        let Some(waited) = waited else {
            if at < seconds * SECOND {
                events.push(Reverse((at + gap(&mut rng, demand[sender]), sender, None)));
            }
            asked[sender] += f64::from(u8::from(counts));
            if senders[sender].class_for(now, 0, HIGH, &mut rng) == HIGH {
                let begin = free.max(at);
                free = begin + work;
                events.push(Reverse((free, sender, Some(begin - at))));
            }
            continue;
        };
        let call = Completion {
            class: HIGH,
            latency: Duration::from_nanos(waited),
            size: 1,
        };
        senders[sender].completed(now, 0, &call);
        if counts {
            ran[sender] += 1.0;
            missed += f64::from(u8::from(law().missed(&call)));
        }
    }
    Seen {
        rates: ran.iter().map(|n| n / (seconds as f64 / 2.0)).collect(),
        kept: ran
            .iter()
            .zip(&asked)
            .map(|(ran, asked)| ran / asked)
            .collect(),
        missed: missed / ran.iter().sum::<f64>(),
    }
}

/// Returns the ratio of misses at which the probability of a sender with `rate` calls/s in the
/// class is in balance.
fn due(rate: f64) -> f64 {
    1.0 - law().percentile(rate * law().window(HIGH).as_secs_f64()) / 100.0
}

#[test]
fn the_target_holds_and_senders_share_alike_whatever_they_ask_for() {
    let seen = run(&[20.0, 300.0, 150.0], 178.0, 14_400);
    println!("{:?} {:?} {}", seen.rates, seen.kept, seen.missed);
    assert!(seen.missed < 0.01, "{}", seen.missed);
    assert!(seen.kept[0] > 0.97, "{:?}", seen.kept);
    let [_, more, less] = seen.rates[..] else {
        unreachable!()
    };
    assert!((more / less - 1.0).abs() < 0.2, "{:?}", seen.rates);
    assert!(
        (seen.missed / due(more) - 1.0).abs() < 0.3,
        "{}",
        seen.missed
    );
}

/// All rates are a tenth of those in the test above, so a window has too few calls for its
/// percentile.
#[test]
fn with_few_calls_more_of_them_miss() {
    let seen = run(&[2.0, 30.0, 15.0], 17.8, 144_000);
    println!("{:?} {:?} {}", seen.rates, seen.kept, seen.missed);
    assert!(seen.missed > 0.02, "{}", seen.missed);
    assert!(
        (seen.missed / due(seen.rates[1]) - 1.0).abs() < 0.4,
        "{}",
        seen.missed
    );
    assert!(seen.kept[0] > 0.9, "{:?}", seen.kept);
}

#[test]
fn from_the_least_probability_it_takes_ninety_windows() {
    let mut sender = Distributed::new(law(), Limits::default());
    let call = |latency| Completion {
        class: HIGH,
        latency,
        size: 1,
    };
    for _ in 0..99 {
        sender.completed(Instant::default(), 0, &call(TARGET * 2));
    }
    let mut tenths = 0;
    while sender.probability(Instant::from_nanos(tenths * SECOND / 10), 0, HIGH) < 1.0 {
        tenths += 1;
        sender.completed(Instant::from_nanos(tenths * SECOND / 10), 0, &call(TARGET));
    }
    let recovery = law().recovery(HIGH);
    assert_eq!(recovery, Duration::from_secs(900));
    // Each window ends with the first call after it.
    assert!(
        (recovery..recovery + Duration::from_secs(10))
            .contains(&Duration::from_millis(100 * tenths))
    );
}
