//! Encoded resources, shared by all proxies and kept from one plan to the next.
//!
//! A thousand proxies of one workload need one resource, and an edit of one policy leaves the
//! resources of all others unchanged. But proxies choose slot names and module paths. So the cache
//! is bounded in bytes, in total and for the policies of one namespace, and evicts the least
//! recently used resources first. An evicted resource is built anew.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use headgate_core::config::FilterConfig;

use super::resource::Resource;
use crate::quota::{Full, Quota, Slot};

/// The content of a configuration (its revision and first policy, and the address of one without
/// revision), the slot name and the module. A revision is short enough for a deliberate collision,
/// but not with another namespace's configuration, because the policy is part of the key.
type Key = ((String, String), usize, String, PathBuf);

/// Resources by their content's key.
#[derive(Debug)]
pub struct ResourceCache {
    state: Mutex<State>,
    /// Bytes by the namespace of the policy.
    bytes: Arc<Quota<String>>,
}

#[derive(Debug, Default)]
struct State {
    built: HashMap<Key, Entry>,
    /// The number of requests so far, by which entries are ordered by use.
    uses: u64,
}

#[derive(Debug)]
struct Entry {
    resource: Arc<Resource>,
    /// Keeps the address in the key allocated, if the key has one.
    _config: Option<Arc<FilterConfig>>,
    bytes: Slot<String>,
    used: u64,
}

impl ResourceCache {
    /// Returns a cache of at most `max_bytes` of encoded resources and their keys, and at most
    /// `max_each` of those of one namespace's policies.
    #[must_use]
    pub fn new(max_bytes: usize, max_each: usize) -> Self {
        Self {
            state: Mutex::default(),
            bytes: Quota::new(max_bytes, max_each),
        }
    }

    /// Returns the resource that makes slot `name` run `module` with `config`.
    #[must_use]
    pub fn get(&self, config: &Arc<FilterConfig>, name: &str, module: &Path) -> Arc<Resource> {
        // A revision is a hash of the content. The empty configuration has none, nor do some in
        // tests.
        let address = match config.revision.is_empty() {
            true => Arc::as_ptr(config) as usize,
            false => 0,
        };
        let of_calls = config.outbound.as_ref().map(|o| o.policy.clone());
        let of_stage = config.stages.first().map(|s| s.policy.clone());
        let policy = of_stage.or(of_calls);
        let key = (
            (config.revision.clone(), policy.unwrap_or_default()),
            address,
            name.to_owned(),
            module.to_owned(),
        );
        let mut state = self.lock();
        state.uses += 1;
        let used = state.uses;
        if let Some(entry) = state.built.get_mut(&key) {
            entry.used = used;
            return Arc::clone(&entry.resource);
        }
        drop(state);
        let resource = Arc::new(Resource::new(config, name, module));
        let names = key.0.0.len() + key.0.1.len() + name.len() + key.3.as_os_str().len();
        let bytes = resource.any.value.len() + names;
        let mut state = self.lock();
        if let Some(bytes) = self.room(&mut state, &key, bytes) {
            let entry = Entry {
                resource: Arc::clone(&resource),
                _config: (address != 0).then(|| Arc::clone(config)),
                bytes,
                used,
            };
            state.built.insert(key, entry);
        }
        drop(state);
        resource
    }

