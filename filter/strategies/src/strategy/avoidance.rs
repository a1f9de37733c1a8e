//! Starvation avoidance. It overrides some refusals of the base strategy, so that no type is
//! refused entirely (Bouncer §4).
//!
//! Both rules compare acceptance ratios over one sliding [`Window`] of decisions. The allowances A,
//! AR and AAR cover all requests of a type in the process. If each worker counted only its own
//! requests, each type would be admitted at least once per worker and window. For a type with few
//! requests per second that is many times the allowance. So each worker adds its decisions to
//! process-wide counters at every tick, and adds the other workers' decisions to its own window. A
//! worker's window includes its own decisions at once, and other workers' decisions a tick (10 ms,
//! the paper's Δ) later.
//!
//! The base decides first. Avoidance doesn't change acceptances. It overrides only refusals because
//! of objectives. Refusals because of limits, such as a full queue, stand.

use std::time::Duration;

use super::{AcceptanceAllowance, HelpingTheUnderserved};
use crate::config::{StageConfig, StarvationAvoidance, TypeConfig};
use crate::host::{HostError, Shared};
use crate::reason::Reason;
use crate::request::TypeId;
use crate::rng::Rng;
use crate::shared::Counter;
use crate::time::Instant;
use crate::window::Window;

/// The rule that overrides a refusal.
#[derive(Debug, Clone)]
pub enum Rule {
    /// The acceptance allowance, Bouncer's Alg. 2.
    AcceptanceAllowance(AcceptanceAllowance),
    /// Helping the underserved, Bouncer's Alg. 3.
    HelpingTheUnderserved(HelpingTheUnderserved),
}

/// The number of types whose counters a worker reads at one tick. It reads the types in turn.
const READS: usize = 64;

/// The decisions of all workers on one type.
#[derive(Debug)]
struct Decisions {
    received: Counter,
    accepted: Counter,
    /// Acceptances whose requests are not in the number of received requests yet. The two numbers
    /// are published one after the other.
    ahead: u64,
}

/// A rule of starvation avoidance, with the latest decisions on which it depends.
#[derive(Debug)]
pub struct Avoidance {
    /// The rule that overrides a refusal.
    pub rule: Rule,
    /// The latest decisions, by type.
    pub window: Window,
    /// By type. Empty if the window has only this worker's decisions.
    decisions: Vec<Decisions>,
    /// The types with decisions that are not published yet.
    dirty: Vec<u16>,
    /// The type that was read last.
    turn: usize,
}

impl Avoidance {
    /// Creates the avoidance of a worker that shares no decisions.
    pub fn new(rule: Rule, window: Window) -> Self {
        Self {
            rule,
            window,
            decisions: Vec::new(),
            dirty: Vec::new(),
            turn: 0,
        }
    }

    /// Returns the avoidance of a checked configuration, or `None` if the configuration has none.
    pub(super) fn from_config(config: &StageConfig) -> Option<Self> {
        let (rule, window_us, step_us) = match config.starvation_avoidance.clone()? {
            StarvationAvoidance::AcceptanceAllowance {
                allowance,
                type_allowances,
                window_us,
                step_us,
            } => {
                let of = |kind: &TypeConfig| type_allowances.get(&kind.name).unwrap_or(&allowance);
                let rule = AcceptanceAllowance::new(config.types.iter().map(of).copied().collect());
                (Rule::AcceptanceAllowance(rule), window_us, step_us)
            }
            StarvationAvoidance::HelpingTheUnderserved {
                alpha,
                window_us,
                step_us,
            } => {
                let rule = HelpingTheUnderserved::new(alpha);
                (Rule::HelpingTheUnderserved(rule), window_us, step_us)
            }
        };
        let (duration, step) = (
            Duration::from_micros(window_us),
            Duration::from_micros(step_us),
        );
        let window = Window::new(config.types.len(), duration, step);
        Some(Self::new(rule, window))
    }

    /// Shares all later decisions with the workers that use the same `prefix`.
    pub(super) fn share(
        &mut self,
        host: &impl Shared,
        prefix: &str,
        config: &StageConfig,
    ) -> Result<(), HostError> {
        let decisions = |kind: &TypeConfig| {
            let name = |what| format!("{prefix}.type.{}.window_{what}", kind.name);
            Ok(Decisions {
                received: Counter::new(host, &name("received"))?,
                accepted: Counter::new(host, &name("accepted"))?,
                ahead: 0,
            })
        };
        let decisions = config.types.iter().map(decisions);
        self.decisions = decisions.collect::<Result<_, HostError>>()?;
        self.dirty = Vec::with_capacity(self.decisions.len());
        Ok(())
    }

