//! The exchange of decisions between workers, for the sliding window of starvation avoidance.
//!
//! The allowances A, AR and AAR cover all requests of a type in the process. If each worker counted
//! only its own requests, each type would be admitted at least once per worker and window. For a
//! type with few requests per second that is many times the allowance. So each worker adds its
//! decisions to process-wide counters at every tick, and adds the other workers' decisions to its
//! own window. A worker's window includes its own decisions at once, and other workers' decisions a
//! tick (10 ms, the paper's Δ) later.

use headgate_strategies::host::HostError;
use headgate_strategies::request::TypeId;
use headgate_strategies::shared::Counter;
use headgate_strategies::time::Instant;
use headgate_strategies::window::Window;

use crate::config::StageConfig;
use crate::host::Host;

/// The number of types whose counters a worker reads at one tick. It reads the types in turn.
const READS: usize = 64;

#[derive(Debug)]
struct Decisions {
    received: Counter,
    accepted: Counter,
    /// The number of requests that other workers accepted and whose arrivals were not read yet.
    ahead: u64,
}

/// One worker's exchange of decisions with the other workers.
#[derive(Debug)]
pub(super) struct Exchange {
    rows: Vec<Decisions>,
    dirty: Vec<u16>,
    turn: usize,
}

impl Exchange {
    /// Creates the exchange. Returns `None` without starvation avoidance.
    pub(super) fn new(
        host: &impl Host,
        prefix: &str,
        config: &StageConfig,
    ) -> Result<Option<Self>, HostError> {
        if config.starvation_avoidance.is_none() {
            return Ok(None);
        }
        let row = |kind: &crate::config::TypeConfig| {
            let name = |what| format!("{prefix}.type.{}.window_{what}", kind.name);
            Ok(Decisions {
                received: Counter::new(host, &name("received"))?,
                accepted: Counter::new(host, &name("accepted"))?,
                ahead: 0,
            })
        };
        let rows = config
            .types
            .iter()
            .map(row)
            .collect::<Result<Vec<_>, HostError>>()?;
        Ok(Some(Self {
            dirty: Vec::with_capacity(rows.len()),
            rows,
            turn: 0,
        }))
    }

    /// Counts a decision of this worker.
    pub(super) fn count(&mut self, kind: TypeId, accepted: bool) {
        let row = &mut self.rows[kind.0 as usize];
        if row.received.fresh() == 0 {
            self.dirty.push(kind.0);
        }
        row.received.count(1);
        row.accepted.count(accepted.into());
    }

    /// Whether this worker has decisions that are not in the counters yet.
    pub(super) fn is_pending(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Adds this worker's decisions to the counters, and other workers' decisions to `window`.
    pub(super) fn run(
        &mut self,
        host: &impl Host,
        now: Instant,
        window: &mut Window,
    ) -> Result<(), HostError> {
        while let Some(&kind) = self.dirty.last() {
            // This worker's decisions are already in `window`.
            let row = &mut self.rows[kind as usize];
            row.accepted.publish(host)?;
            row.received.publish(host)?;
            self.dirty.pop();
        }
        for _ in 0..self.rows.len().min(READS) {
            self.turn = (self.turn + 1) % self.rows.len();
            let row = &mut self.rows[self.turn];
            row.ahead += row.accepted.others(host)?;
            let received = row.received.others(host)?;
            if received > 0 {
                let kind = TypeId(u16::try_from(self.turn).unwrap_or(u16::MAX));
                // The window must never have more accepted than received requests.
                let accepted = row.ahead.min(received);
                window.add(now, kind, received, accepted);
                row.ahead -= accepted;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::config::FilterConfig;
    use crate::memory::MemoryHost;

    fn config() -> StageConfig {
        let json = br#"{"stages":[{"policy":"ns/p","parallelism":1,
            "queue":{"max_length":1,"timeout_us":1},
            "strategy":{"type":"MaxQueueLength"},
            "starvation_avoidance":{"type":"AcceptanceAllowance","allowance":0.1,"window_us":1000000,"step_us":10000},
            "types":[{"name":"a","matches":[{"method":"GET"}]},{"name":"default"}]}]}"#;
        FilterConfig::from_json(json).unwrap().stages.remove(0)
    }

    #[test]
    fn every_worker_sees_all_decisions_once() {
        let host = MemoryHost::new();
        let kind = TypeId(0);
        let mut workers: Vec<(Exchange, Window)> = (0..3)
            .map(|_| {
                let exchange = Exchange::new(&host, "s", &config()).unwrap().unwrap();
                (
                    exchange,
                    Window::new(2, Duration::from_secs(1), Duration::from_millis(10)),
                )
            })
            .collect();
        let mut now = Instant::from_nanos(0);
        for n in 0..90 {
            now = now + Duration::from_millis(1);
            let (exchange, window) = &mut workers[n % 3];
            // Worker 0 accepts, the others reject.
            window.count(now, kind, n % 3 == 0);
            exchange.count(kind, n % 3 == 0);
            if n % 7 == 0 {
                for (exchange, window) in &mut workers {
                    exchange.run(&host, now, window).unwrap();
                }
            }
        }
        for _ in 0..2 {
            for (exchange, window) in &mut workers {
                exchange.run(&host, now, window).unwrap();
            }
        }
        for (_, window) in &workers {
            assert_eq!(window.acceptance_ratio(kind), Some(30.0 / 90.0));
        }
        // A worker that joins later starts with an empty window.
        let mut late = Exchange::new(&host, "s", &config()).unwrap().unwrap();
        let mut window = Window::new(2, Duration::from_secs(1), Duration::from_millis(10));
        late.run(&host, now, &mut window).unwrap();
        assert_eq!(window.acceptance_ratio(kind), None);
    }
}
