//! The client threads that load the database in Chronos (§5.1), and the samples of the server's
//! monitor.
//!
//! Each of m threads sends a request, waits for the answer or the busy message, and sends the next
//! request after an inter-request time. The range of inter-request times changes during the
//! experiment. A request's size in data accesses follows §3.1. With smoothing (§3.2, FC-TS), a
//! thread that received the rejection rate p waits longer, with probability p, and the additional
//! time counts as part of its service delay.
//!
//! Portfolios have constant sizes, because purchases and sales balance over an experiment.

use headgate_mesh::smoothing::Smoothing;

use super::{Behaviour, Wake};
use crate::source::{Answer, Ending, Request};
use crate::workload::dice::Dice;

/// Transactions, in the order of [`Request::kind`].
pub const TRANSACTIONS: [&str; 4] = ["view-stock", "view-portfolio", "purchase", "sale"];
/// The ratios of the transactions (§5.1): 60% stock prices, and equal parts of the other three.
const SHARES: [f64; 4] = [0.6, 0.4 / 3.0, 0.4 / 3.0, 0.4 / 3.0];

/// A span of the run with one range of inter-request times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Phase {
    /// The start, ns since the start of the run.
    pub from: u64,
    /// The shortest and the longest inter-request time, ns.
    pub think: (u64, u64),
}

/// The parameters of the threads.
#[derive(Debug, Clone, PartialEq)]
pub struct Habits {
    /// m, the number of threads.
    pub threads: u32,
    /// The phases in ascending order; the first starts at 0.
    pub phases: Vec<Phase>,
    /// The range of the delay for smoothing (t_a, t_b); `None` for no smoothing.
    pub smoothing: Option<Smoothing>,
    /// The maximum number of companies in a stock query; n_c is between 1 and this number.
    pub companies: u32,
    /// The maximum number of items in a portfolio; the minimum is 1.
    pub portfolio: u32,
    /// The work of one data access, ns.
    pub access: f64,
}

/// The measurements of one sampling period.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Sample {
    /// Requests served.
    pub served: u32,
    /// Requests refused or failed.
    pub refused: u32,
    /// Σ of the service delays of the requests served, s.
    pub delay: f64,
    /// Data accesses of the requests served.
    pub data: u64,
    /// Data accesses of the requests served within the target.
    pub timely: u64,
    /// d(k): data accesses of requests in the queue at the end of the period (Eq. 2).
    pub backlog: u64,
}

impl Sample {
    /// Returns s(k), s; `None` if no request was served.
    pub fn mean_delay(&self) -> Option<f64> {
        (self.served > 0).then(|| self.delay / f64::from(self.served))
    }
}

/// The client threads of a database, with the samples of the server's monitor.
#[derive(Debug)]
pub struct Threads<'a> {
    habits: &'a Habits,
    /// The number of items in each thread's portfolio.
    portfolios: Vec<u32>,
    /// The time at which each thread would have sent its request without smoothing.
    begun: Vec<u64>,
    dice: Dice,
    period: u64,
    timely_within: u64,
    backlog: u64,
    samples: Vec<Sample>,
}

impl<'a> Threads<'a> {
    /// Returns threads that are sampled every `period` ns. An answer is timely within
    /// `timely_within` ns.
    pub fn new(habits: &'a Habits, period: u64, timely_within: u64, seed: u64) -> Self {
        let mut dice = Dice::new(seed);
        let portfolios = (0..habits.threads)
            .map(|_| dice.up_to(habits.portfolio))
            .collect();
        Self {
            habits,
            portfolios,
            begun: vec![0; habits.threads as usize],
            dice,
            period: period.max(1),
            timely_within,
            backlog: 0,
            samples: vec![Sample::default()],
        }
    }

    /// Returns the start times of the threads, spread over their first inter-request time.
    #[must_use]
    pub fn starts(&mut self) -> Vec<u64> {
        let longest = self.think(0).1;
        let dice = &mut self.dice;
        for begun in &mut self.begun {
            *begun = dice.between((0, longest));
        }
        self.begun.clone()
    }

    /// Returns the samples, period by period.
    pub fn samples(&self) -> &[Sample] {
        &self.samples
    }

    fn think(&self, at: u64) -> (u64, u64) {
        let phases = self.habits.phases.iter();
        let current = phases.take_while(|phase| phase.from <= at).last();
        current.map_or((0, 0), |phase| phase.think)
    }

    /// Returns the sample of the period that contains `at`.
    fn sample(&mut self, at: u64) -> &mut Sample {
        let period = (at / self.period) as usize;
        while self.samples.len() <= period {
            if let Some(last) = self.samples.last_mut() {
                last.backlog = self.backlog;
            }
            self.samples.push(Sample::default());
        }
        &mut self.samples[period]
    }

    /// Returns the size of a request (n_i, §3.1), data accesses.
    fn cost(&mut self, kind: usize, client: usize) -> u32 {
        let portfolio = self.portfolios[client];
        match kind {
            0 => 2 * self.dice.up_to(self.habits.companies),
            1 => 2 * portfolio,
            2 => 1 + (portfolio + 1),
            _ => portfolio + 2 * self.dice.up_to(portfolio),
        }
    }

    fn left_queue(&mut self, request: &Request, at: u64) {
        self.sample(at);
        self.backlog = self.backlog.saturating_sub(u64::from(request.cost));
    }
}

impl Behaviour for Threads<'_> {
    fn wake(&mut self, client: u32, at: u64) -> Wake {
        let kind = self.dice.index(&SHARES);
        let cost = self.cost(kind, client as usize);
        self.sample(at);
        self.backlog += u64::from(cost);
        let work = f64::from(cost) * self.habits.access;
        Wake::Send(Request {
            client,
            cost,
            ..Request::new(at, kind, work as u64)
        })
    }

    fn forwarded(&mut self, request: &Request, at: u64) {
        self.left_queue(request, at);
    }

    fn answered(&mut self, request: &Request, at: u64, answer: Answer) -> u64 {
        let client = request.client as usize;
        let delay = at.saturating_sub(self.begun[client]);
        let timely = delay <= self.timely_within;
        match answer.ending {
            Ending::Served => {
                let cost = u64::from(request.cost);
                let sample = self.sample(at);
                sample.served += 1;
                sample.delay += delay as f64 / 1e9;
                sample.data += cost;
                sample.timely += if timely { cost } else { 0 };
            }
            Ending::Refused | Ending::Failed => {
                self.left_queue(request, at);
                self.sample(at).refused += 1;
            }
        }
        let think = self.think(at);
        let next = at + self.dice.between(think);
        self.begun[client] = next;
        let smoothing = self.habits.smoothing.as_ref();
        next + smoothing.map_or(0, |s| self.dice.smoothed(s, answer.rejection_rate))
    }
}
