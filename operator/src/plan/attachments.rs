//! Policies for proxies that are known by the labels of their Pod, indexed, with the configurations that
//! were made of them.

use std::collections::{BTreeMap, HashMap};
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use headgate_core::config::StageConfig;

use super::enforced::{Configurations, Enforced};
use super::selectors::Selectors;
use super::{ProxySelector, Share, TargetRef};

/// One policy at one of its targets, for proxies that are known by the labels of their Pod.
#[derive(Debug, Clone, PartialEq)]
pub struct Attachment {
    /// The target.
    pub target: TargetRef,
    /// The proxies that enforce it.
    pub proxies: ProxySelector,
    /// What one of these proxies enforces: its part of the slots, and the routes it is for.
    pub stage: Arc<StageConfig>,
    /// Where its part of the slots comes from.
    pub share: Share,
}

/// Attachments in order of precedence. Cheap to copy; never changed.
#[derive(Debug, Clone, Default)]
pub struct Attachments(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    all: Vec<Attachment>,
    selectors: Selectors,
    /// What proxies enforce by the places of the attachments that match them.
    made: Mutex<HashMap<Vec<usize>, Arc<Enforced>>>,
    configurations: Arc<Configurations>,
}

/// Sets of attachments whose result is kept, beyond one for each attachment. Labels come from proxies, so
/// how many sets there are is theirs to choose.
const MORE_SETS: usize = 1_024;

impl Attachments {
    /// Attachments, which must be in order of precedence, whose `selectors` have been filed already and
    /// whose configurations are shared with other plans.
    pub(crate) fn new(
        all: Vec<Attachment>,
        selectors: Selectors,
        configurations: Arc<Configurations>,
    ) -> Self {
        Self(Arc::new(Inner {
            all,
            selectors,
            made: Mutex::default(),
            configurations,
        }))
    }

    /// What a Pod's proxy enforces. `O(labels + matching attachments)`, and a configuration is made only for
    /// the first proxy of its like.
    pub(crate) fn enforced(
        &self,
        namespace: &str,
        labels: &BTreeMap<String, String>,
    ) -> Arc<Enforced> {
        let mut places = Vec::new();
        self.0.selectors.matching(namespace, labels, &mut places);
        self.enforced_at(places)
    }

    /// What a proxy enforces that the attachments at `places` match.
    pub(crate) fn enforced_at(&self, places: Vec<usize>) -> Arc<Enforced> {
        if let Some(known) = self.made().get(&places) {
            return Arc::clone(known);
        }
        // Made without the lock: the other proxies need not wait for it.
        let matching: Vec<&Attachment> =
            places.iter().filter_map(|at| self.0.all.get(*at)).collect();
        let enforced = Arc::new(Enforced::by_labels(&matching, &self.0.configurations));
        let mut made = self.made();
        if made.len() >= self.0.all.len().saturating_add(MORE_SETS) {
            return enforced;
        }
        Arc::clone(made.entry(places).or_insert(enforced))
    }

    /// Sets of attachments whose result is kept.
    #[cfg(test)]
    pub(crate) fn remembered(&self) -> usize {
        self.made().len()
    }

    fn made(&self) -> MutexGuard<'_, HashMap<Vec<usize>, Arc<Enforced>>> {
        self.0.made.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Deref for Attachments {
    type Target = [Attachment];

    fn deref(&self) -> &[Attachment] {
        &self.0.all
    }
}

impl PartialEq for Attachments {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0.all == other.0.all
    }
}

impl From<Vec<Attachment>> for Attachments {
    /// Attachments in order of precedence.
    fn from(all: Vec<Attachment>) -> Self {
        let selectors = Selectors::new(all.iter().map(|a| a.proxies.clone()).collect());
        Self::new(all, selectors, Arc::default())
    }
}
