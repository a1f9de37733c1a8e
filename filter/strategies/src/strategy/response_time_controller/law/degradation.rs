//! Service degradation, which lowers quality before requests are refused (SEDA §3.4, §4.5).
//!
//! The controller's first output is a quality q, which each request carries to the application. A q
//! of 1 is full quality. The application defines the meaning of lower values. The quality follows
//! the same errors as the rate:
//!
//! ```text
//! err > err_d   →   q = q / decrease          not below the lowest
//! err < err_i   →   q = q + increase          not above 1
//! ```
//!
//! §4.5 raises quality "slowly when the response time is below the limit". Here quality is raised
//! at most once a timeout, however often the controller runs, because a change has a visible effect
//! only one response time later. The paper has no band between the rules. With the band of §3.2,
//! the quality doesn't change in every run.
//!
//! "The stage optionally re-enables the admission controller when the quality factor is at its
//! lowest setting and response times continue to exceed the target." With `admission`, the rate is
//! decreased only in that case. The recovery is the reverse. While requests are refused, the rate
//! is increased. Once none is refused, the rate limit is lifted and quality rises. If quality were
//! raised first, the admission controller would be switched off in the middle of the overload.
//! While the limit is lifted, the rate keeps its value, which fits the demand, until quality is
//! full again.
//!
//! Quality is set for each controller separately. The precedence of classes (§3.3) applies to rates
//! only.

use super::super::record::Controller;
use super::{RateLaw, Step};
use crate::config::DegradationConfig;

impl RateLaw {
    /// Decreases the quality, or rates, after `class` missed its target.
    pub(super) fn degrade(
        &self,
        degradation: &DegradationConfig,
        classes: &mut [Controller],
        class: usize,
        step: &Step,
    ) {
        let own = &mut classes[class];
        if own.quality > degradation.min_quality {
            own.quality =
                (own.quality / step.divisor(degradation.decrease)).max(degradation.min_quality);
        } else if degradation.admission {
            self.decrease_rates(classes, class, step);
        }
    }

    /// Increases the rate or the quality after a controller met its target by more than the band.
    pub(super) fn restore(
        &self,
        degradation: &DegradationConfig,
        own: &mut Controller,
        step: &Step,
        now: f64,
    ) {
        if self.is_enforced(own) && own.refused > 0.0 {
            self.increase(own, step);
            return;
        }
        own.at_the_door = false;
        if now - own.raised >= self.timeout {
            own.raised = now;
            own.quality = (own.quality + degradation.increase).min(1.0);
        }
        if own.quality >= 1.0 {
            self.set_rate(own, self.config.max_rate);
        }
    }
}
