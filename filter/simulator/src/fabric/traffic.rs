//! The times and the classes of calls between hosts.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use headgate_strategies::rng::Rng;

use super::{Pattern, Setup};

/// A call that a host makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Arrival {
    /// The time of the call, ps.
    pub(super) at: u64,
    pub(super) source: u16,
    pub(super) destination: u16,
    /// The class that the call requests.
    pub(super) wanted: u8,
}

/// Calls of all pairs, in the order of their times.
#[derive(Debug)]
pub(super) struct Traffic {
    pairs: Vec<Pair>,
    next: BinaryHeap<Reverse<(u64, usize)>>,
    burst: Option<Burst>,
}

#[derive(Debug, Clone, Copy)]
struct Burst {
    calls: u32,
    idle: f64,
}

#[derive(Debug)]
struct Pair {
    source: u16,
    destination: u16,
    /// The mean time between calls, ps. With bursts, this is the mean within a burst.
    mean: f64,
    /// Cumulative probabilities of the classes.
    up_to: Vec<f64>,
    /// The start of the burst, ps, and the number of calls in the burst so far.
    burst: (u64, u32),
    rng: Rng,
}

impl Traffic {
    /// Returns the calls of `setup`. `call` is the time of a call's packets on a link, ps.
    pub(super) fn new(setup: &Setup, call: u64, seed: u64) -> Self {
        let hosts = setup.hosts;
        let mut seeds = Rng::new(seed);
        let receivers = f64::from(hosts.saturating_sub(1).max(1));
        let (mean, burst) = match setup.pattern {
            Pattern::AllToAll { burst, calls, idle } => {
                (call as f64 * receivers / burst, Some(Burst { calls, idle }))
            }
            Pattern::Incast { load } => (call as f64 / load, None),
        };
        let calls = |source: u16, destination: u16| match setup.pattern {
            Pattern::AllToAll { .. } => source != destination,
            Pattern::Incast { .. } => destination == hosts - 1 && source != destination,
        };
        let mut pairs = Vec::new();
        for source in 0..hosts {
            for destination in (0..hosts).filter(|d| calls(source, *d)) {
                let last = setup.mixes.len().saturating_sub(1);
                let mix = setup.mixes.get(usize::from(source).min(last));
                let mut sum = 0.0;
                let up_to = mix.into_iter().flatten().map(|percent| {
                    sum += percent / 100.0;
                    sum
                });
                pairs.push(Pair {
                    source,
                    destination,
                    mean,
                    up_to: up_to.collect(),
                    burst: (0, 0),
                    rng: Rng::new(seeds.next_u64()),
                });
            }
        }
        let first = |(at, pair): (usize, &mut Pair)| Reverse((pair.gap(), at));
        let next = pairs.iter_mut().enumerate().map(first).collect();
        Self { pairs, next, burst }
    }

    /// Returns the time of the next call, ps.
    pub(super) fn peek(&self) -> Option<u64> {
        self.next.peek().map(|Reverse((at, _))| *at)
    }

    pub(super) fn next(&mut self) -> Option<Arrival> {
        let mut first = self.next.peek_mut()?;
        let Reverse((at, number)) = *first;
        let pair = self.pairs.get_mut(number)?;
        let arrival = Arrival {
            at,
            source: pair.source,
            destination: pair.destination,
            wanted: pair.class(),
        };
        *first = Reverse((pair.after(at, self.burst), number));
        Some(arrival)
    }
}

impl Pair {
    /// Draws an exponential time, ps.
    fn gap(&mut self) -> u64 {
        (-(1.0 - self.rng.next_f64()).ln() * self.mean) as u64
    }

    fn class(&mut self) -> u8 {
        let drawn = self.rng.next_f64();
        let classes = self.up_to.len().saturating_sub(1);
        let class = self.up_to.iter().position(|up_to| drawn < *up_to);
        class.unwrap_or(classes) as u8
    }

    /// Returns the time of the call that follows the call at `at`.
    fn after(&mut self, at: u64, burst: Option<Burst>) -> u64 {
        let next = at + self.gap();
        let Some(burst) = burst else {
            return next;
        };
        self.burst.1 += 1;
        if self.burst.1 < burst.calls {
            return next;
        }
        let idle = (at - self.burst.0) as f64 * burst.idle;
        self.burst = (at + idle as u64, 0);
        next + idle as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::fabric::{all_to_all, incast};

    fn calls(setup: &Setup, until: u64) -> Vec<Arrival> {
        let mut traffic = Traffic::new(setup, 2_643_840, 1);
        let calls = std::iter::from_fn(|| traffic.next());
        calls.take_while(|call| call.at < until).collect()
    }

    fn is_about(count: usize, expected: f64) {
        let apart = (count as f64 / expected - 1.0).abs();
        assert!(apart < 0.02, "{count} for {expected}");
    }

    #[test]
    fn rates_and_mixes_are_those_of_the_setups() {
        let (ms, class) = (1_000_000_000, |n| move |call: &&Arrival| call.wanted == n);
        let all = calls(&all_to_all(), 20 * ms);
        // Each host's calls have a load of 0.8 of 100 Gb/s: 302.6 calls/ms.
        is_about(all.len(), 20.0 * 302.6 * f64::from(all_to_all().hosts));
        is_about(all.iter().filter(class(0)).count(), 0.6 * all.len() as f64);
        is_about(all.iter().filter(class(1)).count(), 0.3 * all.len() as f64);
        assert!(all.is_sorted_by_key(|call| call.at));
        assert!(all.iter().all(|call| call.source != call.destination));

        let all = calls(&incast(), 200 * ms);
        let of = |source, wanted| {
            let wanted = |c: &&Arrival| c.source == source && c.wanted == wanted;
            all.iter().filter(wanted).count()
        };
        is_about(of(0, 0), 200.0 * 37.82);
        is_about(of(1, 0), 200.0 * 264.8);
        is_about(of(1, 1), 200.0 * 113.5);
        assert!(all.iter().all(|call| call.destination == 2));
    }
}
