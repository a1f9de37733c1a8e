//! Starvation avoidance. It overrides some refusals of the base strategy, so that no type is
//! refused entirely (Bouncer §4).
//!
//! Both rules compare acceptance ratios over one sliding [`Window`] of decisions. The window has
//! the decisions of all workers (`stage::acceptance`). It includes a worker's own decisions at
//! once, and other workers' decisions a tick later.
//!
//! The base decides first. Avoidance doesn't change acceptances. It overrides only refusals because
//! of objectives. Refusals because of limits, such as a full queue, stand.

use std::time::Duration;

use super::{AcceptanceAllowance, HelpingTheUnderserved};
use crate::config::{StageConfig, StarvationAvoidance, TypeConfig};
use crate::reason::Reason;
use crate::request::TypeId;
use crate::rng::Rng;
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

/// A rule of starvation avoidance, with the latest decisions on which it depends.
#[derive(Debug)]
pub struct Avoidance {
    /// The rule that overrides a refusal.
    pub rule: Rule,
    /// The latest decisions, by type.
    pub window: Window,
}

impl Avoidance {
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
        Some(Self {
            rule,
            window: Window::new(config.types.len(), duration, step),
        })
    }

    /// Returns the probability with which a refusal of type `kind` is overridden, unless the type
    /// is starving.
    #[must_use]
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
        decision
    }
}
