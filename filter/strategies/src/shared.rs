//! State that all workers of a process share. It consists of counters to which each worker adds,
//! and records that each worker may change.
//!
//! A [`Counter`] needs no lock and no message. A worker adds its count to a process-wide number,
//! and infers the others' counts from the number's growth. The number isn't one of Envoy's
//! counters, because `POST /reset_counters` resets counters, and a stats matcher may reject them. A
//! [`Shared::number`] has neither problem.
//!
//! A record is for state that isn't a sum. A record is a value in shared data that is only changed
//! by compare-and-swap, without a leader or a lock. A change that conflicts with another worker's
//! change is repeated on the newer value. Each failed attempt means that another worker's change
//! succeeded.
//!
//! A record's bytes don't describe themselves, and during an upgrade workers of two versions share
//! the process. So each layout has an id, [`Record::SCHEMA`], in the record's key and in its first
//! bytes. Two versions with different layouts keep a record each, and neither reads or overwrites
//! the other version's record.

use postcard::de_flavors::Flavor;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::host::{HostError, Number, Shared};

/// The number of attempts of a change that conflicts with other workers' changes. After these
/// attempts, the change fails, and the caller tries again later. The number is small, because a
/// record of thousands of names takes milliseconds to read and write.
pub const ATTEMPTS: u32 = 8;

/// A value that workers share by [`load`] and [`change`]. The macro [`record!`] implements this
/// trait.
pub trait Record: Serialize + DeserializeOwned {
    /// The id of the layout, unique among all records of all versions.
    const SCHEMA: u32;
}

/// Gives a record type the id of its layout, and tests that the layout is the one in
/// `tests/record_layouts/ID.txt`. When fields or their meaning change, take the number after the
/// largest existing one. The test then writes the new file.
macro_rules! record {
    ($record:ty, $schema:literal) => {
        impl $crate::shared::Record for $record {
            const SCHEMA: u32 = $schema;
        }

        #[test]
        fn the_layout_is_that_of_its_schema() {
            $crate::shared::layout::check::<$record>();
        }
    };
}
pub(crate) use record;

record!(u64, 1);

/// Returns the first bytes of a record. A blob that starts differently is ignored, and the record
/// starts over.
pub fn header(schema: u32) -> [u8; 6] {
    let [a, b, c, d] = schema.to_le_bytes();
    [b'H', b'G', a, b, c, d]
}

/// Returns the key of the blob that holds the record `name` in the layout `schema`.
pub fn key(name: &str, schema: u32) -> String {
    format!("{name}/schema-{schema}")
}

/// A number to which all workers add their counts.
#[derive(Debug)]
pub struct Counter {
    number: Number,
    /// The part of this worker's count that is not yet in the number.
    fresh: u64,
    /// The value of the number when it was last read, plus this worker's additions since.
    seen: u64,
}

impl Counter {
    /// Creates the counter `name`, which counts from now on.
    ///
    /// # Errors
    /// [`HostError`] if a host call fails.
    pub fn new(host: &impl Shared, name: &str) -> Result<Self, HostError> {
        let number = host.number(name)?;
        Ok(Self {
            number,
            fresh: 0,
            // Ignore counts from before this worker existed.
            seen: host.get(number)?,
        })
    }

    /// Adds `n` to this worker's count.
    pub fn count(&mut self, n: u64) {
        self.fresh = self.fresh.saturating_add(n);
    }

    /// Takes `n` back from the part of this worker's count that is not published yet.
    pub fn take_back(&mut self, n: u64) {
        self.fresh = self.fresh.saturating_sub(n);
    }

    /// Returns the part of this worker's count that is not published yet.
    pub fn fresh(&self) -> u64 {
        self.fresh
    }

    /// Returns the sum of all workers' counts when the sum was last read, plus this worker's
    /// additions since.
    pub fn seen(&self) -> u64 {
        self.seen
    }

    /// Adds this worker's count to the number.
    ///
    /// # Errors
    /// [`HostError`] if a host call fails. The next call then tries again.
    pub fn publish(&mut self, host: &impl Shared) -> Result<(), HostError> {
        if self.fresh > 0 {
            host.add_to(self.number, self.fresh.cast_signed())?;
            self.seen = self.seen.saturating_add(self.fresh);
            self.fresh = 0;
        }
        Ok(())
    }

    /// Returns the increase of the other workers' count since the last call.
    ///
    /// # Errors
    /// [`HostError`] if a host call fails.
    pub fn others(&mut self, host: &impl Shared) -> Result<u64, HostError> {
        let total = host.get(self.number)?;
        // The number may briefly be less than `seen` while another worker tests whether the host
        // keeps the number (the Wasm host's `Unfiltered`).
        let others = total.saturating_sub(self.seen);
        self.seen = total;
        Ok(others)
    }

    /// Publishes this worker's count, and returns the increase of the others'.
    ///
    /// # Errors
    /// [`HostError`] if a host call fails.
    pub fn exchange(&mut self, host: &impl Shared) -> Result<u64, HostError> {
        self.publish(host)?;
        self.others(host)
    }
}

