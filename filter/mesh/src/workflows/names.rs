//! The directories of names and their ids. A process has one directory of workflows and one of the
//! services that it calls.
//!
//! Names come from clients and are unbounded, so only a limited number of names get their own id.
//! All other names share id 0, and cost no host call once the directory is full. The directory is a
//! record ([`crate::shared`]). Each worker keeps a copy of the directory, and updates the copy on a
//! tick if a gauge shows a change.
//!
//! An id that was idle for long may be freed and assigned to another name. Names with settings of
//! their own always get an id ([`Directory::reserve`]), if necessary that of another name. Until
//! their next tick, other workers may still count requests of the old name for the new name. This
//! lasts for milliseconds only.
//!
//! **Bound.** A name is at most [`MAX_NAME`] bytes. A longer name shares id 0. For n names, a
//! worker uses at most `1024 + n · (2 · MAX_NAME + 160)` bytes, and the blob at most `8 + n ·
//! (MAX_NAME + 3)` bytes.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use headgate_core::config::MAX_WORKFLOW_NAME as MAX_NAME;
use headgate_strategies::host::{HostError, Shared};
use headgate_strategies::time::Instant;
use serde::{Deserialize, Serialize};

use crate::shared::{self, Watched};

/// The time after a failed host call during which no name is added. Otherwise every request would
/// repeat the call.
const RETRY: Duration = Duration::from_millis(100);

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Id {
    name: Option<Box<[u8]>>,
    /// Whether the id was freed before. A current name of the id is then not its first name.
    reused: bool,
}

/// An id that was freed.
const FREED: Id = Id {
    name: None,
    reused: true,
};

/// Assigns an index below `cap` to `name`. If no index is free, the last one whose name `may_lose`
/// it is assigned. Returns whether `ids` changed, and the index, or `None` without an index for
/// `name`.
fn assign(
    ids: &mut Vec<Id>,
    name: &[u8],
    cap: usize,
    may_lose: impl Fn(&[u8]) -> bool,
) -> (bool, Option<usize>) {
    let known = ids.iter().position(|id| id.name.as_deref() == Some(name));
    if known.is_some_and(|at| at < cap) {
        return (false, known);
    }
    let free = ids.iter().position(|id| id.name.is_none());
    let free = Some(free.unwrap_or(ids.len())).filter(|at| *at < cap);
    let other = |id: &Id| id.name.as_deref().is_some_and(&may_lose);
    let Some(at) = free.or_else(|| ids.iter().take(cap).rposition(other)) else {
        return (false, None);
    };
    ids.resize(ids.len().max(at + 1), Id::default());
    ids[at].reused |= ids[at].name.is_some();
    ids[at].name = Some(name.into());
    if let Some(known) = known {
        ids[known] = FREED;
    }
    (true, Some(at))
}

/// The record of a directory. The id at index i is i + 1.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Ids(Vec<Id>);

impl shared::Record for Ids {
    const SCHEMA: u32 = 9;
}

/// A worker's copy of the directory of names.
#[derive(Debug)]
pub(crate) struct Directory {
    record: Watched,
    cap: u16,
    retry_at: Instant,
    /// The number of changes of the copy.
    revision: u64,
    /// The names. The id at index i is i + 1.
    ids: Vec<Id>,
    by_name: HashMap<Box<[u8]>, u16>,
    /// The ids that lost their names since the last [`Directory::take_freed`].
    freed: Vec<u16>,
}

impl Directory {
    /// Creates a directory of at most `cap` names at the blob `key`. The gauge `changes` counts the
    /// changes of the directory.
    ///
    /// # Errors
    /// [`HostError`] if the host refuses the gauge.
    pub(crate) fn new(
        host: &impl Shared,
        key: String,
        changes: &str,
        cap: u16,
    ) -> Result<Self, HostError> {
        Ok(Self {
            record: Watched::new(host, key, changes)?,
            cap,
            retry_at: Instant::default(),
            revision: 0,
            ids: Vec::new(),
            by_name: HashMap::new(),
            freed: Vec::new(),
        })
    }

    /// Sets the maximum number of names. Names with higher ids share id 0.
    pub(crate) fn set_cap(&mut self, cap: u16) {
        self.cap = cap;
        self.record.forget();
    }

