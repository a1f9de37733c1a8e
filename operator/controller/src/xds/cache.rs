//! Encoded resources, shared by all proxies and kept from one plan to the next.
//!
//! A thousand proxies of one workload need one resource, and an edit of one policy leaves the
//! resources of all others unchanged. But proxies choose slot names and module paths. So the cache
//! is bounded in bytes, and evicts the least recently used resources first. An evicted resource is
//! built anew.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use headgate_core::config::FilterConfig;

use super::resource::Resource;

/// A configuration's content (its revision and first policy, and the address of one without
/// revision), slot name and module. A revision is short enough for a deliberate collision, but not
/// with another namespace's configuration, because the policy is part of the key.
type Key = ((String, String), usize, String, PathBuf);

/// Resources by their content's key.
#[derive(Debug)]
pub struct ResourceCache {
    state: Mutex<State>,
    max_bytes: usize,
}

#[derive(Debug, Default)]
struct State {
    built: HashMap<Key, Entry>,
    bytes: usize,
    /// The number of requests so far, by which entries are ordered by use.
    uses: u64,
}

#[derive(Debug)]
struct Entry {
    resource: Arc<Resource>,
    /// Keeps the address in the key allocated, if the key has one.
    _config: Option<Arc<FilterConfig>>,
    bytes: usize,
    used: u64,
}

impl ResourceCache {
    /// Returns a cache of at most `max_bytes` of encoded resources and their keys.
    #[must_use]
    pub fn new(max_bytes: usize) -> Self {
        Self {
            state: Mutex::default(),
            max_bytes,
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
        let entry = Entry {
            resource: Arc::clone(&resource),
            _config: (address != 0).then(|| Arc::clone(config)),
            bytes,
            used,
        };
        self.lock().insert(key, entry, self.max_bytes);
        resource
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn insert(&mut self, key: Key, entry: Entry, max_bytes: usize) {
        if entry.bytes > max_bytes {
            return;
        }
        if self.bytes + entry.bytes > max_bytes {
            self.evict(max_bytes / 2);
        }
        self.bytes += entry.bytes;
        if let Some(old) = self.built.insert(key, entry) {
            self.bytes -= old.bytes;
        }
    }

    /// Evicts the least recently used entries until at most `target` bytes are left. The target is
    /// half of the bound, so that many insertions pay for one search.
    fn evict(&mut self, target: usize) {
        let mut by_use: Vec<(u64, usize)> =
            self.built.values().map(|e| (e.used, e.bytes)).collect();
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
        self.built.retain(|_, e| e.used >= oldest_kept);
        self.bytes = self.built.values().map(|e| e.bytes).sum();
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
        let cache = ResourceCache::new(1 << 20);
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
        let one = ResourceCache::new(1 << 20);
        let _ = one.get(&config("1"), "headgate", Path::new("/m/0000.wasm"));
        let max = one.lock().bytes * 20;
        let cache = ResourceCache::new(max);
        let used = cache.get(&config("1"), "headgate", Path::new("/used.wasm"));
        for i in 0..1_000 {
            let path = format!("/m/{i:04}.wasm");
            let _ = cache.get(&config("1"), "headgate", Path::new(&path));
            let again = cache.get(&config("1"), "headgate", Path::new("/used.wasm"));
            assert!(Arc::ptr_eq(&used, &again), "{i}");
            let state = cache.lock();
            let sum: usize = state.built.values().map(|e| e.bytes).sum();
            assert_eq!(state.bytes, sum);
            assert!(state.bytes <= max, "{i}: {}", state.bytes);
        }
    }

    #[test]
    fn what_is_larger_than_the_cache_is_made_each_time() {
        let cache = ResourceCache::new(1);
        let a = cache.get(&config("1"), "headgate", Path::new("/m.wasm"));
        let b = cache.get(&config("1"), "headgate", Path::new("/m.wasm"));
        assert_eq!(a, b);
        assert_eq!(cache.lock().bytes, 0);
    }
}
