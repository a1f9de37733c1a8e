//! The choice of the class whose rate is decreased (SEDA §3.3).
//!
//! Each class has a controller with its own target. When class c misses its target, the rates of
//! all *lower* classes are divided by adj_lo. If these are all at the least rate already, a counter
//! lc is incremented. Above lc_thresh the rate of c itself is divided by adj_d. The lowest class
//! has no class below it, so its rate is decreased at once. With a single class the rules are those
//! of §3.2.
//!
//! Rates are increased as in §3.2, "except that whenever a higher-priority class exceeds its
//! response time target, all lower-priority classes are flagged" so that they aren't increased in
//! their next iteration. Here the result of the higher class's last run replaces the flag. Lower
//! classes aren't increased if that run missed the target. If all classes run equally often, the
//! effect is the same. With the flag, a lower class that runs twice as often would consume the flag
//! and be increased. Then the higher class's own rate would never be decreased.
//!
//! If the higher class doesn't run, because its requests are not answered, its last run no longer
//! counts after [`STALE`] timeouts.
//!
//! In the law without adj_i, lc counts the target times with misses instead of runs, as the steps
//! of this law do.
//!
//! The paper doesn't say when lc is reset. Here lc is reset when the lower classes' rates can be
//! decreased again.

use super::super::record::Controller;
use super::{RateLaw, Step};

/// The number of timeouts after which the result of a class's last run no longer counts.
const STALE: f64 = 60.0;

impl RateLaw {
    /// Whether one of the `higher` classes missed its target in a recent run.
    pub(super) fn is_held(&self, higher: &[Controller], now: f64) -> bool {
        let recent = |class: &Controller| now - class.ran < STALE * self.timeout;
        higher.iter().any(|class| class.missing && recent(class))
    }

    /// Decreases rates after `class` missed its target.
    pub(super) fn decrease_rates(&self, classes: &mut [Controller], class: usize, step: &Step) {
        let (upper, lower) = classes.split_at_mut(class + 1);
        let own = &mut upper[class];
        if lower.is_empty() {
            self.decrease(own, step);
        } else if lower.iter().all(|lower| self.is_least(lower)) {
            own.runs_in_vain += step.part.min(1.0);
            if own.runs_in_vain > f64::from(self.config.lower_class_patience) {
                self.decrease(own, step);
            }
        } else {
            own.runs_in_vain = 0.0;
            for lower in lower {
                self.divide(lower, self.config.lower_class_decrease, step, 0.0);
            }
        }
    }
}
