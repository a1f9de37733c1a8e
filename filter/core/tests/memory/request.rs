//! A request in memory, for tests.

use headgate_core::classify::RequestView;

/// A [`RequestView`] in memory. By default, all fields are absent.
#[derive(Debug, Default, Clone)]
pub(crate) struct MemoryRequest {
    /// `:path`.
    pub(crate) path: Option<Vec<u8>>,
    /// `:method`.
    pub(crate) method: Option<Vec<u8>>,
    /// Headers by lower case name.
    pub(crate) headers: Vec<(String, Vec<u8>)>,
    /// The name of the Envoy route.
    pub(crate) route: Option<Vec<u8>>,
}

impl MemoryRequest {
    /// Creates a GET of `path`.
    pub(crate) fn get(path: &str) -> Self {
        Self {
            path: Some(path.into()),
            method: Some(b"GET".to_vec()),
            ..Self::default()
        }
    }

    /// Creates a request with these headers and nothing else.
    pub(crate) fn of(headers: &[(&str, &str)]) -> Self {
        let with = |request: Self, (name, value): &(&str, &str)| request.with(name, value);
        headers.iter().fold(Self::default(), with)
    }

    /// Adds a header.
    #[must_use]
    pub(crate) fn with(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.headers.push((name.into(), value.as_ref().to_vec()));
        self
    }
}

impl RequestView for MemoryRequest {
    fn path(&self) -> Option<&[u8]> {
        self.path.as_deref()
    }

    fn method(&self) -> Option<&[u8]> {
        self.method.as_deref()
    }

    fn header(&self, name: &str) -> Option<&[u8]> {
        let found = self.headers.iter().find(|(n, _)| n == name);
        found.map(|(_, value)| value.as_slice())
    }

    fn values(&self, name: &'static str) -> impl Iterator<Item = &[u8]> {
        let named = self.headers.iter().filter(move |(n, _)| n == name);
        named.map(|(_, value)| value.as_slice())
    }

    fn route_name(&self) -> Option<&[u8]> {
        self.route.as_deref()
    }
}
