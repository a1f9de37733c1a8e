//! The rule for retries: no retry is admitted while first attempts are refused.
//!
//! **The problem.** A refused request costs the backend nothing, but its client may retry. A client
//! that gave up on a late answer may retry, too. While the backend has less capacity than usual,
//! each request then arrives several times, and a retry takes the slot of a first attempt. The load
//! is then a multiple of the users' demand, and remains so after the cause is gone.
//!
//! **The rule.** A retry of a type is refused if a first attempt of that type was refused within
//! the last second. So slots go to first attempts while there are too few slots for them, and the
//! rule has no effect while all are admitted. Three refusals don't count, because slots may be
//! free: that of a workflow beyond its rate, that of a deadline that a free slot wouldn't meet, and
//! that of a request whose size alone misses an objective. Nor does that of a deadline shorter than
//! the type's last objective, because a short wait for a slot suffices for it. Otherwise one client
//! could have the retries of all others refused. Refused retries don't count as demand. The value
//! cut and the search for P use first attempts only.
//!
//! Each worker uses only its own refusals, because in an overload all workers refuse.

use std::time::Duration;

use crate::request::Attributes;
use crate::time::Instant;

/// The time after a refused first attempt within which retries are refused.
pub const MEMORY: Duration = Duration::from_secs(1);

/// The times at which first attempts were last refused, by type.
#[derive(Debug)]
pub struct FirstAttempts {
    refused: Vec<Option<Instant>>,
}

impl FirstAttempts {
    /// Creates the state for this number of types.
    pub fn new(types: usize) -> Self {
        Self {
            refused: vec![None; types],
        }
    }

    /// Records that `request` was refused, unless it is a retry.
    pub fn refused(&mut self, request: &Attributes, now: Instant) {
        if let Some(at) = self.refused.get_mut(usize::from(request.kind.0))
            && !request.is_retry
        {
            *at = Some(now);
        }
    }

    /// Whether `request` is a retry, and a first attempt of its type was refused recently.
    pub fn precede(&self, request: &Attributes, now: Instant) -> bool {
        let refused = self.refused.get(usize::from(request.kind.0));
        request.is_retry && refused.is_some_and(|at| at.is_some_and(|at| now.since(at) < MEMORY))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::TypeId;

    #[test]
    fn a_refused_first_attempt_holds_retries_of_its_type_back_for_a_second() {
        let mut firsts = FirstAttempts::new(2);
        let first = |kind| Attributes::of(TypeId(kind));
        let retry = |kind| Attributes {
            is_retry: true,
            ..first(kind)
        };
        let at = |millis: u64| Instant::from_nanos(millis * 1_000_000);
        assert!(!firsts.precede(&retry(0), at(0)));
        firsts.refused(&retry(0), at(10));
        assert!(!firsts.precede(&retry(0), at(20)));
        firsts.refused(&first(0), at(30));
        assert!(firsts.precede(&retry(0), at(40)));
        assert!(!firsts.precede(&first(0), at(40)));
        assert!(!firsts.precede(&retry(1), at(40)));
        assert!(firsts.precede(&retry(0), at(1_029)));
        assert!(!firsts.precede(&retry(0), at(1_030)));
    }
}
