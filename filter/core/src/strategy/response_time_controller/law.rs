//! The control law: the effect of a percentile on the rate (SEDA §3.2).
//!
//! ```text
//! cur = α·cur + (1 − α)·samp
//! err = (cur − target) / target
//! err > err_d   →   rate = rate / adj_d
//! err < err_i   →   rate = rate − (err − c_i)·adj_i
//! ```
//!
//! The rate stays between its minimum and maximum. `cur` starts with the first sample.
//!
//! Figure 4 as printed has err_i = 0.5; it must be −0.5. At +0.5 both rules would apply between 0
//! and 0.5, and the increase would be negative for any err > c_i = −0.1, which the text calls the
//! point at which "the rate adjustment is 0". At −0.5 there is a band from half the target to the
//! target in which the rate doesn't change.
//!
//! **Idle time.** The paper's controller also runs after a timeout, but with no response there is
//! no sample, and the text leaves that case open. Here a run without samples decreases nothing. It
//! takes place only when no request of the controller has been waiting or running for a timeout.
//! Then the cause of the slowness is over, and `cur` decays as if responses had taken no time, so
//! that the rate recovers. Otherwise a rate at its minimum would stay there as long as no request
//! came, and then admit one in 20 s. The first sample that is worse than the decayed `cur` replaces
//! it. While requests wait or run and none is answered, there is no information, and nothing
//! changes.

use super::record::Controller;
use super::{classes, degradation};
use crate::config::{DegradationConfig, ResponseTimeControllerConfig};

/// The parameters of Figure 4 and of §3.3.
#[derive(Debug)]
pub(super) struct Law {
    smoothing: f64,
    increase_below: f64,
    decrease_above: f64,
    increase: f64,
    decrease: f64,
    increase_offset: f64,
    min_rate: f64,
    pub(super) max_rate: f64,
    /// Time between runs without a complete batch, s.
    pub(super) timeout: f64,
    pub(super) lower_class_decrease: f64,
    pub(super) lower_class_patience: f64,
    pub(super) degradation: Option<DegradationConfig>,
}

impl Law {
    pub(super) fn new(config: &ResponseTimeControllerConfig) -> Self {
        Self {
            smoothing: config.smoothing,
            increase_below: config.increase_below,
            decrease_above: config.decrease_above,
            increase: config.increase,
            decrease: config.decrease,
            increase_offset: config.increase_offset,
            min_rate: config.min_rate,
            max_rate: config.max_rate,
            timeout: config.timeout_us as f64 / 1e6,
            lower_class_decrease: config.lower_class_decrease,
            lower_class_patience: f64::from(config.lower_class_patience),
            degradation: config.degradation,
        }
    }

    /// Returns a controller without measurements, at the maximum rate.
    pub(super) fn initial(&self, now: f64) -> Controller {
        Controller {
            rate: self.max_rate,
            current: None,
            aged: false,
            missing: false,
            runs_in_vain: 0.0,
            quality: 1.0,
            raised: now,
            at_the_door: false,
            refused: 0.0,
            ran: now,
            busy: now,
            level: super::bucket::depth(self.max_rate),
            arrivals: 0.0,
            accounted: now,
        }
    }

    /// Clamps values of the record, which may be from another configuration, to this one's bounds.
    pub(super) fn clamp(&self, controller: &mut Controller) {
        controller.rate = controller.rate.clamp(self.min_rate, self.max_rate);
        let lowest = self.degradation.map_or(1.0, |d| d.min_quality);
        controller.quality = controller.quality.clamp(lowest, 1.0);
    }

    /// Runs the controller of `class` with a percentile, s, or for idle time. `classes` are all
    /// classes of its type, the highest first.
    pub(super) fn run(
        &self,
        classes: &mut [Controller],
        class: usize,
        target: f64,
        sample: Option<f64>,
        now: f64,
    ) {
        let held = classes::hold(self, &classes[..class], now);
        let own = &mut classes[class];
        let current = self.smoothed(own, sample);
        own.current = Some(current);
        own.aged = sample.is_none();
        let error = (current - target) / target;
        own.missing = error > self.decrease_above;
        if own.missing {
            if sample.is_some() {
                match &self.degradation {
                    Some(degradation) => {
                        degradation::decrease(self, degradation, classes, class);
                    }
                    None => classes::decrease(self, classes, class),
                }
            }
        } else if error < self.increase_below && !held {
            match &self.degradation {
                Some(degradation) => degradation::increase(self, degradation, own, error, now),
                None => self.increase(own, error),
            }
        }
        let own = &mut classes[class];
        own.refused = 0.0;
        own.ran = now;
    }

    fn smoothed(&self, own: &Controller, sample: Option<f64>) -> f64 {
        let faded =
            |current: f64, sample: f64| self.smoothing * current + (1.0 - self.smoothing) * sample;
        match (own.current, sample) {
            (None, sample) => sample.unwrap_or(0.0),
            (Some(current), None) => faded(current, 0.0),
            (Some(current), Some(sample)) if own.aged => faded(current, sample).max(sample),
            (Some(current), Some(sample)) => faded(current, sample),
        }
    }

    pub(super) fn increase(&self, own: &mut Controller, error: f64) {
        let more = -(error - self.increase_offset) * self.increase;
        self.set_rate(own, own.rate + more);
    }

    pub(super) fn decrease(&self, own: &mut Controller) {
        self.divide(own, self.decrease);
    }

    pub(super) fn divide(&self, own: &mut Controller, divisor: f64) {
        own.at_the_door = true;
        self.set_rate(own, own.rate / divisor);
    }

    pub(super) fn set_rate(&self, own: &mut Controller, rate: f64) {
        let old = own.rate;
        own.rate = rate.clamp(self.min_rate, self.max_rate);
        super::bucket::carry_debt(own, old);
    }

    /// Whether the rate is enforced and at its minimum.
    pub(super) fn is_least(&self, controller: &Controller) -> bool {
        self.is_enforced(controller) && controller.rate <= self.min_rate
    }

    /// Whether requests need a token.
    pub(super) fn is_enforced(&self, controller: &Controller) -> bool {
        match &self.degradation {
            Some(degradation) => degradation.admission && controller.at_the_door,
            None => true,
        }
    }

    /// Whether idle time has no further effect.
    pub(super) fn is_recovered(&self, controller: &Controller) -> bool {
        controller.rate >= self.max_rate && controller.quality >= 1.0 && !controller.missing
    }
}