    /// Returns the id of `name`, from 1, and adds a new name to the directory. Returns `None` if
    /// the name is empty, too long or beyond the cap, and for a while after the host failed. A
    /// known name costs no host call.
    pub(crate) fn id(&mut self, host: &impl Shared, now: Instant, name: &[u8]) -> Option<u16> {
        if let Some(&id) = self.by_name.get(name) {
            return Some(id);
        }
        if name.is_empty() || name.len() > MAX_NAME || self.is_full() || now < self.retry_at {
            return None;
        }
        let added = self.add(host, name);
        if added.is_err() {
            self.retry_at = now + RETRY;
        }
        added.ok().flatten()
    }

    /// Adds those of `names` that have no id, and moves those whose id is beyond the cap. If no id
    /// is left, the last id of a name that isn't one of `names` is assigned.
    ///
    /// # Errors
    /// [`HostError`]. No name is then added.
    pub(crate) fn reserve<'a>(
        &mut self,
        host: &impl Shared,
        names: &(impl Iterator<Item = &'a [u8]> + Clone),
    ) -> Result<(), HostError> {
        if names.clone().all(|name| self.by_name.contains_key(name)) {
            return Ok(());
        }
        let cap = usize::from(self.cap);
        let reserved: HashSet<&[u8]> = names.clone().collect();
        self.update(host, |ids| {
            let mut changed = false;
            for name in names.clone() {
                let (added, _) = assign(ids, name, cap, |other| !reserved.contains(other));
                changed |= added;
            }
            (changed, ())
        })
    }

    /// Returns the name of an id.
    pub(crate) fn name(&self, id: u16) -> Option<&[u8]> {
        self.place(id)?.name.as_deref()
    }

    /// Whether the id belonged to another name earlier.
    pub(crate) fn is_reused(&self, id: u16) -> bool {
        self.place(id).is_some_and(|id| id.reused)
    }

    fn place(&self, id: u16) -> Option<&Id> {
        self.ids.get(usize::from(id).checked_sub(1)?)
    }

    /// Returns the ids that lost their name since the last call of this function. Each of these ids
    /// is now free or has another name.
    pub(crate) fn take_freed(&mut self) -> Vec<u16> {
        std::mem::take(&mut self.freed)
    }

    /// Returns a number that changes whenever the copy changes.
    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    /// Returns the number of known names.
    pub(crate) fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Whether no id is left for another name.
    pub(crate) fn is_full(&self) -> bool {
        self.by_name.len() >= usize::from(self.cap)
    }

