//! Less quality before fewer requests (SEDA §3.4, §4.5).
//!
//! The controller's output is first a quality q that the application gets with each request. 1 is
//! full quality; the application defines the meaning of less. By the same errors as the rate:
//!
//! ```text
//! err > err_d   →   q = q / decrease          not below the lowest
//! err < err_i   →   q = q + increase          not above 1
//! ```
//!
//! §4.5 raises quality "slowly when the response time is below the limit". Here it is at most once
//! a timeout, however often the controller runs, because the effect of a change is only visible a
//! response time later. The paper has no band between the rules; with that of §3.2 the quality
//! doesn't change in every run.
//!
//! "The stage optionally re-enables the admission controller when the quality factor is at its
//! lowest setting and response times continue to exceed the target." With `admission`, the rate is
//! decreased only then. The way back is the same in reverse: while requests are refused the rate is
//! increased, and once none is refused, the rate limit is lifted and quality rises. Raising quality
//! first would switch the admission controller off in the middle of the overload that it holds
//! back. While the limit is lifted, the rate stays what it was, since it had come to suit the
//! demand, until quality is full again.
//!
//! Quality is set for each controller separately; among classes, §3.3 holds for rates.

use super::classes;
use super::law::Law;
use super::record::Controller;
use crate::config::DegradationConfig;

/// Decreases quality, or rates, after class `class` missed its target.
pub(super) fn decrease(
    law: &Law,
    degradation: &DegradationConfig,
    classes: &mut [Controller],
    class: usize,
) {
    let own = &mut classes[class];
    if own.quality > degradation.min_quality {
        own.quality = (own.quality / degradation.decrease).max(degradation.min_quality);
    } else if degradation.admission {
        classes::decrease(law, classes, class);
    }
}

/// Increases rate or quality after a controller met its target by more than the band.
pub(super) fn increase(
    law: &Law,
    degradation: &DegradationConfig,
    own: &mut Controller,
    error: f64,
    now: f64,
) {
    if law.is_enforced(own) && own.refused > 0.0 {
        law.increase(own, error);
        return;
    }
    own.at_the_door = false;
    if now - own.raised >= law.timeout {
        own.raised = now;
        own.quality = (own.quality + degradation.increase).min(1.0);
    }
    if own.quality >= 1.0 {
        law.set_rate(own, law.max_rate);
    }
}
