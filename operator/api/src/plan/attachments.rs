//! An index of the policies for proxies that are selected by their Pods' labels, and a cache of the
//! resulting configurations.

use std::collections::{BTreeMap, HashMap};
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::enforced::{Attachment, Configurations, Enforced};
use super::selectors::Selectors;

/// Attachments in order of precedence. The list is immutable, and cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Attachments(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    all: Vec<Attachment>,
    selectors: Selectors,
    /// The cached results, by the indexes of the attachments that match a proxy.
    made: Mutex<HashMap<Vec<usize>, Arc<Enforced>>>,
    configurations: Arc<Configurations>,
}

/// The number of cached results beyond one for each attachment. A limit is needed, because proxies
/// choose their labels and thus determine the number of different results.
const MORE_SETS: usize = 1_024;

impl Attachments {
    /// Returns an index of attachments, which are in order of precedence. `selectors` is the index
    /// of their selectors. `configurations` is shared with other plans.
    pub fn new(
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

    /// Returns the result for a Pod's proxy, in `O(labels + matching attachments)`. Proxies with
    /// the same attachments share one configuration.
    pub fn enforced(&self, namespace: &str, labels: &BTreeMap<String, String>) -> Arc<Enforced> {
        let mut places = Vec::new();
        self.0.selectors.matching(namespace, labels, &mut places);
        self.enforced_at(places)
    }

    /// Returns the result for a proxy that matches the attachments at `places`.
    pub fn enforced_at(&self, places: Vec<usize>) -> Arc<Enforced> {
        if let Some(known) = self.made().get(&places) {
            return Arc::clone(known);
        }
        // The result is made without holding the lock, so that other proxies don't wait.
        let matching: Vec<&Attachment> =
            places.iter().filter_map(|at| self.0.all.get(*at)).collect();
        let enforced = Arc::new(Enforced::by_labels(&matching, &self.0.configurations));
        let mut made = self.made();
        if made.len() >= self.0.all.len().saturating_add(MORE_SETS) {
            return enforced;
        }
        Arc::clone(made.entry(places).or_insert(enforced))
    }

    /// Returns the number of cached results.
    pub fn remembered(&self) -> usize {
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
    /// Returns an index of `all`, which is in order of precedence.
    fn from(all: Vec<Attachment>) -> Self {
        let selectors = Selectors::new(all.iter().map(|a| a.proxies.clone()).collect());
        Self::new(all, selectors, Arc::default())
    }
}
