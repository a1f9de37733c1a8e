//! A workload as a source of requests.

use super::Workload;
use super::arrivals::{Clock, Pace};
use super::dice::Dice;
use crate::source::{Request, Source};

/// Requests of a workload's types at a pace.
#[derive(Debug)]
pub(crate) struct Traffic<'a> {
    workload: &'a Workload,
    dice: Dice,
    clock: Clock,
    next: Option<Request>,
}

impl<'a> Traffic<'a> {
    pub(crate) fn new(workload: &'a Workload, pace: Pace, seed: u64) -> Self {
        let mut dice = Dice::new(seed);
        let mut traffic = Self {
            workload,
            clock: Clock::new(workload.process, pace, &mut dice),
            dice,
            next: None,
        };
        traffic.next = traffic.draw();
        traffic
    }

    fn draw(&mut self) -> Option<Request> {
        let at = self.clock.next(&mut self.dice)?;
        Some(self.workload.request(at, &mut self.dice))
    }
}

impl Source for Traffic<'_> {
    fn peek(&self) -> Option<u64> {
        self.next.as_ref().map(|next| next.at)
    }

    fn take(&mut self) -> Option<Request> {
        let next = self.draw();
        std::mem::replace(&mut self.next, next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{LogNormal, Rate, ServiceTime, TypeLoad};
    use headgate_strategies::strategy::TypeId;

    #[test]
    fn traffic_has_the_rate_the_mix_and_the_service_times_that_were_asked_for() {
        let a = TypeLoad::new("a", TypeId(0), 3.0, LogNormal::new(2.0, 1.0).unwrap());
        let b = TypeLoad {
            cost: 5,
            ..TypeLoad::new("b", TypeId(0), 1.0, ServiceTime::Constant(8.0))
        };
        let workload = Workload::new(vec![a, b]).unwrap();
        assert!((workload.mean_ms() - 3.5).abs() < 1e-9);
        let rate = workload.per_second(Rate::Factor(1.5), 7);
        assert!((rate - 3_000.0).abs() < 1e-6);
        let mut traffic = workload.steady(rate, 1);
        let drawn: Vec<Request> = (0..200_000).filter_map(|_| traffic.take()).collect();
        assert!(drawn.is_sorted_by_key(|r| r.at));
        let seconds = drawn[drawn.len() - 1].at as f64 / 1e9;
        assert!((drawn.len() as f64 / seconds / rate - 1.0).abs() < 0.01);
        let of_a: Vec<f64> = drawn
            .iter()
            .filter(|r| r.kind == 0)
            .map(|r| r.processing as f64 / 1e6)
            .collect();
        assert!((of_a.len() as f64 / drawn.len() as f64 - 0.75).abs() < 0.01);
        assert!((of_a.iter().sum::<f64>() / of_a.len() as f64 - 2.0).abs() < 0.04);
        let costs_5 = |r: &Request| (r.processing, r.cost) == (8_000_000, 5);
        assert!(drawn.iter().all(|r| (r.kind == 1) == costs_5(r)));
    }
}
