//! Classification of requests by query type.
//!
//! Types are tried in the order of the policy, and the first that matches applies. The last type,
//! `default`, takes all other requests. Trying a thousand types one after the other would cost more
//! than the whole admission decision. So matches are indexed by path, and a request is compared
//! only with matches that its own path allows (`index`). The plain scan in [`trace`], which
//! `headgate explain` prints, defines the order. A property test compares the results of the scan
//! and the index.
//!
//! Values are bytes, since headers need not be UTF-8. A regular expression never matches a value
//! that isn't UTF-8. Nothing is allocated for a request.

mod condition;
mod index;
mod pattern;
pub(crate) mod retries;
pub mod trace;

#[cfg(test)]
mod order_tests;
#[cfg(test)]
mod pattern_tests;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

use headgate_strategies::request::{ClassId, TypeId};

use crate::config::{ClassConfig, ConfigError, StageConfig};
use condition::Conditions;
use index::Index;

pub use condition::Condition;
pub use pattern::{Budget, Refused};

/// The header that identifies gRPC requests.
pub const CONTENT_TYPE: &str = "content-type";

/// The parts of a request that rules can match. Each method is called only for parts that some rule
/// uses, and at most a few times per request.
pub trait RequestView {
    /// Returns `:path`, with its query string.
    fn path(&self) -> Option<&[u8]>;
    /// Returns `:method`.
    fn method(&self) -> Option<&[u8]>;
    /// Returns a request header by its lower case name. `host` is `:authority` in HTTP/2.
    fn header(&self, name: &str) -> Option<&[u8]>;
    /// Yields the values of a request header that may have several lines, such as a list.
    fn values(&self, name: &'static str) -> impl Iterator<Item = &[u8]> {
        self.header(name).into_iter()
    }
    /// Returns the name of the Envoy route that was selected. It is read last, when all other
    /// conditions hold.
    fn route_name(&self) -> Option<&[u8]>;
    /// Returns the name of the request's listener, as in
    /// [`Engine::listen`](crate::engine::Engine::listen).
    fn listener(&self) -> &str {
        ""
    }
    /// Returns a value of Envoy's dynamic metadata by its path: the namespace of the filter that
    /// wrote it, followed by keys.
    fn metadata(&self, _path: &[String]) -> Option<Cow<'_, [u8]>> {
        None
    }
    /// Whether one of the attempt headers for all policies shows that this is a retry.
    fn is_retry(&self) -> bool {
        retries::is_retry(self)
    }
    /// Returns the SPIFFE id in the peer's certificate, if any.
    fn peer(&self) -> Option<Cow<'_, [u8]>> {
        None
    }
}

/// The result of a classification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Classified {
    /// The request bypasses the stage.
    Excluded,
    /// The request has this type.
    Type(TypeId),
}

/// The compiled rules of one stage.
#[derive(Debug)]
pub struct Classifier {
    excluded: Index,
    types: Index,
    default: TypeId,
    classes: Classes,
    /// The patterns of the names of the Envoy routes that the stage covers. If empty, it covers all
    /// routes.
    routes: Vec<String>,
}

/// The compiled rules for classes, of a stage or of a called service.
#[derive(Debug)]
pub struct Classes {
    rules: Index,
    lowest: ClassId,
}

impl Classes {
    /// Compiles the rules of `classes`. The last class takes every request that no other matches.
    ///
    /// # Errors
    /// [`ConfigError`] for a regular expression that does not compile or is too large, alone or
    /// with the others.
    pub fn new(classes: &[ClassConfig]) -> Result<Self, ConfigError> {
        Self::with(classes, &mut Budget::of_running())
    }

