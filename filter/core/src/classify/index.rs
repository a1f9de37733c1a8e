//! Matches filed by path or by a header, so that a request tries only those that these allow.
//!
//! A match with an exact path is in the drawer of that path, one with a prefix in the drawer of
//! that prefix. One of the others that asks for an exact value of a header is in the drawer of that
//! value, the rest is in one list. A request with path `/a/b/c` looks into the drawer of its path,
//! into those of the prefixes `/`, `/a`, `/a/b` and `/a/b/c`, for each header that drawers are
//! about into that of its value, and into the list. Within a drawer, matches are in order of their
//! types, so the search there ends at the first hit or at the first type that comes after the best
//! one so far; the smallest type over all drawers is the first match in the policy's order. The
//! cost is that of the path's depth and of the number of headers, not that of the number of types.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, DefaultHasher};

use super::RequestView;
use super::condition::{Conditions, Drawer};
use crate::request::TypeId;

/// Drawers by path, or by a header's value. The keys come from the configuration, never from
/// requests, so the hash needs no secret, and a WebAssembly module no source of randomness.
type Drawers = HashMap<Box<[u8]>, Vec<Entry>, BuildHasherDefault<DefaultHasher>>;

#[derive(Debug)]
struct Entry {
    kind: TypeId,
    /// `None` if a match needs no more than the key.
    conditions: Option<Box<Conditions>>,
}

/// Matches of types, filed by path.
#[derive(Debug, Default)]
pub(super) struct Index {
    exact: Drawers,
    prefixes: Drawers,
    /// Slashes in the longest prefix: how deep a request's path needs to be looked up.
    depth: usize,
    /// Drawers by value, for each header.
    headers: Vec<(Box<str>, Drawers)>,
    rest: Vec<Entry>,
}

impl Index {
    /// Files a match of `kind`. Types must come in order.
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
        // Nothing behind an entry without conditions is ever reached.
        if drawer.last().is_none_or(|last| last.conditions.is_some()) {
            let conditions = (!conditions.is_path_only()).then(|| Box::new(conditions));
            drawer.push(Entry { kind, conditions });
        }
    }

    /// The first type that matches; `path` is without its query string.
    pub(super) fn first(&self, path: Option<&[u8]>, request: &impl RequestView) -> Option<TypeId> {
        let mut best = None;
        let mut search = |drawer: &[Entry]| {
            for entry in drawer {
                if best.is_some_and(|best| entry.kind >= best) {
                    return;
                }
                if entry
                    .conditions
                    .as_ref()
                    .is_none_or(|c| c.hold(path, request))
                {
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

/// Yields `path` up to each of its slashes, and whole: for `/a/b` the empty path (for `/`), `/a`
/// and `/a/b`. Those are its prefixes of whole path elements, each one slash longer than the one
/// before.
fn prefixes(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    let slashes = path
        .iter()
        .enumerate()
        .filter(|(_, b)| **b == b'/')
        .map(|(at, _)| at);
    // A prefix starts at a slash, so a path that doesn't (`*`) has none; "" as a whole is no path.
    let ends = slashes.chain((!path.is_empty()).then_some(path.len()));
    ends.take(if path.first() == Some(&b'/') {
        usize::MAX
    } else {
        0
    })
    .map(|end| &path[..end])
}
