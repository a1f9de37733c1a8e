//! The control law, which determines the effect of a percentile on the rate (SEDA §3.2).
//!
//! ```text
//! cur = α·cur + (1 − α)·samp
//! err = (cur − target) / target
//! err > err_d   →   rate = rate / adj_d
//! err < err_i   →   rate = rate − (err − c_i)·adj_i
//! ```
//!
//! The rate stays between its minimum and maximum. `cur` starts with the first sample. [`classes`]
//! selects the class whose rate is decreased, and [`degradation`] lowers quality before rates.
//!
//! Figure 4 as printed has err_i = 0.5, but it must be −0.5. At +0.5 both rules would apply between
//! 0 and 0.5, and the increase would be negative for any err > c_i = −0.1, which the text calls the
//! point at which "the rate adjustment is 0". At −0.5 there is a band from half the target to the
//! target in which the rate doesn't change.
//!
//! **Without adj_i.** The paper tunes its constants manually for a service (§3.2). An adj_i in
//! requests/s that suits one service is wrong for another that is ten times as fast. Runs after
//! every nreq responses have another flaw: the more runs fall into one response time, the more
//! often the law reacts to the same delay. Without a given adj_i, the law here is the same in units
//! of the service. Let t be the time since the last run, T the target, x the throughput of about
//! the last T, and X the highest x of the last minutes:
//!
//! ```text
//! h = t / T
//! err > err_d   →   rate = rate / adj_d^min(h, 1)               not below x / adj_d²
//! err < err_i   →   rate = rate − (err − c_i) · h · 0.05 · X
//! ```
//!
//! So one target time of misses divides the rate by adj_d, and one target time of instant answers
//! adds 4.5% of the throughput, for any number of requests. While a queue drains, the rate must be
//! below x, but a rate below x / adj_d² only causes idle time later.
//!
//! - A rate above x limits nothing, and a queue would grow until decreases have reached x. So a
//!   decrease starts at x if most answers of about the last T took longer than [`LATE`]·T. A few
//!   slow answers also make the percentile late, but they aren't an overload. The decrease then
//!   starts at the rate itself, which may stay above x.
//! - The percentile of a few answers is the slowest of them. So in a run after a timeout the target
//!   is missed only if the median is late, too.
//! - A rate is above the demand if no request was refused since the last run. Such a rate is raised
//!   in proportion to itself, so that it recovers as quickly as it fell.
//! - X is at least 1 / T, because a service that answers within T serves that much. Otherwise a
//!   rate would stay low if X was only measured while the service hung.
//!
//! **Idle time.** The paper's controller also runs after a timeout, but with no response there is
//! no sample, and the text leaves that case open. Here a run without samples decreases nothing. It
//! takes place only when no request of the controller has been waiting or running for a timeout.
//! Then the cause of the slowness is over, and `cur` decays as if responses had taken no time, so
//! that the rate recovers. Without the decay, a rate at its minimum would stay there as long as no
//! request came, and then admit one request in 20 s. The first sample that is worse than the
//! decayed `cur` replaces it. While requests wait or run and none is answered, there is no
//! information, and nothing changes.

mod classes;
mod degradation;

use super::bucket;
use super::record::Controller;
use crate::config::ResponseTimeControllerConfig;

/// The default of adj_i, as a ratio of the highest recent throughput.
const STEP: f64 = 0.05;
/// The response time, as a ratio of the target, above which an answer is late. If requests queue so
/// long that their 90th percentile is the target, most of them take longer than this.
const LATE: f64 = 0.75;
/// The number of late answers in excess of the others that shows an overload.
const MOST: f64 = 3.0;
/// The power of adj_d by which the throughput is divided to get the lowest rate of a decrease.
const DRAIN: i32 = 2;
/// The least time over which a throughput is measured, s. It is the length of two slow ticks.
const SPAN: f64 = 0.1;
/// The time in which the highest throughput falls by a factor of e, s.
const FORGET: f64 = 300.0;

/// The parameters of Figure 4 and of §3.3.
#[derive(Debug)]
pub(super) struct RateLaw {
    pub(super) config: ResponseTimeControllerConfig,
    /// The time between runs without a complete batch, s.
    pub(super) timeout: f64,
}

/// The effect of a run on the rates.
#[derive(Debug)]
struct Step {
    error: f64,
    /// h, the time since the last run in target times. It is 1 with a given adj_i.
    part: f64,
    target: f64,
    /// Whether a rate above the throughput is lowered to the throughput before the step.
    is_overload: bool,
}

impl Step {
    /// Returns the divisor for this step, given the divisor for a whole step.
    fn divisor(&self, whole: f64) -> f64 {
        whole.powf(self.part.min(1.0))
    }
}

impl RateLaw {
    pub(super) fn new(config: &ResponseTimeControllerConfig) -> Self {
        Self {
            config: config.clone(),
            timeout: config.timeout_us as f64 / 1e6,
        }
    }

    /// Returns a controller without measurements, at the maximum rate.
    pub(super) fn initial(&self, now: f64) -> Controller {
        Controller {
            rate: self.config.max_rate,
            quality: 1.0,
            raised: now,
            ran: now,
            busy: now,
            level: bucket::depth(self.config.max_rate),
            accounted: now,
            ..Controller::default()
        }
    }

