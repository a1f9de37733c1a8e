//! Clients of a workload. Each client waits for its answer, thinks, and sends the next request of
//! the mix.
//!
//! With smoothing, a client acts like Chronos' clients (§3.2, [`headgate_mesh::smoothing`]), or
//! like a client whose sidecar delays requests. The next request is delayed by the rejection rate
//! in the last answer.

use headgate_mesh::smoothing::Smoothing;
use headgate_strategies::time::nanos;

use super::{Behaviour, ClosedLoop, Wake};
use crate::source::{Answer, Request};
use crate::trial::Clients;
use crate::workload::Workload;
use crate::workload::dice::Dice;

/// The clients of a workload.
#[derive(Debug)]
pub(crate) struct Callers<'a> {
    workload: &'a Workload,
    think: u64,
    smoothing: Option<Smoothing>,
    dice: Dice,
}

impl<'a> Callers<'a> {
    /// Returns the closed loop of `clients`. Their first requests are spread over their think time.
    pub(crate) fn start(
        workload: &'a Workload,
        clients: &Clients,
        seed: u64,
    ) -> ClosedLoop<Callers<'a>> {
        let mut callers = Self {
            workload,
            think: nanos(clients.think),
            smoothing: clients.smoothing,
            dice: Dice::new(seed),
        };
        let start = |_| (callers.dice.unit() * callers.think as f64) as u64;
        let starts: Vec<u64> = (0..clients.count).map(start).collect();
        ClosedLoop::new(callers, starts)
    }
}

impl Behaviour for Callers<'_> {
    fn wake(&mut self, client: u32, at: u64) -> Wake {
        Wake::Send(Request {
            client,
            ..self.workload.request(at, &mut self.dice)
        })
    }

    fn answered(&mut self, _: &Request, at: u64, answer: Answer) -> u64 {
        let smoothing = self.smoothing.as_ref();
        let delay = smoothing.map_or(0, |s| self.dice.smoothed(s, answer.rejection_rate));
        at + self.think + delay
    }
}
