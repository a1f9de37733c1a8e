//! A [`Stream`] in memory, for tests: the filter's inputs are set beforehand, and its outputs are
//! recorded.

use std::cell::{Cell, RefCell};

use headgate_strategies::host::HostError;
use headgate_strategies::time::Instant;

use headgate_core::http::{Level, Map, Property, Proxy, Stream, serialize};

/// Headers in order, with their values.
pub(crate) type Pairs = Vec<(String, String)>;

/// One stream.
#[derive(Debug, Default)]
pub(crate) struct MemoryStream {
    /// The stream's number.
    pub(crate) id: u32,
    /// The name of the stream's listener.
    pub(crate) listener: String,
    /// The time; `None` if the clock can't be read.
    pub(crate) now: Cell<Option<Instant>>,
    /// Headers of the request.
    pub(crate) request: RefCell<Pairs>,
    /// Headers of the response.
    pub(crate) response: RefCell<Pairs>,
    /// The part of the response's body that arrives.
    pub(crate) body: RefCell<Vec<u8>>,
    /// Trailers of the response.
    pub(crate) trailers: RefCell<Pairs>,
    /// Properties, by the debug text of their [`Property`].
    pub(crate) properties: RefCell<Pairs>,
    /// Whether the route must be selected again.
    pub(crate) route_cleared: Cell<bool>,
    /// The log.
    pub(crate) log: RefCell<Vec<(Level, String)>>,
    /// The number of calls that an implementation for a proxy would pass to the proxy, without
    /// those for the log.
    pub(crate) calls: Cell<u64>,
}

/// Returns the pairs as owned strings.
pub(crate) fn pairs(pairs: &[(&str, &str)]) -> Pairs {
    let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    pairs.iter().map(own).collect()
}

impl MemoryStream {
    /// Creates a stream with these request headers, at time 0.
    pub(crate) fn of(request: &[(&str, &str)]) -> Self {
        Self {
            now: Cell::new(Some(Instant::default())),
            request: pairs(request).into(),
            ..Self::default()
        }
    }

    /// Returns the first value of a request header.
    pub(crate) fn in_request(&self, name: &str) -> Option<String> {
        find(&self.request, name)
    }

    /// Returns the first value of a response header.
    pub(crate) fn in_response(&self, name: &str) -> Option<String> {
        find(&self.response, name)
    }

    fn called(&self) {
        self.calls.set(self.calls.get() + 1);
    }

    /// Sets a property.
    pub(crate) fn set(&self, property: Property<'_>, value: &str) {
        let name = format!("{property:?}");
        self.properties.borrow_mut().push((name, value.to_owned()));
    }
}

fn find(pairs: &RefCell<Pairs>, name: &str) -> Option<String> {
    let pairs = pairs.borrow();
    let found = pairs.iter().find(|(n, _)| n == name);
    found.map(|(_, value)| value.clone())
}

fn serialized(pairs: &RefCell<Pairs>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let pairs = pairs.borrow();
    let each = pairs.iter().map(|(n, v)| (n.as_str(), v.as_str()));
    serialize(each, &mut bytes);
    bytes
}

fn remove(pairs: &RefCell<Pairs>, name: &[u8]) {
    pairs.borrow_mut().retain(|(n, _)| n.as_bytes() != name);
}

fn set(pairs: &RefCell<Pairs>, name: &str, value: &[u8]) {
    remove(pairs, name.as_bytes());
    let value = String::from_utf8_lossy(value).into_owned();
    pairs.borrow_mut().push((name.to_owned(), value));
}

impl Proxy for MemoryStream {
    fn now(&self) -> Result<Instant, HostError> {
        self.called();
        self.now.get().ok_or(HostError::Call {
            call: "now",
            status: 1,
        })
    }

    fn log(&self, level: Level, message: &str) {
        self.log.borrow_mut().push((level, message.to_owned()));
    }
}

impl MemoryStream {
    fn map(&self, map: Map) -> &RefCell<Pairs> {
        match map {
            Map::Request => &self.request,
            Map::Response => &self.response,
            Map::ResponseTrailers => &self.trailers,
        }
    }
}

impl Stream for MemoryStream {
    fn id(&self) -> u32 {
        self.id
    }

    fn listener(&self) -> &str {
        &self.listener
    }

    fn headers(&self, map: Map) -> Result<Vec<u8>, HostError> {
        self.called();
        Ok(serialized(self.map(map)))
    }

    fn header(&self, map: Map, name: &str) -> Result<Option<Vec<u8>>, HostError> {
        self.called();
        Ok(find(self.map(map), name).map(String::into_bytes))
    }

    fn response_body(&self, each: &mut dyn FnMut(&[u8])) -> Result<(), HostError> {
        self.called();
        each(&self.body.borrow());
        Ok(())
    }

    fn set_header(&self, map: Map, name: &str, value: &[u8]) -> Result<(), HostError> {
        self.called();
        set(self.map(map), name, value);
        Ok(())
    }

    fn remove_header(&self, map: Map, name: &[u8]) -> Result<(), HostError> {
        self.called();
        remove(self.map(map), name);
        Ok(())
    }

    fn clear_route_cache(&self) -> Result<(), HostError> {
        self.called();
        self.route_cleared.set(true);
        Ok(())
    }

    fn property(&self, property: Property<'_>) -> Result<Option<Vec<u8>>, HostError> {
        self.called();
        Ok(find(&self.properties, &format!("{property:?}")).map(String::into_bytes))
    }
}