    /// Whether decisions of this worker are not published yet.
    pub fn is_pending(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Adds this worker's decisions to the counters, and other workers' decisions to the window.
    pub(super) fn exchange(&mut self, host: &impl Shared, now: Instant) -> Result<(), HostError> {
        while let Some(&kind) = self.dirty.last() {
            // This worker's decisions are already in the window.
            let row = &mut self.decisions[kind as usize];
            row.accepted.publish(host)?;
            row.received.publish(host)?;
            self.dirty.pop();
        }
        for _ in 0..self.decisions.len().min(READS) {
            self.turn = (self.turn + 1) % self.decisions.len();
            let row = &mut self.decisions[self.turn];
            row.ahead += row.accepted.others(host)?;
            let received = row.received.others(host)?;
            if received > 0 {
                let kind = TypeId(u16::try_from(self.turn).unwrap_or(u16::MAX));
                // The window must never have more accepted than received requests.
                let accepted = row.ahead.min(received);
                self.window.add(now, kind, received, accepted);
                row.ahead -= accepted;
            }
        }
        Ok(())
    }

    /// Returns the probability with which a refusal of type `kind` is overridden, unless the type
    /// is starving.
    pub fn floor(&self, kind: TypeId) -> f64 {
        match &self.rule {
            Rule::AcceptanceAllowance(rule) => rule.floor(kind),
            Rule::HelpingTheUnderserved(rule) => rule.help(kind, &self.window),
        }
    }

    /// Whether the type is starving, so that all of its refusals are overridden.
    fn starves(&self, kind: TypeId) -> bool {
        match &self.rule {
            Rule::AcceptanceAllowance(rule) => rule.starves(kind, &self.window),
            Rule::HelpingTheUnderserved(_) => false,
        }
    }

    /// Returns the final decision on a request of type `kind`, given the base's `decision`, and
    /// counts the final decision.
    pub(super) fn review(
        &mut self,
        decision: Result<(), Reason>,
        kind: TypeId,
        now: Instant,
        rng: &mut Rng,
    ) -> Result<(), Reason> {
        self.window.advance(now);
        let decision = decision.or_else(|reason| {
            let overridden = reason.answer().about_objectives
                && (self.starves(kind) || rng.chance(self.floor(kind)));
            if overridden { Ok(()) } else { Err(reason) }
        });
        self.window.count(now, kind, decision.is_ok());
        if let Some(row) = self.decisions.get_mut(usize::from(kind.0)) {
            if row.received.fresh() == 0 {
                self.dirty.push(kind.0);
            }
            row.received.count(1);
            row.accepted.count(decision.is_ok().into());
        }
        decision
    }

    /// Counts the request of type `kind` that was just admitted as refused.
    pub(super) fn withdraw(&mut self, kind: TypeId) {
        self.window.withdraw(kind);
        if let Some(row) = self.decisions.get_mut(usize::from(kind.0)) {
            row.accepted.take_back(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemoryHost;

    fn config() -> StageConfig {
        let kind = |name: &str| TypeConfig {
            name: name.to_owned(),
            ..TypeConfig::default()
        };
        StageConfig {
            starvation_avoidance: Some(StarvationAvoidance::AcceptanceAllowance {
                allowance: 0.1,
                type_allowances: Default::default(),
                window_us: 1_000_000,
                step_us: 10_000,
            }),
            types: vec![kind("a"), kind("default")],
            ..StageConfig::default()
        }
    }

    #[test]
    fn every_worker_sees_all_decisions_once() {
        let host = MemoryHost::new();
        let kind = TypeId(0);
        let shared = || {
            let mut avoidance = Avoidance::from_config(&config()).unwrap();
            avoidance.share(&host, "s", &config()).unwrap();
            avoidance
        };
        let mut workers = [(); 4].map(|()| shared());
        let mut rng = Rng::new(1);
        let mut now = Instant::from_nanos(0);
        for n in 0..124 {
            now = now + Duration::from_millis(1);
            // Worker 0 accepts, 1 and 2 reject, and 3 accepts and withdraws.
            let decision = match n % 4 {
                0 | 3 => Ok(()),
                _ => Err(Reason::QueueFull),
            };
            let reviewed = workers[n % 4].review(decision, kind, now, &mut rng);
            assert_eq!(reviewed, decision);
            if n % 4 == 3 {
                workers[3].withdraw(kind);
            }
            if n % 7 == 0 {
                for worker in &mut workers {
                    worker.exchange(&host, now).unwrap();
                }
            }
        }
        assert!(workers.iter().any(Avoidance::is_pending));
        for _ in 0..2 {
            for worker in &mut workers {
                worker.exchange(&host, now).unwrap();
            }
        }
        for worker in &workers {
            assert_eq!(worker.window.acceptance_ratio(kind), Some(31.0 / 124.0));
            assert!(!worker.is_pending());
        }
        // A worker that joins later starts with an empty window.
        let mut late = shared();
        late.exchange(&host, now).unwrap();
        assert_eq!(late.window.acceptance_ratio(kind), None);
    }
}