    fn with(classes: &[ClassConfig], budget: &mut Budget) -> Result<Self, ConfigError> {
        let mut rules = Index::default();
        for (c, class) in classes.iter().enumerate() {
            let id = type_id(c);
            for (i, rule) in class.matches.iter().enumerate() {
                let at = format!("classes[{c}].matches[{i}]");
                rules.insert(id, Conditions::new(rule, &at, budget)?);
            }
        }
        Ok(Self {
            rules,
            lowest: class_id(classes.len().saturating_sub(1)),
        })
    }

    /// Returns the class of a request, which is the first class that matches or else the last.
    pub fn class(&self, request: &impl RequestView) -> ClassId {
        if self.lowest == ClassId(0) {
            return self.lowest;
        }
        let first = self.rules.first(path(request), request);
        first.map_or(self.lowest, |class| class_id(class.0.into()))
    }
}

impl Classifier {
    /// Compiles the rules of the checked `stage`. The last type takes every request that no other
    /// matches.
    ///
    /// # Errors
    /// [`ConfigError`] for a regular expression that does not compile or is too large, alone or
    /// with the others.
    pub fn new(stage: &StageConfig) -> Result<Self, ConfigError> {
        let default = type_id(stage.types.len().saturating_sub(1));
        let mut budget = Budget::of_running();
        let mut excluded = Index::default();
        for (i, rule) in stage.excluded.iter().enumerate() {
            let at = format!("excluded[{i}]");
            excluded.insert(TypeId(0), Conditions::new(rule, &at, &mut budget)?);
        }
        let mut types = Index::default();
        for (id, kind) in (0..default.0).map(TypeId).zip(&stage.types) {
            for (i, rule) in kind.matches.iter().enumerate() {
                let at = format!("types[{}].matches[{i}]", id.0);
                types.insert(id, Conditions::new(rule, &at, &mut budget)?);
            }
        }
        Ok(Self {
            excluded,
            types,
            default,
            classes: Classes::with(&stage.classes, &mut budget)?,
            routes: stage.routes.clone(),
        })
    }

    /// Whether the stage covers this request. A stage may be limited to some Envoy routes.
    pub fn covers(&self, request: &impl RequestView) -> bool {
        // The name is read only if there are patterns.
        self.routes.is_empty()
            || request
                .route_name()
                .is_some_and(|name| self.routes.iter().any(|pattern| fits(pattern, name)))
    }

    /// Returns the type of a request, or [`Classified::Excluded`] if it bypasses the stage.
    pub fn classify(&self, request: &impl RequestView) -> Classified {
        let path = path(request);
        if self.excluded.first(path, request).is_some() {
            return Classified::Excluded;
        }
        Classified::Type(self.types.first(path, request).unwrap_or(self.default))
    }

    /// Returns the class of a request, which is the first class that matches or else the last.
    pub fn class(&self, request: &impl RequestView) -> ClassId {
        self.classes.class(request)
    }
}

/// Whether `text` equals `pattern`. If `pattern` ends in `*`, returns whether `text` starts with
/// the part before the `*`.
pub fn fits(pattern: &str, text: &[u8]) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => text.starts_with(prefix.as_bytes()),
        None => text == pattern.as_bytes(),
    }
}

/// Returns the path of `request` without its query string.
fn path(request: &impl RequestView) -> Option<&[u8]> {
    request.path().map(without_query)
}

/// Returns the id of type `at`, which is below [`MAX_TYPES`](crate::config::MAX_TYPES).
fn type_id(at: usize) -> TypeId {
    TypeId(u16::try_from(at).unwrap_or(u16::MAX))
}

/// Returns the id of class `at`, which is at most [`MAX_CLASSES`](crate::config::MAX_CLASSES).
fn class_id(at: usize) -> ClassId {
    ClassId(u8::try_from(at).unwrap_or(u8::MAX))
}

/// Returns `path` up to its query string or fragment.
fn without_query(path: &[u8]) -> &[u8] {
    let end = path
        .iter()
        .position(|b| matches!(b, b'?' | b'#'))
        .unwrap_or(path.len());
    &path[..end]
}
