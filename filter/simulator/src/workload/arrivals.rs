//! Arrival processes of requests.
//!
//! All processes run in a virtual time, in which one request arrives per unit on average. The rate,
//! which may change, maps this virtual time to seconds. So a Poisson process with a changing rate
//! is exact. A gap drawn at the old rate would instead extend from a calm phase into the burst
//! after it. The rate is piecewise constant: a constant, a sequence of phases, or the two states of
//! a Markov-modulated process, with exponential times in each state.

use std::time::Duration;

use headgate_strategies::time::nanos;
use rand_distr::{Distribution as _, Exp1};

use super::dice::Dice;

/// The distribution of the gaps between requests.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Process {
    /// Exponential gaps, as from many independent clients.
    #[default]
    Poisson,
    /// Equal gaps.
    Constant,
    /// Poisson at a rate that jumps between two values.
    Bursty(Bursts),
}

/// A two-state Markov-modulated Poisson process.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bursts {
    /// The rate in a burst divided by the rate outside, above 1.
    pub ratio: f64,
    /// The ratio of the time in bursts, between 0 and 1.
    pub share: f64,
    /// The mean length of a burst.
    pub length: Duration,
}

impl Bursts {
    /// Returns the rates outside of and in bursts, relative to the mean rate.
    fn rates(&self) -> (f64, f64) {
        let calm = 1.0 / (1.0 - self.share + self.ratio * self.share);
        (calm, calm * self.ratio)
    }

    /// Returns the mean length of the time between bursts, ns.
    fn calm_ns(&self) -> f64 {
        self.burst_ns() * (1.0 - self.share) / self.share
    }

    fn burst_ns(&self) -> f64 {
        nanos(self.length) as f64
    }
}

/// A rate over time: the lengths of phases, ns, and their rates, requests per second. No requests
/// arrive after the last phase.
pub(crate) type Pace = Vec<(u64, f64)>;

/// The state of an arrival process, which yields the arrival times.
#[derive(Debug)]
pub(super) struct Clock {
    process: Process,
    pace: Pace,
    /// The current time, ns.
    now: f64,
    phase: usize,
    /// The end of the phase, ns.
    phase_end: f64,
    in_burst: bool,
    /// The end of the burst or of the time between bursts, ns.
    state_end: f64,
    /// The current rate, requests per ns.
    rate: f64,
}

impl Clock {
    pub(super) fn new(process: Process, pace: Pace, dice: &mut Dice) -> Self {
        let mut clock = Self {
            process,
            now: 0.0,
            phase: 0,
            phase_end: pace.first().map_or(0.0, |(ns, _)| *ns as f64),
            pace,
            in_burst: false,
            state_end: f64::INFINITY,
            rate: 0.0,
        };
        if let Process::Bursty(bursts) = clock.process {
            // The initial state is stationary: in a burst with the probability `share`.
            clock.in_burst = dice.0.chance(bursts.share);
            clock.stay(&bursts, dice);
        }
        clock.rate = clock.rate_now();
        clock
    }

    /// Returns the next arrival time, ns since the start; `None` after the last phase.
    pub(super) fn next(&mut self, dice: &mut Dice) -> Option<u64> {
        let mut left: f64 = match self.process {
            Process::Constant => 1.0,
            Process::Poisson | Process::Bursty(_) => Exp1.sample(dice),
        };
        loop {
            let end = self.phase_end.min(self.state_end);
            let room = self.rate * (end - self.now);
            if left < room {
                self.now += left / self.rate;
                return Some(self.now as u64);
            }
            left -= room;
            self.now = end;
            if !self.change(dice) {
                return None;
            }
        }
    }

    /// Replaces the state or the phase that ends now by the next state or phase. Returns false
    /// after the last phase.
    fn change(&mut self, dice: &mut Dice) -> bool {
        if self.now >= self.state_end
            && let Process::Bursty(bursts) = self.process
        {
            self.in_burst = !self.in_burst;
            self.stay(&bursts, dice);
        }
        if self.now >= self.phase_end {
            self.phase += 1;
            let Some((ns, _)) = self.pace.get(self.phase) else {
                return false;
            };
            self.phase_end += *ns as f64;
        }
        self.rate = self.rate_now();
        true
    }