/// Returns the value in `bytes`, or `None` if they aren't a record of this type.
pub fn decode<T: Record>(bytes: &[u8]) -> Option<T> {
    let (value, rest) = postcard::take_from_bytes(bytes.strip_prefix(&header(T::SCHEMA))?).ok()?;
    rest.is_empty().then_some(value)
}

/// Returns the value in `bytes` like [`decode`], or `None` if one of its `f64` isn't finite. In the
/// record of a control law, such a number would stay in all later records. The record has no
/// strings and no bytes.
pub fn decode_finite<T: Record>(bytes: &[u8]) -> Option<T> {
    let numbers = Finite(bytes.strip_prefix(&header(T::SCHEMA))?);
    let mut numbers = postcard::Deserializer::from_flavor(numbers);
    let value = T::deserialize(&mut numbers).ok()?;
    numbers.finalize().ok()?.is_empty().then_some(value)
}

/// The bytes of a record of numbers. Integers are read byte by byte, and only an `f64` is read as 8
/// bytes at once. It must be finite.
struct Finite<'a>(&'a [u8]);

impl<'a> Flavor<'a> for Finite<'a> {
    type Remainder = &'a [u8];
    type Source = &'a [u8];

    fn pop(&mut self) -> postcard::Result<u8> {
        let first = self.0.split_off_first();
        first
            .copied()
            .ok_or(postcard::Error::DeserializeUnexpectedEnd)
    }

    fn try_take_n(&mut self, count: usize) -> postcard::Result<&'a [u8]> {
        let taken = self.0.split_off(..count);
        let taken = taken.ok_or(postcard::Error::DeserializeUnexpectedEnd)?;
        match taken.try_into().map(f64::from_le_bytes) {
            Ok(number) if !number.is_finite() => Err(postcard::Error::DeserializeBadEncoding),
            _ => Ok(taken),
        }
    }

    fn finalize(self) -> postcard::Result<&'a [u8]> {
        Ok(self.0)
    }
}

/// Replaces `bytes` with the encoded `value`.
pub fn encode<T: Record>(value: &T, bytes: &mut Vec<u8>) {
    bytes.clear();
    bytes.extend_from_slice(&header(T::SCHEMA));
    // The encoding fails only for values of unknown length, which no record has. If it failed, the
    // bytes would be empty, and empty bytes are not read as a record.
    *bytes = postcard::to_extend(value, std::mem::take(bytes)).unwrap_or_default();
}

/// Returns the record `name`, or the default if the record was never stored.
pub fn load<T: Record + Default>(host: &impl Shared, name: &str) -> Result<T, HostError> {
    let loaded = host.load(&key(name, T::SCHEMA))?;
    Ok(loaded
        .and_then(|(bytes, _)| decode(&bytes))
        .unwrap_or_default())
}

/// Changes the record `name`. `change` gets the record as [`load`] returns it. It returns whether
/// it has changed the record, and a result. This function returns the new record and that result.
///
/// # Errors
/// [`HostError`] if a host call fails, and [`HostError::Conflict`] if other workers kept changing
/// the record. The record is then unchanged.
pub fn change<T: Record + Default, R>(
    host: &impl Shared,
    name: &str,
    mut change: impl FnMut(&mut T) -> (bool, R),
) -> Result<(T, R), HostError> {
    change_bytes(host, &key(name, T::SCHEMA), ATTEMPTS, |bytes| {
        let mut record = decode(bytes).unwrap_or_default();
        let (changed, result) = change(&mut record);
        if changed {
            encode(&record, bytes);
        }
        (changed, (record, result))
    })
}

/// Changes the blob at `key` like [`change`], in at most `attempts` attempts. `change` reads and
/// writes the bytes itself. It returns whether they must be stored, and a result.
///
/// # Errors
/// The errors of [`change`].
pub fn change_bytes<R>(
    host: &impl Shared,
    key: &str,
    attempts: u32,
    mut change: impl FnMut(&mut Vec<u8>) -> (bool, R),
) -> Result<R, HostError> {
    for _ in 0..attempts {
        let (mut bytes, version) = host.load(key)?.unzip();
        let bytes = bytes.get_or_insert_default();
        let (changed, result) = change(bytes);
        if !changed {
            return Ok(result);
        }
        match host.store(key, bytes, version) {
            Ok(()) => return Ok(result),
            Err(HostError::Conflict) => {}
            Err(error) => return Err(error),
        }
    }
    Err(HostError::Conflict)
}

