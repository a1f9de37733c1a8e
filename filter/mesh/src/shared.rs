//! Records that all workers of a process share ([`headgate_strategies::shared`]).

use headgate_strategies::host::{HostError, Number, Shared};

pub(crate) use headgate_strategies::shared::*;

/// A record, and a number that counts its changes. Workers read the number often, and load the
/// record only after a change.
#[derive(Debug)]
pub(crate) struct Watched {
    key: String,
    changes: Number,
    /// The value of `changes` when this worker last loaded the record.
    seen: Option<u64>,
}

impl Watched {
    /// Watches the record `key`, whose changes the number `changes` counts.
    pub(crate) fn new(host: &impl Shared, key: String, changes: &str) -> Result<Self, HostError> {
        Ok(Self {
            key,
            changes: host.number(changes)?,
            seen: None,
        })
    }

    /// Returns the record if it has changed since the last call of this function. On an error, the
    /// next call tries again.
    pub(crate) fn news<T: Record + Default>(
        &mut self,
        host: &impl Shared,
    ) -> Result<Option<T>, HostError> {
        // The number is read before the record, so that the next call notices a change between the
        // two reads.
        let changes = host.get(self.changes)?;
        if self.seen == Some(changes) {
            return Ok(None);
        }
        let record = load(host, &self.key)?;
        self.seen = Some(changes);
        Ok(Some(record))
    }

    /// Makes the next call of [`Watched::news`] return the record.
    pub(crate) fn forget(&mut self) {
        self.seen = None;
    }

    /// Changes the record as [`change`] does. Other workers notice a change only after
    /// [`Watched::announce`].
    pub(crate) fn change<T: Record + Default, R>(
        &self,
        host: &impl Shared,
        f: impl FnMut(&mut T) -> (bool, R),
    ) -> Result<(T, R), HostError> {
        change(host, &self.key, f)
    }

    /// Counts a change, which all workers then notice.
    pub(crate) fn announce(&self, host: &impl Shared) -> Result<(), HostError> {
        host.add_to(self.changes, 1)
    }
}

#[cfg(test)]
#[path = "../../strategies/tests/memory/layout.rs"]
mod layout;

#[cfg(test)]
mod tests {
    use super::layout::check;
    use crate::workflows::ProcessId;
    use crate::workflows::call_tree::Children;
    use crate::workflows::names::Ids;
    use crate::workflows::record::Record;

    #[test]
    fn layouts_are_those_of_their_schemas() {
        check::<ProcessId>();
        check::<Record>();
        check::<Ids>();
        check::<Children>();
    }
}