    fn stay(&mut self, bursts: &Bursts, dice: &mut Dice) {
        let mean = match self.in_burst {
            true => bursts.burst_ns(),
            false => bursts.calm_ns(),
        };
        let unit: f64 = Exp1.sample(dice);
        self.state_end = self.now + mean * unit;
    }

    fn rate_now(&self) -> f64 {
        let per_second = self.pace.get(self.phase).map_or(0.0, |(_, rate)| *rate);
        let factor = match self.process {
            Process::Poisson | Process::Constant => 1.0,
            Process::Bursty(bursts) => {
                let (calm, burst) = bursts.rates();
                if self.in_burst { burst } else { calm }
            }
        };
        per_second * factor / 1e9
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    fn arrivals(process: Process, pace: Pace, upto: u64) -> Vec<u64> {
        let mut dice = Dice::new(3);
        let mut clock = Clock::new(process, pace, &mut dice);
        let next = std::iter::from_fn(|| clock.next(&mut dice));
        next.take_while(|at| *at < upto).collect()
    }

    /// Returns the number of requests in each second.
    fn counts(arrivals: &[u64], seconds: usize) -> Vec<f64> {
        let mut counts = vec![0.0; seconds];
        for at in arrivals {
            counts[(at / S) as usize] += 1.0;
        }
        counts
    }

    /// Returns the ratio of the counts' variance to their mean: 1 for a Poisson process.
    fn dispersion(counts: &[f64]) -> f64 {
        let mean = counts.iter().sum::<f64>() / counts.len() as f64;
        let variance = counts.iter().map(|c| (c - mean).powi(2)).sum::<f64>();
        variance / counts.len() as f64 / mean
    }

    #[test]
    fn poisson_arrivals_vary_as_they_should_and_constant_ones_do_not() {
        let poisson = arrivals(Process::Poisson, vec![(u64::MAX, 100.0)], 4_000 * S);
        let of_poisson = counts(&poisson, 4_000);
        assert!((poisson.len() as f64 / 400_000.0 - 1.0).abs() < 0.01);
        assert!((dispersion(&of_poisson) - 1.0).abs() < 0.1);
        let constant = arrivals(Process::Constant, vec![(u64::MAX, 100.0)], 40 * S);
        assert!(
            constant
                .windows(2)
                .all(|w| (w[1] - w[0]).abs_diff(S / 100) <= 1)
        );
    }

    #[test]
    fn bursts_keep_the_mean_rate_and_spread_the_counts() {
        let bursts = Bursts {
            ratio: 9.0,
            share: 0.1,
            length: Duration::from_secs(2),
        };
        let (calm, burst) = bursts.rates();
        assert!((calm * 0.9 + burst * 0.1 - 1.0).abs() < 1e-12);
        let seconds = 20_000;
        let times = arrivals(
            Process::Bursty(bursts),
            vec![(u64::MAX, 100.0)],
            seconds * S,
        );
        let rate = times.len() as f64 / seconds as f64;
        assert!((rate / 100.0 - 1.0).abs() < 0.05, "{rate}");
        let counts = counts(&times, seconds as usize);
        assert!(dispersion(&counts) > 50.0);
        // The rate is 500/s in a burst and 56/s outside.
        let bursty = counts.iter().filter(|count| **count > 280.0).count() as f64;
        assert!((bursty / seconds as f64 - 0.1).abs() < 0.03, "{bursty}");
    }

    #[test]
    fn phases_follow_each_other_and_end() {
        let pace = vec![(100 * S, 50.0), (10 * S, 0.0), (100 * S, 200.0)];
        let times = arrivals(Process::Poisson, pace, u64::MAX);
        let between = |from: u64, to: u64| {
            let within = |at: &&u64| (from * S..to * S).contains(*at);
            times.iter().filter(within).count() as f64
        };
        assert!((between(0, 100) / 5_000.0 - 1.0).abs() < 0.06);
        assert_eq!(between(100, 110), 0.0);
        assert!((between(110, 210) / 20_000.0 - 1.0).abs() < 0.03);
        assert_eq!(times.len() as f64, between(0, 210));
    }

    #[test]
    fn a_change_of_rate_takes_effect_at_once() {
        // At the first phase's rate the next request would arrive after a day.
        let pace = vec![(S, 1e-5), (S, 1_000.0)];
        let times = arrivals(Process::Poisson, pace, u64::MAX);
        assert!((times.len() as f64 - 1_000.0).abs() < 100.0);
        assert!(times[0] - S < S / 10);
    }
}
