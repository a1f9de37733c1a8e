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
//! **Without adj_i.** The paper sets its constants by hand for one service (§3.2), and an adj_i in
//! requests/s that suits a service is wrong for one that is ten times as fast. Runs after every
//! nreq responses have another flaw: the more of them fall into one response time, the more often
//! the law answers the same delay. Our choice, without a given adj_i, is a law in units of the
//! service. With t the time since the last run, T the target, and x the throughput:
//!
//! ```text
//! h = min(1, t / T)
//! err > err_d   →   rate = min(rate, x) / adj_d^h
//! err < err_i   →   rate = rate − (err − c_i) · h · 0.06 · max x
//! ```
//!
//! So a target time of misses divides the rate by adj_d, and one of answers in no time adds 6% of
//! the throughput, however many requests there are. A rate above x limits nothing, and decreases
//! from there would let a queue build up until they reach x.
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

/// adj_i without a given one, as a ratio of the highest recent throughput.
const STEP: f64 = 0.06;
/// The factor by which answers and their time count less after a run.
const FADE: f64 = 0.9;
/// The time in which the highest throughput falls by a factor of e, s.
const FORGET: f64 = 300.0;

/// The parameters of Figure 4 and of §3.3.
#[derive(Debug)]
pub(super) struct Law {
    smoothing: f64,
    increase_below: f64,
    decrease_above: f64,
    /// adj_i; `None` for the law in units of the throughput.
    increase: Option<f64>,
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
            answers: 0.0,
            span: 0.0,
            best: 0.0,
        }
    }

    /// Clamps values of the record, which may be from another configuration, to this one's bounds.
    pub(super) fn clamp(&self, controller: &mut Controller) {
        controller.rate = controller.rate.clamp(self.min_rate, self.max_rate);
        let lowest = self.degradation.map_or(1.0, |d| d.min_quality);
        controller.quality = controller.quality.clamp(lowest, 1.0);
    }

    /// Runs the controller of `class` with a percentile of answers after `since`, s, or for idle
    /// time. `classes` are all classes of its type, the highest first.
    pub(super) fn run(
        &self,
        classes: &mut [Controller],
        class: usize,
        target: f64,
        sample: Option<f64>,
        since: f64,
        now: f64,
    ) {
        let held = classes::hold(self, &classes[..class], now);
        let own = &mut classes[class];
        let elapsed = (now - own.ran.max(since)).max(0.0);
        if sample.is_some() {
            measure(own, elapsed);
        }
        let part = match self.increase {
            Some(_) => 1.0,
            None => (elapsed / target).min(1.0),
        };
        let current = self.smoothed(own, sample);
        own.current = Some(current);
        own.aged = sample.is_none();
        let error = (current - target) / target;
        own.missing = error > self.decrease_above;
        if own.missing {
            if sample.is_some() {
                match &self.degradation {
                    Some(degradation) => {
                        degradation::decrease(self, degradation, classes, class, part);
                    }
                    None => classes::decrease(self, classes, class, part),
                }
            }
        } else if error < self.increase_below && !held {
            match &self.degradation {
                Some(degradation) => {
                    degradation::increase(self, degradation, own, (error, part), now);
                }
                None => self.increase(own, error, part),
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

    pub(super) fn increase(&self, own: &mut Controller, error: f64, part: f64) {
        let step = self.increase.unwrap_or(STEP * own.best);
        let more = -(error - self.increase_offset) * step * part;
        self.set_rate(own, own.rate + more);
    }

    pub(super) fn decrease(&self, own: &mut Controller, part: f64) {
        self.divide(own, self.decrease, part);
    }

    pub(super) fn divide(&self, own: &mut Controller, divisor: f64, part: f64) {
        own.at_the_door = true;
        let used = match self.increase {
            None if own.span > 0.0 => own.rate.min(own.answers / own.span),
            _ => own.rate,
        };
        self.set_rate(own, used / divisor.powf(part));
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

/// Measures the throughput in the `elapsed` seconds before a run of `own`.
fn measure(own: &mut Controller, elapsed: f64) {
    own.span += elapsed;
    if own.span > 0.0 {
        let faded = own.best * (-elapsed / FORGET).exp();
        own.best = faded.max(own.answers / own.span);
    }
    own.answers *= FADE;
    own.span *= FADE;
}