    /// Returns room for a new entry, after evictions if necessary; `None` for an entry that is
    /// larger than the limit of one namespace.
    fn room(&self, state: &mut State, key: &Key, bytes: usize) -> Option<Slot<String>> {
        // Another task may have built the same.
        state.built.remove(key);
        let namespace = namespace(key);
        let take = || self.bytes.take(namespace.to_owned(), bytes);
        // An eviction meets one of the two limits.
        for _ in 0..2 {
            let (of, max) = match take() {
                Ok(slot) => return Some(slot),
                Err(_) if bytes > self.bytes.max_each => return None,
                Err(Full::Each) => (Some(namespace), self.bytes.max_each),
                Err(Full::All) => (None, self.bytes.max),
            };
            state.evict(of, (max / 2).min(max.saturating_sub(bytes)));
        }
        take().ok()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the namespace of the policy; empty for the empty configuration.
fn namespace(key: &Key) -> &str {
    key.0
        .1
        .split_once('/')
        .map_or("", |(namespace, _)| namespace)
}

impl State {
    /// Evicts the least recently used entries, of one namespace or of all, until at most `target`
    /// bytes of them are left. Callers pass at most half of the limit, so that one search makes
    /// room for many insertions.
    fn evict(&mut self, of: Option<&str>, target: usize) {
        let is_of = |key: &Key| of.is_none_or(|of| namespace(key) == of);
        let entries = self.built.iter().filter(|(key, _)| is_of(key));
        let mut by_use: Vec<(u64, usize)> =
            entries.map(|(_, e)| (e.used, e.bytes.amount)).collect();
        by_use.sort_unstable_by(|a, b| b.cmp(a));
        let mut kept = 0;
        let oldest_kept = by_use
            .into_iter()
            .take_while(|(_, bytes)| {
                kept += bytes;
                kept <= target
            })
            .last()
            .map_or(u64::MAX, |(used, _)| used);
        self.built
            .retain(|key, e| !is_of(key) || e.used >= oldest_kept);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(revision: &str) -> Arc<FilterConfig> {
        Arc::new(FilterConfig {
            revision: revision.to_owned(),
            ..FilterConfig::default()
        })
    }

    #[test]
    fn equal_content_is_encoded_once() {
        let cache = ResourceCache::new(1 << 20, 1 << 20);
        let module = Path::new("/m.wasm");
        let first = cache.get(&config("1"), "headgate", module);
        assert!(Arc::ptr_eq(
            &first,
            &cache.get(&config("1"), "headgate", module)
        ));
        for other in [
            cache.get(&config("2"), "headgate", module),
            cache.get(&config("1"), "headgate-b", module),
            cache.get(&config("1"), "headgate", Path::new("/n.wasm")),
        ] {
            assert_ne!(first.version, other.version);
        }
    }

    #[test]
    fn a_thousand_module_paths_stay_within_the_bound_and_those_in_use_stay() {
        let one = ResourceCache::new(1 << 20, 1 << 20);
        let _ = one.get(&config("1"), "headgate", Path::new("/m/0000.wasm"));
        let max = one.bytes.taken() * 20;
        let cache = ResourceCache::new(max, max);
        let used = cache.get(&config("1"), "headgate", Path::new("/used.wasm"));
        for i in 0..1_000 {
            let path = format!("/m/{i:04}.wasm");
            let _ = cache.get(&config("1"), "headgate", Path::new(&path));
            let again = cache.get(&config("1"), "headgate", Path::new("/used.wasm"));
            assert!(Arc::ptr_eq(&used, &again), "{i}");
            let state = cache.lock();
            let sum: usize = state.built.values().map(|e| e.bytes.amount).sum();
            drop(state);
            assert_eq!(cache.bytes.taken(), sum);
            assert!(sum <= max, "{i}: {sum}");
        }
    }

    #[test]
    fn a_namespace_evicts_no_more_than_its_own_share() {
        let of = |policy: &str| {
            let mut config = FilterConfig::clone(&config("1"));
            let outbound = format!(r#"{{"policy": "{policy}"}}"#);
            config.outbound = Some(serde_json::from_str(&outbound).unwrap());
            Arc::new(config)
        };
        let one = ResourceCache::new(1 << 20, 1 << 20);
        let _ = one.get(&of("a/p"), "headgate", Path::new("/m/0000.wasm"));
        let max = one.bytes.taken() * 20;
        let cache = ResourceCache::new(max, max / 2);
        let path = Path::new("/m.wasm");
        let others = cache.get(&of("b/p"), "headgate", path);
        for i in 0..1_000 {
            let path = format!("/m/{i:04}.wasm");
            let _ = cache.get(&of("a/p"), "headgate", Path::new(&path));
            assert!(cache.bytes.taken() <= max / 2 + max / 20, "{i}");
        }
        let again = cache.get(&of("b/p"), "headgate", path);
        assert!(Arc::ptr_eq(&others, &again));
    }

    #[test]
    fn an_entry_of_most_of_its_namespaces_room_is_cached() {
        let path = |length: usize| format!("/{}.wasm", "m".repeat(length));
        let bytes = |length: usize| {
            let cache = ResourceCache::new(1 << 20, 1 << 20);
            let _ = cache.get(&config("1"), "headgate", Path::new(&path(length)));
            cache.bytes.taken()
        };
        let (small, large) = (bytes(1), bytes(10_000));
        for (max, max_each) in [(2 * large, large + small), (large + small, large + small)] {
            let cache = ResourceCache::new(max, max_each);
            for i in 0..large / small {
                let module = format!("/{i}.wasm");
                let _ = cache.get(&config("1"), "headgate", Path::new(&module));
            }
            let get = || cache.get(&config("1"), "headgate", Path::new(&path(10_000)));
            assert!(Arc::ptr_eq(&get(), &get()), "{max} {max_each}");
        }
    }

    #[test]
    fn what_is_larger_than_the_cache_is_made_each_time() {
        let cache = ResourceCache::new(1, 1);
        let a = cache.get(&config("1"), "headgate", Path::new("/m.wasm"));
        let b = cache.get(&config("1"), "headgate", Path::new("/m.wasm"));
        assert_eq!(a, b);
        assert_eq!(cache.bytes.taken(), 0);
    }
}
