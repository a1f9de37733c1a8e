//! The shared record of a feedback-controlled strategy. A worker reads the record, advances it, and
//! stores it unless another worker has changed it meanwhile.
//!
//! [`Controlled`] explains the method. The record is in the workers' shared data, under the
//! policy's name, so it survives edits of the policy and new VMs.
//!
//! A dry run has its own record. Its decisions have no effect, so a control law that misses its
//! target moves to its limit. If enforcement started from that record, it would refuse nearly
//! everything.

use headgate_strategies::host::{HostError, Shared};
use headgate_strategies::shared;
use headgate_strategies::strategy::{Controlled, Strategy};
use headgate_strategies::time::Instant;

use crate::config::Mode;

/// Returns the key of the record of a policy's strategy.
pub(super) fn key(policy: &str, mode: Mode) -> String {
    let kind = match mode {
        Mode::Enforce => "control",
        Mode::DryRun => "control-dry-run",
    };
    format!("headgate/{kind}/{policy}")
}

/// Advances the record of the strategy, if the strategy has a record and an update is due.
pub(super) fn run(
    host: &impl Shared,
    now: Instant,
    key: &str,
    strategy: &mut Strategy,
) -> Result<(), HostError> {
    match strategy.base.controlled_mut() {
        Some(controlled) if controlled.due(now) => advance(host, now, key, controlled),
        Some(_) | None => Ok(()),
    }
}

/// Advances the record of `controlled` under `key`.
pub(super) fn advance(
    host: &impl Shared,
    now: Instant,
    key: &str,
    controlled: &mut dyn Controlled,
) -> Result<(), HostError> {
    let key = shared::key(key, controlled.schema());
    let stored = shared::change_bytes(host, &key, shared::ATTEMPTS, |record| {
        let changed = controlled.sync(now, record);
        (changed, changed)
    });
    match stored {
        Ok(true) => controlled.stored(),
        // Either nothing changed, or too many other workers wrote the record at once. In both cases
        // the next tick tries again.
        Ok(false) | Err(HostError::Conflict) => {}
        Err(error) => return Err(error),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemoryHost;

    /// A control law that counts over all workers. At each run, it sets the limit to the count.
    #[derive(Default)]
    struct Counting {
        fresh: u64,
        limit: u64,
    }

    impl Controlled for Counting {
        fn schema(&self) -> u32 {
            <u64 as shared::Record>::SCHEMA
        }

        fn sync(&mut self, _now: Instant, record: &mut Vec<u8>) -> bool {
            let known = shared::decode(record);
            self.limit = known.unwrap_or(1_000) + self.fresh;
            shared::encode(&self.limit, record);
            known.is_none() || self.fresh > 0
        }

        fn stored(&mut self) {
            self.fresh = 0;
        }
    }

    #[test]
    fn measurements_of_each_worker_count_once() {
        let host = MemoryHost::new();
        let key = key("default/a", Mode::Enforce);
        let mut workers = [(); 3].map(|()| Counting::default());
        let now = Instant::default();
        for round in 0..10 {
            for (n, counting) in workers.iter_mut().enumerate() {
                counting.fresh += (n + round % 2) as u64;
                advance(&host, now, &key, counting).unwrap();
            }
        }
        for counting in &mut workers {
            advance(&host, now, &key, counting).unwrap();
            assert_eq!(counting.limit, 1_000 + 30 + 15);
            assert_eq!(counting.fresh, 0);
        }
    }

    #[test]
    fn an_unreadable_record_is_replaced_by_a_new_one() {
        let host = MemoryHost::new();
        let key = "headgate/control/default/a";
        host.store(
            &shared::key(key, <u64 as shared::Record>::SCHEMA),
            &[0; 16],
            None,
        )
        .unwrap();
        let mut counting = Counting::default();
        let now = Instant::default();
        assert_eq!(super::key("default/a", Mode::Enforce), key);
        advance(&host, now, key, &mut counting).unwrap();
        assert_eq!(counting.limit, 1_000);
        assert_eq!(shared::load(&host, key), Ok(1_000_u64));
    }
}
