//! An index of matches by path or header, so that a request is compared only with matches that its
//! path and headers allow.
//!
//! Matches with the same key are in one list, a *drawer*. The key is an exact path or, without one,
//! a prefix. A match with neither has the exact value of a header as its key. All other matches are
//! in one list, the rest. A request with path `/a/b/c` searches the drawer of its path, the drawers
//! of the prefixes `/`, `/a`, `/a/b` and `/a/b/c`, the drawer of its value of each indexed header,
//! and the rest. Within a drawer, matches are in the order of their types. So the search of a
//! drawer ends at the first hit, or at the first type behind the best type so far. The smallest
//! type over all drawers is the first match in the policy's order. The cost depends on the path's
//! depth and on the number of indexed headers, not on the number of types.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, DefaultHasher};

use headgate_strategies::request::TypeId;

use super::RequestView;
use super::condition::{Conditions, Drawer};

/// Entries by path, or by a header's value. Keys come from the configuration, never from requests,
/// so the hash needs no secret. A Wasm module then needs no source of randomness.
type Drawers = HashMap<Box<[u8]>, Vec<Candidate>, BuildHasherDefault<DefaultHasher>>;

#[derive(Debug)]
struct Candidate {
    kind: TypeId,
    conditions: Conditions,
}

/// The index of the types' matches.
#[derive(Debug, Default)]
pub(super) struct Index {
    exact: Drawers,
    prefixes: Drawers,
    /// The number of slashes in the deepest prefix key. Prefixes of a request's path with more
    /// slashes aren't searched.
    depth: usize,
    /// Drawers by value, for each header.
    headers: Vec<(Box<str>, Drawers)>,
    rest: Vec<Candidate>,
}

impl Index {
    /// Adds a match of `kind`. Types must be added in order.
    pub(super) fn insert(&mut self, kind: TypeId, conditions: Conditions) {
        let drawer = match conditions.drawer() {
            Drawer::Path(path) => self.exact.entry(path).or_default(),
            Drawer::Prefix(prefix) => {
                let depth = prefix.iter().filter(|b| **b == b'/').count();
                self.depth = self.depth.max(depth);
                self.prefixes.entry(prefix).or_default()
            }
            Drawer::Header(name, value) => {
                let known = self.headers.iter().position(|(n, _)| *n == name);
                let at = known.unwrap_or_else(|| {
                    self.headers.push((name, Drawers::default()));
                    self.headers.len() - 1
                });
                self.headers[at].1.entry(value).or_default()
            }
            Drawer::Any => &mut self.rest,
        };
        drawer.push(Candidate { kind, conditions });
    }

    /// Returns the first type that matches. `path` has no query string.
    pub(super) fn first(&self, path: Option<&[u8]>, request: &impl RequestView) -> Option<TypeId> {
        let mut best = None;
        let mut search = |drawer: &[Candidate]| {
            for entry in drawer {
                if best.is_some_and(|best| entry.kind >= best) {
                    return;
                }
                if entry.conditions.failing(path, request).is_none() {
                    best = Some(entry.kind);
                    return;
                }
            }
        };
        if let Some(path) = path {
            if !self.exact.is_empty()
                && let Some(drawer) = self.exact.get(path)
            {
                search(drawer);
            }
            if !self.prefixes.is_empty() {
                for prefix in prefixes(path).take(self.depth + 1) {
                    if let Some(drawer) = self.prefixes.get(prefix) {
                        search(drawer);
                    }
                }
            }
        }
        for (name, drawers) in &self.headers {
            if let Some(drawer) = request.header(name).and_then(|value| drawers.get(value)) {
                search(drawer);
            }
        }
        search(&self.rest);
        best
    }
}

/// Yields the prefixes of `path` that consist of whole path elements, each one element longer than
/// the one before: for `/a/b` the empty path (for `/`), `/a` and `/a/b`.
fn prefixes(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    let slashes = path
        .iter()
        .enumerate()
        .filter(|(_, b)| **b == b'/')
        .map(|(at, _)| at);
    // A prefix starts with a slash, so a path that doesn't start with a slash (`*`) has no
    // prefixes. An empty path has no prefixes, either.
    let ends = slashes.chain((!path.is_empty()).then_some(path.len()));
    ends.take(if path.first() == Some(&b'/') {
        usize::MAX
    } else {
        0
    })
    .map(|end| &path[..end])
}
