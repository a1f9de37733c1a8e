//! Admission by measured response times. This is SEDA's overload controller (Welsh, Culler:
//! "Adaptive Overload Control for Busy Internet Servers", USITS 2003, §3.2–3.4).
//!
//! Estimates can be wrong, and a backend's capacity may change at any time. This controller uses no
//! estimates. It measures the 90th percentile of response times, compares this percentile with the
//! target, and adjusts the rate at which requests are admitted, by additive increases and
//! multiplicative decreases. It needs no model of the service, but it reacts only after response
//! times have risen.
//!
//! A response time starts when the request enters the service (§3.2, Figure 3). Proxies may pass a
//! request's age on with calls ([`Progress::age`](crate::request::Progress)). With an age, the
//! response time includes earlier stages and the wait before this stage. Without an age, it starts
//! with the arrival at this stage. Requests that expired in the queue or whose clients left don't
//! count, so under overload the percentile is that of answered requests. Each type has its own
//! controller, as each stage of SEDA does, and so does each class of a type. (§4.4 finds that with
//! a single controller, a few expensive requests cause refusals of all others.) A run's decision is
//! in [`law`], its input is [`batch`], and [`bucket`] enforces the rate.
//!
//! **Workers.** Each worker collects its own batches, because a batch of any worker's requests has
//! the same percentile. It runs the law on the process's controllers in the shared record (see
//! [`Controlled`]). So the law runs as often per request as with one worker. At a few requests a
//! second, when the law runs on the timeout, a run uses the samples of one worker only.
//!
//! A rate starts at its maximum, because nothing requires a lower rate yet. The paper doesn't name
//! its initial rates. With an `increase`, in requests/s as in the paper, decreases from far above
//! the demand follow each other until one has an effect, while a queue builds up. A `max_rate` near
//! the backend's capacity makes that phase short. A run adds up to 0.9 `increase`, about once a
//! second, until response times show that the rate is too high, which takes about one response
//! time. So the `increase` must be small compared with the stage's goodput. Scenario `seda-fig8`
//! has both settings. Without an `increase`, [`law`] follows the measured throughput.
//!
//! **A dry run** has no effect on response times. If they miss the target, the rate (and quality)
//! falls to its minimum. So a dry run shows that requests would be refused, but not how many.

mod batch;
mod bucket;
mod law;
mod record;

use std::time::Duration;

use super::controlled::fingerprint;
use super::{Admission, Controlled, View};
use crate::config::{ControlScope, ResponseTimeControllerConfig, StageConfig};
use crate::reason::Reason;
use crate::request::{Attributes, ClassId, Served, TypeId};
use crate::rng::Rng;
use crate::service_times::ServiceTimes;
use crate::shared;
use crate::time::Instant;

use batch::Batch;
use bucket::Bucket;
use law::RateLaw;
use record::Controller;

/// Rates that are set by feedback, one for each controller.
#[derive(Debug)]
pub(super) struct ResponseTimeController {
    law: RateLaw,
    classes: usize,
    /// A number that identifies the types and classes to which the record belongs.
    fingerprint: u64,
    /// The targets by type, then by class, s.
    targets: Vec<f64>,
    /// This worker's parts of the controllers, in the order of `targets`.
    parts: Vec<Part>,
    /// The controllers when the record was last read, in the order of `targets`.
    controllers: Vec<Controller>,
    /// The controller that gave a token to the request that was just admitted.
    taken: Option<usize>,
}

/// A worker's part of a controller.
#[derive(Debug)]
struct Part {
    bucket: Bucket,
    batch: Batch,
    /// The time at which the current batch started, s.
    begun: f64,
    /// The number of requests of the controller that wait or run on this worker.
    under_way: u32,
    /// Whether any request came or was answered since the record was last stored.
    active: bool,
    /// Whether a run has already used the current, incomplete batch.
    folded: bool,
}

