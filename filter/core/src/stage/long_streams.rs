//! Long streams: responses that last so long that they release their slots.
//!
//! The search for P learns from requests that end. Streams of hours hold slots without ending. A P
//! that was found without them may be less than their number, and then all other requests would
//! wait until streams end. So while P is searched for, a request whose response has begun releases
//! its slot when it has held the slot for
//!
//! ```text
//! 30 m, at least 5 s and at most 60 s        m is the mean slot time of its type
//! ```
//!
//! The rest of the stream then counts as load that the backend has beside its P requests, and the
//! search follows the slots that this load leaves. The maximum bounds the time for which such
//! streams can hold all slots.
//!
//! With a configured P or a budget of tokens, streams hold their slots to the end.

use std::time::Duration;

use headgate_strategies::host::HostError;
use headgate_strategies::time::Instant;

use super::Stage;
use crate::host::Host;
use crate::requests::Phase;

/// The multiple of the mean slot time after which a stream releases its slot.
const LONG: u32 = 30;
/// The least and the longest time for which a stream holds its slot.
const HELD: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(60));

impl Stage {
    /// Releases the slots of long streams.
    pub(super) fn release_streams(
        &mut self,
        host: &impl Host,
        now: Instant,
    ) -> Result<(), HostError> {
        if !self.slots.is_searched() {
            return Ok(());
        }
        for request in self.requests.iter_mut() {
            let Phase::Running { dequeued } = request.phase else {
                continue;
            };
            if !request.begun || request.freed.is_some() {
                continue;
            }
            // After an edit, the start may be unknown.
            let held = now.since(dequeued.unwrap_or(request.arrived));
            let mean = self.service_times.mean(request.attributes.kind);
            let most = mean.unwrap_or_default().saturating_mul(LONG);
            if held > most.clamp(HELD.0, HELD.1) {
                request.freed = Some((now, None));
                self.ledger.release(host, request.tokens)?;
            }
        }
        Ok(())
    }
}