#[cfg(test)]
#[path = "../tests/memory/layout.rs"]
pub(crate) mod layout;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::memory::{Fault, MemoryHost};

    #[test]
    fn every_worker_learns_what_the_others_counted_once() {
        let host = MemoryHost::new();
        let worker = || (Counter::new(&host, "c").unwrap(), 0);
        let mut workers = [(); 3].map(|()| worker());
        for n in 0..90 {
            let (counter, known) = &mut workers[n % 3];
            counter.count(1);
            *known += 1;
            if n % 7 == 0 {
                for (counter, known) in &mut workers {
                    counter.publish(&host).unwrap();
                    *known += counter.others(&host).unwrap();
                }
            }
        }
        for _ in 0..2 {
            for (counter, known) in &mut workers {
                counter.publish(&host).unwrap();
                *known += counter.others(&host).unwrap();
            }
        }
        assert_eq!(workers.map(|(_, known)| known), [90; 3]);
        // Counts from before a worker existed are ignored.
        let (mut late, _) = worker();
        assert_eq!(late.others(&host), Ok(0));
    }

    #[test]
    fn counts_of_others_are_visible_at_once_after_the_number_fell() {
        let host = MemoryHost::new();
        let [mut a, mut b] = [(); 2].map(|()| Counter::new(&host, "c").unwrap());
        a.count(1_000);
        a.publish(&host).unwrap();
        assert_eq!(b.others(&host), Ok(1_000));
        host.set(a.number, 0).unwrap();
        assert_eq!(b.others(&host), Ok(0));
        a.count(3);
        a.publish(&host).unwrap();
        assert_eq!((a.others(&host), b.others(&host)), (Ok(0), Ok(3)));
    }

    #[test]
    fn changes_of_all_workers_add_up() {
        let host = MemoryHost::new();
        let add = |n: u64| {
            let added = change(&host, "r", |sum: &mut u64| {
                *sum += n;
                (n > 0, ())
            });
            added.map(|(sum, ())| sum)
        };
        assert_eq!((add(1), add(2)), (Ok(1), Ok(3)));
        host.inject(Fault::StoreConflicts, ATTEMPTS - 1);
        assert_eq!(add(3), Ok(6), "once for all attempts");
        host.inject(Fault::StoreConflicts, ATTEMPTS);
        assert_eq!(add(4), Err(HostError::Conflict));
        assert_eq!(load(&host, "r"), Ok(6_u64));
        let calls = host.calls();
        assert_eq!(add(0), Ok(6));
        assert_eq!(host.calls() - calls, 1, "what stays is not stored");
    }

    #[test]
    fn other_bytes_are_no_record() {
        let host = MemoryHost::new();
        host.store(&key("r", u64::SCHEMA), b"something else", None)
            .unwrap();
        assert_eq!(load::<u64>(&host, "r"), Ok(0));
        let begun = change(&host, "r", |n: &mut u64| (true, std::mem::replace(n, 7)));
        assert_eq!(begun, Ok((7, 0)));
        assert_eq!(load(&host, "r"), Ok(7_u64));
    }

    /// The layout of a record before an edit. `New` is its successor, of the same length.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, serde::Deserialize)]
    struct Old {
        rate: f64,
        since: f64,
    }

    #[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, serde::Deserialize)]
    struct New {
        since: f64,
        rate: f64,
    }

    impl Record for Old {
        const SCHEMA: u32 = u32::MAX - 1;
    }

    impl Record for New {
        const SCHEMA: u32 = u32::MAX;
    }

    #[test]
    fn two_versions_keep_a_record_each() {
        let host = MemoryHost::new();
        for n in 1..4 {
            let (old, ()) = change(&host, "r", |old: &mut Old| {
                old.rate += 1.0;
                (true, ())
            })
            .unwrap();
            let (new, ()) = change(&host, "r", |new: &mut New| {
                new.since -= 1.0;
                (true, ())
            })
            .unwrap();
            assert_eq!((old.rate, old.since), (f64::from(n), 0.0));
            assert_eq!((new.rate, new.since), (0.0, -f64::from(n)));
        }
    }

    #[test]
    fn another_layout_of_the_same_length_is_not_read() {
        let mut bytes = Vec::new();
        encode(&Old::default(), &mut bytes);
        assert_eq!(decode::<New>(&bytes), None);
        assert_eq!(decode(&bytes), Some(Old::default()));
    }

    #[test]
    fn a_number_that_is_not_finite_makes_a_record_of_a_law_unreadable() {
        type Law = (u64, Vec<(Option<f64>, u32, f64)>);
        impl Record for Law {
            const SCHEMA: u32 = 1;
        }
        let law = |number: f64| {
            (
                u64::MAX,
                vec![(None, u32::MAX, -1.5), (Some(2.0), 0, number)],
            )
        };
        let mut bytes = Vec::new();
        for number in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            encode(&law(number), &mut bytes);
            assert!(decode::<Law>(&bytes).is_some());
            assert_eq!(decode_finite::<Law>(&bytes), None);
        }
        encode(&law(f64::MAX), &mut bytes);
        assert_eq!(decode_finite(&bytes), Some(law(f64::MAX)));
        bytes.push(0);
        assert_eq!(decode_finite::<Law>(&bytes), None, "too long");
        bytes.truncate(bytes.len() - 2);
        assert_eq!(decode_finite::<Law>(&bytes), None, "too short");
    }

    impl Record for Vec<(u16, Option<String>, f64)> {
        const SCHEMA: u32 = 0;
    }

    proptest! {
        #[test]
        fn any_bytes_cause_no_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
            ours in any::<bool>(),
        ) {
            let mut blob = if ours { header(0).to_vec() } else { Vec::new() };
            blob.extend(bytes);
            let _ = decode::<Vec<(u16, Option<String>, f64)>>(&blob);
        }
    }
}