impl ResponseTimeController {
    /// Creates the controllers of a stage. `settings` and `config` must have been checked.
    pub(super) fn new(settings: &ResponseTimeControllerConfig, config: &StageConfig) -> Self {
        let law = RateLaw::new(settings);
        let targets: Vec<f64> = settings
            .targets_us
            .iter()
            .flatten()
            .map(|&micros| micros as f64 / 1e6)
            .collect();
        let part = || Part {
            bucket: Bucket::new(law.config.max_rate),
            batch: Batch::new(settings.percentile, settings.requests),
            begun: 0.0,
            under_way: 0,
            active: false,
            folded: false,
        };
        Self {
            classes: config.classes.len().max(1),
            fingerprint: fingerprint(config, settings.scope == ControlScope::Type, true),
            parts: targets.iter().map(|_| part()).collect(),
            controllers: vec![law.initial(0.0); targets.len()],
            targets,
            law,
            taken: None,
        }
    }

    /// Returns the rate at which requests are admitted, requests/s, or `None` if the rate isn't
    /// enforced.
    pub(super) fn rate(&self, kind: TypeId, class: ClassId) -> Option<f64> {
        let controller = self.controllers.get(self.index(kind, class))?;
        self.law.is_enforced(controller).then_some(controller.rate)
    }

    fn index(&self, kind: TypeId, class: ClassId) -> usize {
        let kind = match self.law.config.scope {
            ControlScope::Type => usize::from(kind.0),
            ControlScope::Policy => 0,
        };
        kind * self.classes + usize::from(class.0).min(self.classes - 1)
    }

    /// Takes a token for a request, if the request needs one. Returns false if it needs a token and
    /// there is none.
    fn admits(&mut self, kind: TypeId, class: ClassId, now: Instant) -> bool {
        self.taken = None;
        let at = self.index(kind, class);
        let controller = self.controllers.get(at);
        if !controller.is_some_and(|controller| self.law.is_enforced(controller)) {
            return true;
        }
        let Some(part) = self.parts.get_mut(at) else {
            return true;
        };
        let taken = part.bucket.take(now);
        self.taken = taken.then_some(at);
        taken
    }

    /// Runs the law of controller `at` as often as it is due. Returns whether it ran.
    fn run(&mut self, at: usize, now: f64) -> bool {
        let part = &mut self.parts[at];
        let (first, class) = (at - at % self.classes, at % self.classes);
        let target = self.targets[at];
        let classes = &mut self.controllers[first..first + self.classes];
        let mut due = false;
        for &sample in part.batch.complete() {
            self.law
                .run(classes, class, target, Some(sample), true, now);
            due = true;
        }
        let own = &classes[class];
        let since = |then: f64| now - then;
        if part.batch.is_begun() {
            if since(own.ran.max(part.begun)) >= self.law.timeout {
                let median = part.batch.median();
                let is_late = median.is_some_and(|median| RateLaw::is_late(median, target));
                let sample = part.batch.partial();
                self.law.run(classes, class, target, sample, is_late, now);
                part.folded = true;
                due = true;
            }
        } else if since(own.ran.max(own.busy)) >= self.law.timeout && !self.law.is_recovered(own) {
            self.law.run(classes, class, target, None, true, now);
            due = true;
        }
        due
    }
}

impl Admission for ResponseTimeController {
    fn quality(&self, kind: TypeId, class: ClassId) -> Option<f64> {
        self.law.config.degradation?;
        let controller = self.controllers.get(self.index(kind, class))?;
        Some(controller.quality)
    }

    /// Returns `cur` of SEDA §3.2, the smoothed response time.
    fn controlled_response_time(&self, kind: TypeId, class: ClassId) -> Option<Duration> {
        let controller = self.controllers.get(self.index(kind, class))?;
        Duration::try_from_secs_f64(controller.current?).ok()
    }

    /// Returns the rate, or the maximum rate while the rate is not enforced.
    fn admission_rate(&self, kind: TypeId, class: ClassId) -> Option<f64> {
        Some(self.rate(kind, class).unwrap_or(self.law.config.max_rate))
    }

