//! An index of selectors. The index finds the selectors that match a Pod's labels without testing
//! all selectors.
//!
//! A namespace may have a thousand selectors. Each selector is indexed under the one of its labels
//! that the fewest selectors share. So a Pod is compared to few selectors that don't match the Pod.
//! The cost for a Pod is `O(labels + candidates)` instead of `O(selectors)`.

use std::collections::{BTreeMap, HashMap};

use super::ProxySelector;

/// An index of selectors. A selector is identified by its place in the original list.
#[derive(Debug, Clone, Default)]
pub struct Selectors {
    selectors: Vec<ProxySelector>,
    /// The indexes of selectors, by namespace, key and value of the label under which they are
    /// indexed.
    filed: HashMap<String, HashMap<String, HashMap<String, Vec<usize>>>>,
}

impl Selectors {
    /// Returns an index of `selectors`. A selector without labels matches nothing: forgotten labels
    /// must not mean all Pods.
    pub fn new(selectors: Vec<ProxySelector>) -> Self {
        let mut shared: HashMap<(&str, &str, &str), usize> = HashMap::new();
        for selector in &selectors {
            for (key, value) in &selector.labels {
                *shared.entry((&selector.namespace, key, value)).or_default() += 1;
            }
        }
        let mut filed: HashMap<String, HashMap<String, HashMap<String, Vec<usize>>>> =
            HashMap::new();
        for (at, selector) in selectors.iter().enumerate() {
            let namespace = selector.namespace.as_str();
            let rarest = selector
                .labels
                .iter()
                .min_by_key(|(key, value)| shared.get(&(namespace, key, value)));
            let Some((key, value)) = rarest else { continue };
            filed
                .entry(namespace.to_owned())
                .or_default()
                .entry(key.clone())
                .or_default()
                .entry(value.clone())
                .or_default()
                .push(at);
        }
        Self { selectors, filed }
    }

    /// Replaces the content of `found` by the places of all selectors that match Pods of
    /// `namespace` with `labels`, in ascending order.
    pub fn matching(
        &self,
        namespace: &str,
        labels: &BTreeMap<String, String>,
        found: &mut Vec<usize>,
    ) {
        found.clear();
        let Some(keys) = self.filed.get(namespace) else {
            return;
        };
        for (key, value) in labels {
            let Some(candidates) = keys.get(key).and_then(|values| values.get(value)) else {
                continue;
            };
            let matches = |at: &&usize| {
                self.selectors
                    .get(**at)
                    .is_some_and(|s| s.matches(namespace, labels))
            };
            found.extend(candidates.iter().filter(matches));
        }
        found.sort_unstable();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn labels() -> impl Strategy<Value = BTreeMap<String, String>> {
        proptest::collection::btree_map("[a-d]", "[x-z]", 0..4)
    }

    proptest! {
        #[test]
        fn the_index_finds_the_same_selectors_as_a_full_search(
            selectors in proptest::collection::vec(("[mn]", labels()), 0..20),
            namespace in "[mno]",
            pod in labels(),
        ) {
            let selectors: Vec<ProxySelector> = selectors
                .into_iter()
                .map(|(namespace, labels)| ProxySelector { namespace, labels })
                .collect();
            let all: Vec<usize> = (0..selectors.len())
                .filter(|at| selectors[*at].matches(&namespace, &pod))
                .collect();
            let mut found = vec![7];
            Selectors::new(selectors).matching(&namespace, &pod, &mut found);
            prop_assert_eq!(found, all);
        }
    }
}