    /// Clamps values of the record to the bounds of this configuration. The record may come from
    /// another configuration.
    pub(super) fn clamp(&self, controller: &mut Controller) {
        let (least, most) = (self.config.min_rate, self.config.max_rate);
        controller.rate = controller.rate.clamp(least, most);
        let lowest = self.config.degradation.map_or(1.0, |d| d.min_quality);
        controller.quality = controller.quality.clamp(lowest, 1.0);
    }

    /// Runs the controller of `class` with a percentile, s, or without a sample for idle time.
    /// `classes` are all classes of its type, the highest first. Without a given adj_i, a
    /// percentile that isn't typical of its answers can't miss the target.
    pub(super) fn run(
        &self,
        classes: &mut [Controller],
        class: usize,
        target: f64,
        sample: Option<f64>,
        is_typical: bool,
        now: f64,
    ) {
        let held = self.is_held(&classes[..class], now);
        let own = &mut classes[class];
        // Time without requests doesn't count as time in which the target was missed.
        let elapsed = (now - own.ran).clamp(0.0, target.max(self.timeout));
        let is_overload = own.late >= MOST;
        measure(own, elapsed, target);
        let current = self.smoothed(own, sample);
        own.current = Some(current);
        own.aged = sample.is_none();
        let error = (current - target) / target;
        let is_typical = is_typical || self.config.increase.is_some();
        own.missing = error > self.config.decrease_above && is_typical;
        let step = Step {
            error,
            part: self.config.increase.map_or(elapsed / target, |_| 1.0),
            target,
            is_overload,
        };
        if own.missing {
            if sample.is_some() {
                match &self.config.degradation {
                    Some(degradation) => self.degrade(degradation, classes, class, &step),
                    None => self.decrease_rates(classes, class, &step),
                }
            }
        } else if error < self.config.increase_below && !held {
            match &self.config.degradation {
                Some(degradation) => self.restore(degradation, own, &step, now),
                None => self.increase(own, &step),
            }
        }
        let own = &mut classes[class];
        own.refused = 0.0;
        own.ran = now;
    }

    fn smoothed(&self, own: &Controller, sample: Option<f64>) -> f64 {
        let past = self.config.smoothing;
        let faded = |current: f64, sample: f64| past * current + (1.0 - past) * sample;
        match (own.current, sample) {
            (None, sample) => sample.unwrap_or(0.0),
            (Some(current), None) => faded(current, 0.0),
            (Some(current), Some(sample)) if own.aged => faded(current, sample).max(sample),
            (Some(current), Some(sample)) => faded(current, sample),
        }
    }

    fn increase(&self, own: &mut Controller, step: &Step) {
        let whole = self.config.increase.unwrap_or_else(|| {
            let most = own.best.max(1.0 / step.target);
            STEP * if own.refused > 0.0 {
                most
            } else {
                most.max(own.rate)
            }
        });
        let more = -(step.error - self.config.increase_offset) * step.part * whole;
        self.set_rate(own, own.rate + more);
    }

    fn decrease(&self, own: &mut Controller, step: &Step) {
        let least = self.throughput(own) / self.config.decrease.powi(DRAIN);
        let least = if least.is_finite() { least } else { 0.0 };
        self.divide(own, self.config.decrease, step, least);
    }

    fn divide(&self, own: &mut Controller, divisor: f64, step: &Step, least: f64) {
        own.at_the_door = true;
        let from = match step.is_overload {
            true => own.rate.min(self.throughput(own)),
            false => own.rate,
        };
        let to = (from / step.divisor(divisor)).max(least).min(own.rate);
        self.set_rate(own, to);
    }

    /// Returns x, requests/s. It is infinite without answers, and with a given adj_i.
    fn throughput(&self, own: &Controller) -> f64 {
        let measured = own.throughput().filter(|_| self.config.increase.is_none());
        measured.unwrap_or(f64::INFINITY)
    }

    /// Whether an answer with this response time is late ([`LATE`]).
    pub(super) fn is_late(response_time: f64, target: f64) -> bool {
        response_time > LATE * target
    }

    fn set_rate(&self, own: &mut Controller, rate: f64) {
        let old = own.rate;
        own.rate = rate.clamp(self.config.min_rate, self.config.max_rate);
        bucket::carry_debt(own, old);
    }

    /// Whether the rate is enforced and at its minimum.
    fn is_least(&self, controller: &Controller) -> bool {
        self.is_enforced(controller) && controller.rate <= self.config.min_rate
    }

    /// Whether requests need a token.
    pub(super) fn is_enforced(&self, controller: &Controller) -> bool {
        match &self.config.degradation {
            Some(degradation) => degradation.admission && controller.at_the_door,
            None => true,
        }
    }

    /// Whether idle time has no further effect.
    pub(super) fn is_recovered(&self, controller: &Controller) -> bool {
        controller.rate >= self.config.max_rate && controller.quality >= 1.0 && !controller.missing
    }
}

/// Adds the `elapsed` seconds before a run of `own` to its measurements.
fn measure(own: &mut Controller, elapsed: f64, target: f64) {
    own.span += elapsed;
    own.best *= (-elapsed / FORGET).exp();
    if let Some(throughput) = own.throughput().filter(|_| own.span >= SPAN.min(target)) {
        own.best = own.best.max(throughput);
    }
    let kept = (-elapsed / SPAN.max(target)).exp();
    own.answers *= kept;
    own.late *= kept;
    own.span *= kept;
}
