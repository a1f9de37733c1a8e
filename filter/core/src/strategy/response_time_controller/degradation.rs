//! Less quality before fewer requests (SEDA §3.4, §4.5).
//!
//! The controller's output is first a quality q that the application is told with each request: 1 is full
//! quality, and what less means is the application's affair. By the same errors as the rate:
//!
//! ```text
//! err > err_d   →   q = q / decrease          not below the lowest
//! err < err_i   →   q = q + increase          not above 1
//! ```
//!
//! §4.5 raises quality "slowly when the response time is below the limit", without a band between; with
//! the band of §3.2 the application doesn't change its mind in every run.
//!
//! "The stage optionally re-enables the admission controller when the quality factor is at its lowest
//! setting and response times continue to exceed the target." With `admission`, the rate is decreased
//! only then; the way back is the same in reverse: while requests are refused, the rate is increased,
//! and quality rises once nobody is. Raising quality first would switch the admission controller off in
//! the middle of the overload that it holds back. Until the rate is decreased for the first time, and
//! from when quality rises again, the bucket is not asked.
//!
//! Quality is each controller's own affair; among classes, §3.3 holds for rates.

use super::classes;
use super::law::Law;
use super::record::Controller;
use crate::config::DegradationConfig;

/// Class `class` missed its target.
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

/// A controller met its target by more than the band.
pub(super) fn increase(
    law: &Law,
    degradation: &DegradationConfig,
    own: &mut Controller,
    error: f64,
) {
    if controls_admission(law, degradation, own) && own.refused > 0.0 {
        law.increase(own, error);
    } else {
        law.set_rate(own, law.max_rate);
        own.quality = (own.quality + degradation.increase).min(1.0);
    }
}

/// Whether the rate is enforced.
pub(super) fn controls_admission(
    law: &Law,
    degradation: &DegradationConfig,
    controller: &Controller,
) -> bool {
    degradation.admission && controller.rate < law.max_rate
}
