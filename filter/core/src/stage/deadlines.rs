//! The time that a request needs once it has a slot, set against its own deadline (Wisp §3.2, §4.3).
//!
//! A request whose deadline is nearer than its processing time is lost even if it doesn't wait: it would take a slot from
//! requests that can still be answered in time. So what it may wait is its deadline less the mean processing time of its
//! type, and where that is nothing it is refused at once.
//!
//! Refused requests measure nothing. Were all of a type refused, its mean would stay what it was for ever, also when the
//! backend is fast again. So where no request of a type was let in on a worker for [`PROBE`], the next one is taken for one
//! that needs no time.

use std::time::Duration;

use crate::request::{Attributes, TypeId};
use crate::service_times::ServiceTimes;
use crate::time::Instant;

/// After so long without a request of a type, one passes although it needs longer than it has.
const PROBE: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Debug)]
pub(super) struct Deadlines {
    /// By type: when one was let in last.
    admitted: Vec<Option<Instant>>,
}

impl Deadlines {
    /// Of a stage with so many types.
    pub(super) fn new(types: usize) -> Self {
        Self {
            admitted: vec![None; types],
        }
    }

    /// A request of `kind` is let in.
    pub(super) fn admitted(&mut self, now: Instant, kind: TypeId) {
        if let Some(admitted) = self.admitted.get_mut(usize::from(kind.0)) {
            *admitted = Some(now);
        }
    }

    /// What `request` needs of its deadline once it has a slot. Zero for one without a deadline, before anything was
    /// measured, and for one that is to show whether its type still takes as long.
    pub(super) fn needs(
        &self,
        now: Instant,
        request: &Attributes,
        times: &ServiceTimes,
    ) -> Duration {
        let Some(own) = request.own_deadline else {
            return Duration::ZERO;
        };
        let needs = times.mean(request.kind).unwrap_or_default();
        let admitted = self.admitted.get(usize::from(request.kind.0));
        let lately = admitted
            .copied()
            .flatten()
            .is_some_and(|at| now.since(at) < PROBE);
        if own < needs && !lately {
            return Duration::ZERO;
        }
        needs
    }
}