    /// Returns the time until the next token.
    fn retry_after(
        &self,
        request: &Attributes,
        reason: Reason,
        queue_wait: Duration,
        _service_times: &ServiceTimes,
    ) -> Duration {
        let part = self.parts.get(self.index(request.kind, request.class));
        part.filter(|_| reason == Reason::ResponseTime)
            .map_or(queue_wait, |part| part.bucket.next_token())
    }

    fn controlled_mut(&mut self) -> Option<&mut dyn Controlled> {
        Some(self)
    }

    fn decide(
        &mut self,
        request: &Attributes,
        view: &View<'_>,
        _rng: &mut Rng,
    ) -> Result<(), Reason> {
        if self.admits(request.kind, request.class, view.now) {
            Ok(())
        } else {
            Err(Reason::ResponseTime)
        }
    }

    fn withdrawn(&mut self, _request: &Attributes) {
        // Starvation avoidance may have admitted the request without a token.
        if let Some(part) = self.taken.take().and_then(|at| self.parts.get_mut(at)) {
            part.bucket.give_back();
        }
    }

    fn entered(&mut self, kind: TypeId, class: ClassId) {
        let at = self.index(kind, class);
        if let Some(part) = self.parts.get_mut(at) {
            part.under_way = part.under_way.saturating_add(1);
            part.active = true;
        }
    }

    fn left(&mut self, kind: TypeId, class: ClassId) {
        let at = self.index(kind, class);
        if let Some(part) = self.parts.get_mut(at) {
            part.under_way = part.under_way.saturating_sub(1);
        }
    }

    fn completed(&mut self, served: &Served, now: Instant) {
        let at = self.index(served.kind, served.class);
        if let Some(part) = self.parts.get_mut(at) {
            if !part.batch.is_begun() {
                part.begun = now.as_secs_f64();
            }
            let in_system = served.age + served.response_time();
            part.batch.add(in_system, served.weight);
            let is_late = RateLaw::is_late(in_system.as_secs_f64(), self.targets[at]);
            part.bucket.answered(served.weight, is_late);
            part.active = true;
        }
    }
}

impl Controlled for ResponseTimeController {
    fn schema(&self) -> u32 {
        <(u64, Vec<Controller>) as shared::Record>::SCHEMA
    }

    fn sync(&mut self, now: Instant, record: &mut Vec<u8>) -> bool {
        let secs = now.as_secs_f64();
        // If types or classes have changed, the record's controllers don't match these.
        let ours = |(fingerprint, controllers): &(u64, Vec<Controller>)| {
            *fingerprint == self.fingerprint && controllers.len() == self.parts.len()
        };
        let read = shared::decode_finite(record).filter(ours);
        let mut changed = read.is_none();
        match read {
            Some((_, controllers)) => self.controllers = controllers,
            None => self.controllers.fill(self.law.initial(secs)),
        }
        for (part, controller) in self.parts.iter_mut().zip(&mut self.controllers) {
            self.law.clamp(controller);
            part.folded = false;
            changed |= part.bucket.has_news();
            part.bucket.book(now, controller);
            let busy = part.active || part.under_way > 0;
            if busy && secs - controller.busy > self.law.timeout / 4.0 {
                controller.busy = secs;
                changed = true;
            }
        }
        for at in 0..self.parts.len() {
            changed |= self.run(at, secs);
        }
        for (part, controller) in self.parts.iter_mut().zip(&self.controllers) {
            part.bucket.adopt(now, controller);
        }
        let known = (self.fingerprint, std::mem::take(&mut self.controllers));
        shared::encode(&known, record);
        self.controllers = known.1;
        changed
    }

    fn stored(&mut self) {
        for part in &mut self.parts {
            part.bucket.stored();
            part.batch.clear();
            if part.folded {
                part.batch.restart();
            }
            part.active = false;
        }
    }
}

#[cfg(test)]
mod tests;
