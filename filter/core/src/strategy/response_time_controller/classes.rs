//! The choice of the class that gives way (SEDA §3.3).
//!
//! Each class has a controller with a target of its own. When class c misses its target, the rates
//! of all *lower* classes are divided by adj_lo. When they all are at the least rate already, a
//! counter lc is incremented; above lc_thresh the rate of c itself is divided by adj_d. The lowest
//! class has no class below it and is decreased at once, as in §3.2, so that a single class is
//! §3.2.
//!
//! Rates are increased as in §3.2, "except that whenever a higher-priority class exceeds its
//! response time target, all lower-priority classes are flagged" so that they aren't increased in
//! their next iteration. The flag here is the higher class's own last run: lower classes aren't
//! increased while it missed. One iteration is the same if all classes run equally often. If they
//! don't, a lower class that runs twice as often would use the flag up, be increased, and so keep
//! the higher one from ever being decreased itself.
//!
//! If the higher class has no run at all, because its requests don't come back, its last run counts
//! no longer after [`STALE`] timeouts.
//!
//! The paper doesn't say when lc starts over. Here it does when the lower classes' rates can be
//! decreased again.

use super::law::Law;
use super::record::Controller;

/// Timeouts after which a run no longer says that a class misses its target.
const STALE: f64 = 60.0;

/// Whether one of the `higher` classes misses its target.
pub(super) fn hold(law: &Law, higher: &[Controller], now: f64) -> bool {
    let recent = |class: &Controller| now - class.ran < STALE * law.timeout;
    higher.iter().any(|class| class.missing && recent(class))
}

/// Decreases rates after class `class` missed its target.
pub(super) fn decrease(law: &Law, classes: &mut [Controller], class: usize) {
    let (upper, lower) = classes.split_at_mut(class + 1);
    let own = &mut upper[class];
    if lower.is_empty() {
        law.decrease(own);
    } else if lower.iter().all(|lower| law.is_least(lower)) {
        own.runs_in_vain += 1.0;
        if own.runs_in_vain > law.lower_class_patience {
            law.decrease(own);
        }
    } else {
        own.runs_in_vain = 0.0;
        for lower in lower {
            law.divide(lower, law.lower_class_decrease);
        }
    }
}