    /// Yields ids and names, in ascending order of ids.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u16, &[u8])> {
        let named = (1_u16..).zip(&self.ids);
        named.filter_map(|(id, place)| Some((id, place.name.as_deref()?)))
    }

    /// Updates the copy if another worker changed the directory. Returns whether another worker
    /// changed the directory.
    ///
    /// # Errors
    /// [`HostError`]. The next call then tries again.
    pub(crate) fn sync(&mut self, host: &impl Shared) -> Result<bool, HostError> {
        let Some(Ids(ids)) = self.record.news(host)? else {
            return Ok(false);
        };
        self.learn(ids);
        Ok(true)
    }

    /// Frees the ids `idle` for other names.
    ///
    /// # Errors
    /// [`HostError`]. No id is then freed.
    pub(crate) fn free(&mut self, host: &impl Shared, idle: &[u16]) -> Result<(), HostError> {
        self.update(host, |ids| {
            let mut freed = false;
            for &id in idle {
                let place = ids.get_mut(usize::from(id).wrapping_sub(1));
                if let Some(place) = place.filter(|place| place.name.is_some()) {
                    *place = FREED;
                    freed = true;
                }
            }
            (freed, ())
        })
    }

    fn add(&mut self, host: &impl Shared, name: &[u8]) -> Result<Option<u16>, HostError> {
        let cap = usize::from(self.cap);
        let added = self.update(host, |ids| assign(ids, name, cap, |_| false))?;
        Ok(added.and_then(|at| u16::try_from(at + 1).ok()))
    }

    /// Changes the directory by `change`, which returns whether the directory changed.
    fn update<T>(
        &mut self,
        host: &impl Shared,
        mut change: impl FnMut(&mut Vec<Id>) -> (bool, T),
    ) -> Result<T, HostError> {
        let (Ids(ids), (changed, result)) = self.record.change(host, |Ids(ids)| {
            let (changed, result) = change(ids);
            (changed, (changed, result))
        })?;
        self.learn(ids);
        if changed {
            // On an error, the other workers notice this change together with the next change.
            self.record.announce(host).or(Ok(()))?;
        }
        Ok(result)
    }

    fn learn(&mut self, mut ids: Vec<Id>) {
        ids.truncate(usize::from(self.cap));
        // Names of other lengths are removed. Headgate stores none, but the record is not trusted.
        for id in &mut ids {
            id.name
                .take_if(|name| !(1..=MAX_NAME).contains(&name.len()));
        }
        if ids == self.ids {
            return;
        }
        self.revision += 1;
        for (id, place) in (1_u16..).zip(&self.ids) {
            let now = ids
                .get(usize::from(id) - 1)
                .and_then(|place| place.name.as_ref());
            if place.name.is_some() && place.name.as_ref() != now && !self.freed.contains(&id) {
                self.freed.push(id);
            }
        }
        self.by_name.clear();
        for (id, place) in (1_u16..).zip(&ids) {
            if let Some(name) = &place.name {
                self.by_name.insert(name.clone(), id);
            }
        }
        self.ids = ids;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::memory::{Fault, MemoryHost};
    use crate::shared::ATTEMPTS;

    const T: Instant = Instant::from_nanos(1);

    /// Returns the maximum memory of a worker's copy of `names` names, bytes. The memory consists
    /// of each name twice, its entries in both tables, and the tables' spare capacity.
    fn bytes_for(names: usize) -> usize {
        1024 + names * (2 * MAX_NAME + 160)
    }

    /// Returns the memory of the copy, bytes.
    fn bytes(worker: &Directory) -> usize {
        let names: usize = worker.iter().map(|(_, name)| 2 * name.len()).sum();
        // A hash table has a control byte for each entry.
        let table = worker.by_name.capacity() * (size_of::<(Box<[u8]>, u16)>() + 1);
        names + table + worker.ids.capacity() * size_of::<Id>()
    }

    fn directory(host: &MemoryHost, cap: u16) -> Directory {
        Directory::new(host, "names".into(), "changes", cap).unwrap()
    }

    #[test]
    fn all_workers_call_a_name_the_same() {
        let host = MemoryHost::new();
        let mut workers = [directory(&host, 10), directory(&host, 10)];
        let a = workers[0].id(&host, T, b"a").unwrap();
        assert_eq!(workers[1].id(&host, T, b"a"), Some(a));
        let b = workers[1].id(&host, T, b"b").unwrap();
        assert!(workers[0].sync(&host).unwrap());
        assert_eq!(workers[0].id(&host, T, b"b"), Some(b));
        assert_eq!(workers[0].name(b), Some(&b"b"[..]));
        let calls = host.calls();
        assert_eq!(workers[0].id(&host, T, b"a"), Some(a));
        assert_eq!(host.calls(), calls, "a known name costs no call");
        assert!(!workers[0].sync(&host).unwrap());
    }

    #[test]
    fn names_are_bounded_whatever_arrives() {
        let (host, cap) = (MemoryHost::new(), 1_000);
        let mut workers = [directory(&host, cap), directory(&host, cap)];
        let name = |n: usize| format!("{n:0>width$}", width = 1 + n % MAX_NAME);
        for n in 0..10_000 {
            let worker = &mut workers[n % 2];
            let id = worker.id(&host, T, name(n).as_bytes());
            assert!(id.is_none_or(|id| (1..=cap).contains(&id)));
            if n % 100 == 0 {
                worker.sync(&host).unwrap();
            }
        }
        for worker in &mut workers {
            worker.sync(&host).unwrap();
            assert_eq!(worker.len(), usize::from(cap));
            let (found, bound) = (bytes(worker), bytes_for(usize::from(cap)));
            assert!(found <= bound, "{found} bytes, at most {bound}");
        }
        let blob = host.load(&shared::key("names", 9)).unwrap().unwrap().0;
        assert!(blob.len() <= 8 + usize::from(cap) * (MAX_NAME + 3));
        let calls = host.calls();
        for n in 10_000..20_000 {
            assert_eq!(workers[0].id(&host, T, name(n).as_bytes()), None);
        }
        assert_eq!(host.calls(), calls, "a full directory costs no call");
        let long = [b'a'; MAX_NAME + 1];
        assert_eq!(directory(&host, 2_000).id(&host, T, &long), None);
        assert_eq!(directory(&host, 2_000).id(&host, T, b""), None);
    }

    #[test]
    fn an_idle_id_goes_to_another_name() {
        let host = MemoryHost::new();
        let mut workers = [directory(&host, 2), directory(&host, 2)];
        let idle = workers[0].id(&host, T, b"idle").unwrap();
        let kept = workers[0].id(&host, T, b"kept").unwrap();
        assert_eq!(workers[1].id(&host, T, b"new"), None);
        workers[0].free(&host, &[idle]).unwrap();
        workers[1].sync(&host).unwrap();
        assert_eq!(workers[1].id(&host, T, b"new"), Some(idle));
        assert_eq!(
            workers.each_mut().map(Directory::take_freed),
            [[idle], [idle]]
        );
        assert!(workers[1].take_freed().is_empty());
        assert!(workers[1].is_reused(idle) && !workers[1].is_reused(kept));
        workers[0].sync(&host).unwrap();
        assert_eq!(workers[0].id(&host, T, b"idle"), None);
        assert_eq!(workers[0].name(idle), Some(&b"new"[..]));
    }

    #[test]
    fn a_lower_cap_takes_the_latest() {
        let host = MemoryHost::new();
        let mut worker = directory(&host, 3);
        let ids: Vec<_> = [b"a", b"b", b"c"]
            .map(|name| worker.id(&host, T, name))
            .into();
        assert_eq!(ids, [Some(1), Some(2), Some(3)]);
        worker.set_cap(2);
        worker.sync(&host).unwrap();
        assert_eq!(worker.id(&host, T, b"c"), None);
        worker.set_cap(3);
        worker.sync(&host).unwrap();
        assert_eq!(worker.id(&host, T, b"c"), Some(3));
    }

    #[test]
    fn reserved_names_have_an_id_after_any_other_names() {
        let host = MemoryHost::new();
        let mut workers = [directory(&host, 3), directory(&host, 3)];
        for name in [&b"a"[..], b"b", b"gold"] {
            workers[0].id(&host, T, name);
        }
        workers[1].sync(&host).unwrap();
        let gold = || [&b"gold"[..]].into_iter();
        let calls = host.calls();
        workers[0].reserve(&host, &gold()).unwrap();
        assert_eq!(host.calls(), calls, "it has an id");
        // An id beyond a lower cap is no longer valid.
        for worker in &mut workers {
            worker.set_cap(2);
            worker.sync(&host).unwrap();
            worker.reserve(&host, &gold()).unwrap();
            assert_eq!(worker.id(&host, T, b"gold"), Some(2));
            assert_eq!(worker.id(&host, T, b"a"), Some(1));
            assert_eq!(worker.id(&host, T, b"b"), None);
            let mut freed = worker.take_freed();
            freed.sort_unstable();
            assert_eq!(freed, [2, 3]);
            assert!(worker.is_reused(2) && worker.len() == 2);
        }
        // A free id comes first.
        workers[0].free(&host, &[1]).unwrap();
        let both = [&b"gold"[..], b"silver"].into_iter();
        workers[0].reserve(&host, &both).unwrap();
        assert_eq!(workers[0].id(&host, T, b"silver"), Some(1));
        // Reserved names don't take each other's ids.
        let more = both.chain([&b"bronze"[..]]);
        workers[0].reserve(&host, &more).unwrap();
        assert_eq!(workers[0].id(&host, T, b"bronze"), None);
        assert_eq!(workers[0].id(&host, T, b"gold"), Some(2));
    }

    #[test]
    fn a_failing_host_assigns_and_loses_no_name() {
        for fault in [Fault::LoadFails, Fault::StoreFails, Fault::StoreConflicts] {
            let host = MemoryHost::new();
            let mut worker = directory(&host, 3);
            worker.id(&host, T, b"a").unwrap();
            host.inject(fault, ATTEMPTS);
            assert_eq!(worker.id(&host, T, b"b"), None, "{fault:?}");
            host.inject(fault, 0);
            let calls = host.calls();
            assert_eq!(worker.id(&host, T, b"b"), None, "not with every request");
            assert_eq!(host.calls(), calls);
            assert_eq!(worker.id(&host, T + RETRY, b"b"), Some(2));
            assert_eq!(worker.id(&host, T, b"a"), Some(1));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_cause_no_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
            ours in any::<bool>(),
        ) {
            let mut blob = if ours { shared::header(9).to_vec() } else { Vec::new() };
            blob.extend(bytes);
            let host = MemoryHost::new();
            host.store(&shared::key("names", 9), &blob, None).unwrap();
            let mut worker = directory(&host, 10);
            worker.sync(&host).unwrap();
            prop_assert!(worker.len() <= 10);
            worker.id(&host, T, b"x");
        }
    }
}
