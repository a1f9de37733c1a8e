//! The shared record of a feedback-controlled strategy: read, advance, store if nobody else did.
//!
//! See [`Controlled`] for the idea. The record lives in data that the workers share, under the policy's
//! name, so that it survives edits of the policy and new VMs. It is a row of `f64`, little-endian.
//!
//! A dry run has a record of its own. Nothing follows from what is only watched, so a law that finds its
//! target missed goes on to its limit; enforcement that began there would refuse nearly everything.

use crate::config::Mode;
use crate::host::{Expected, Host, HostError};
use crate::strategy::{Controlled, Strategy};
use crate::time::Instant;

/// Attempts against other workers that store at the same moment; the next tick goes on.
const ATTEMPTS: u32 = 4;

/// See the module.
#[derive(Debug)]
pub(super) struct Control {
    key: String,
    record: Vec<f64>,
    bytes: Vec<u8>,
}

impl Control {
    pub(super) fn new(policy: &str, mode: Mode) -> Self {
        let kind = match mode {
            Mode::Enforce => "control",
            Mode::DryRun => "control-dry-run",
        };
        Self {
            key: format!("headgate/{kind}/{policy}"),
            record: Vec::new(),
            bytes: Vec::new(),
        }
    }

    /// Advances the strategy's record, if it has one.
    pub(super) fn run(
        &mut self,
        host: &impl Host,
        now: Instant,
        strategy: &mut Strategy,
    ) -> Result<(), HostError> {
        match strategy.base.controlled_mut() {
            Some(controlled) if controlled.due(now) => self.advance(host, now, controlled),
            Some(_) | None => Ok(()),
        }
    }

    fn advance(
        &mut self,
        host: &impl Host,
        now: Instant,
        controlled: &mut dyn Controlled,
    ) -> Result<(), HostError> {
        for _ in 0..ATTEMPTS {
            let loaded = host.load(&self.key)?;
            let expected = Expected::from(loaded.as_ref().map(|(_, version)| *version));
            self.record.clear();
            self.record.resize(controlled.record_len(), 0.0);
            let known = loaded.is_some_and(|(bytes, _)| decode(&bytes, &mut self.record));
            if !known {
                controlled.initial(now, &mut self.record);
            }
            if !controlled.sync(now, &mut self.record) && known {
                return Ok(());
            }
            self.bytes.clear();
            self.bytes
                .extend(self.record.iter().flat_map(|number| number.to_le_bytes()));
            match host.store(&self.key, &self.bytes, expected) {
                Ok(()) => {
                    controlled.stored();
                    return Ok(());
                }
                Err(HostError::Conflict) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Fills `record` from `bytes`; false if they are not a record of this length, or not of numbers.
fn decode(bytes: &[u8], record: &mut [f64]) -> bool {
    let (words, rest) = bytes.as_chunks::<8>();
    if words.len() != record.len() || !rest.is_empty() {
        return false;
    }
    for (number, word) in record.iter_mut().zip(words) {
        *number = f64::from_le_bytes(*word);
    }
    record.iter().all(|number| number.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::memory::MemoryHost;

    /// Counts, over all workers; the law sets the limit to the count whenever it is run.
    #[derive(Default)]
    struct Counting {
        fresh: f64,
        limit: f64,
    }

    impl Controlled for Counting {
        fn record_len(&self) -> usize {
            1
        }

        fn initial(&self, _now: Instant, record: &mut [f64]) {
            record[0] = 1_000.0;
        }

        fn sync(&mut self, _now: Instant, record: &mut [f64]) -> bool {
            record[0] += self.fresh;
            self.limit = record[0];
            self.fresh > 0.0
        }

        fn stored(&mut self) {
            self.fresh = 0.0;
        }
    }

    #[test]
    fn what_each_worker_measured_counts_once_for_all() {
        let host = MemoryHost::new();
        let mut workers: Vec<(Control, Counting)> = (0..3)
            .map(|_| {
                (
                    Control::new("default/a", Mode::Enforce),
                    Counting::default(),
                )
            })
            .collect();
        let now = Instant::default();
        for round in 0..10 {
            for (n, (control, counting)) in workers.iter_mut().enumerate() {
                counting.fresh += (n + round % 2) as f64;
                control.advance(&host, now, counting).unwrap();
            }
        }
        for (control, counting) in &mut workers {
            control.advance(&host, now, counting).unwrap();
            assert_eq!(counting.limit, 1_000.0 + 30.0 + 15.0);
            assert_eq!(counting.fresh, 0.0);
        }
    }

    #[test]
    fn a_record_of_another_shape_starts_anew() {
        let host = MemoryHost::new();
        let key = "headgate/control/default/a";
        for odd in [vec![0; 7], vec![0; 16], f64::NAN.to_le_bytes().to_vec()] {
            let version = host.load(key).unwrap().map(|(_, version)| version);
            host.store(key, &odd, Expected::from(version)).unwrap();
            let mut counting = Counting::default();
            Control::new("default/a", Mode::Enforce)
                .advance(&host, Instant::default(), &mut counting)
                .unwrap();
            assert_eq!(counting.limit, 1_000.0);
            let (bytes, _) = host.load(key).unwrap().unwrap();
            assert_eq!(bytes, 1_000f64.to_le_bytes());
        }
    }
}
