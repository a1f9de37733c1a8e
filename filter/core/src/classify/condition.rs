//! One compiled match: a set of conditions that must all hold.

use super::pattern::{Budget, Pattern};
use super::{CONTENT_TYPE, RequestView};
use crate::config::{
    ConfigError, GrpcMatch, HeaderMatch, Match, PathMatch, PathMatchKind, StringMatchKind,
};

/// The kind of a condition of a match. It identifies the first condition that a request fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Condition {
    /// The path.
    Path,
    /// The method.
    Method,
    /// The request is a gRPC request: its content type is `application/grpc`, and its path
    /// `/service/method`.
    GrpcRequest,
    /// The gRPC service.
    GrpcService,
    /// The gRPC method.
    GrpcMethod,
    /// The header at this index of the match's headers.
    Header(usize),
    /// The route's name.
    Route,
}

/// The expected value of a comparison.
#[derive(Debug)]
enum Text {
    Exact(Box<[u8]>),
    Regex(Pattern),
}

impl Text {
    fn new(
        kind: StringMatchKind,
        value: &str,
        at: &str,
        budget: &mut Budget,
    ) -> Result<Self, ConfigError> {
        match kind {
            StringMatchKind::Exact => Ok(Self::Exact(value.as_bytes().into())),
            StringMatchKind::RegularExpression => Self::regex(value, at, budget),
        }
    }

    fn regex(pattern: &str, at: &str, budget: &mut Budget) -> Result<Self, ConfigError> {
        match Pattern::new(pattern, budget) {
            Ok(pattern) => Ok(Self::Regex(pattern)),
            Err(reason) => Err(ConfigError::new(
                at,
                format!("{pattern:?} is no usable regular expression: {reason}"),
            )),
        }
    }

    fn matches(&self, value: &[u8]) -> bool {
        match self {
            Self::Exact(expected) => **expected == *value,
            Self::Regex(pattern) => pattern.matches(value),
        }
    }
}

/// A condition on the path.
#[derive(Debug)]
enum Path {
    Whole(Text),
    /// A prefix without its trailing slashes. For `/` it is empty.
    Prefix(Box<[u8]>),
}

impl Path {
    fn new(path: &PathMatch, at: &str, budget: &mut Budget) -> Result<Self, ConfigError> {
        let value = &path.value;
        Ok(match path.kind {
            PathMatchKind::Exact => Self::Whole(Text::Exact(value.as_bytes().into())),
            PathMatchKind::PathPrefix => {
                Self::Prefix(value.trim_end_matches('/').as_bytes().into())
            }
            PathMatchKind::RegularExpression => Self::Whole(Text::regex(value, at, budget)?),
        })
    }

    fn matches(&self, path: &[u8]) -> bool {
        match self {
            Self::Whole(text) => text.matches(path),
            Self::Prefix(prefix) => path.strip_prefix(&**prefix).is_some_and(|rest| {
                path.starts_with(b"/") && matches!(rest.first(), None | Some(b'/'))
            }),
        }
    }
}

#[derive(Debug)]
struct Grpc {
    service: Option<Text>,
    method: Option<Text>,
}

impl Grpc {
    fn new(grpc: &GrpcMatch, at: &str, budget: &mut Budget) -> Result<Self, ConfigError> {
        let mut text = |value: &Option<String>, field: &str| {
            value
                .as_ref()
                .map(|v| Text::new(grpc.kind, v, &format!("{at}.{field}"), budget))
                .transpose()
        };
        Ok(Self {
            service: text(&grpc.service, "service")?,
            method: text(&grpc.method, "method")?,
        })
    }

    fn failing(&self, path: Option<&[u8]>, request: &impl RequestView) -> Option<Condition> {
        let Some((service, method)) = path.and_then(split_grpc) else {
            return Some(Condition::GrpcRequest);
        };
        if self.service.as_ref().is_some_and(|s| !s.matches(service)) {
            return Some(Condition::GrpcService);
        }
        if self.method.as_ref().is_some_and(|m| !m.matches(method)) {
            return Some(Condition::GrpcMethod);
        }
        let is_grpc = request
            .header(CONTENT_TYPE)
            .is_some_and(is_grpc_content_type);
        (!is_grpc).then_some(Condition::GrpcRequest)
    }
}

/// Returns the two parts of `/service/method`.
fn split_grpc(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let path = path.strip_prefix(b"/")?;
    let slash = path.iter().position(|b| *b == b'/')?;
    let (service, method) = (&path[..slash], &path[slash + 1..]);
    (!service.is_empty() && !method.is_empty() && !method.contains(&b'/'))
        .then_some((service, method))
}

/// Whether `value` is `application/grpc`, with or without a suffix or parameters. As in Envoy,
/// `application/grpc-web` doesn't count.
fn is_grpc_content_type(value: &[u8]) -> bool {
    const GRPC: &[u8] = b"application/grpc";
    value.len() >= GRPC.len()
        && value[..GRPC.len()].eq_ignore_ascii_case(GRPC)
        && value
            .get(GRPC.len())
            .is_none_or(|next| matches!(next, b'+' | b';' | b' '))
}

#[derive(Debug)]
struct Header {
    name: Box<str>,
    value: Text,
}

impl Header {
    fn new(header: &HeaderMatch, at: &str, budget: &mut Budget) -> Result<Self, ConfigError> {
        Ok(Self {
            name: header.name.to_ascii_lowercase().into(),
            value: Text::new(header.kind, &header.value, at, budget)?,
        })
    }
}

/// A compiled match.
#[derive(Debug)]
pub(super) struct Conditions {
    path: Option<Path>,
    method: Option<Box<[u8]>>,
    grpc: Option<Grpc>,
    headers: Box<[Header]>,
    route: Option<Box<[u8]>>,
}

/// The key of a match in the index: its condition on the path or, without one, on a header.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Drawer {
    /// The match holds only for this path.
    Path(Box<[u8]>),
    /// The match holds only for this path and the paths below it.
    Prefix(Box<[u8]>),
    /// The match may hold for any path, but only with this value of this header.
    Header(Box<str>, Box<[u8]>),
    /// The match may hold for any request.
    Any,
}

impl Conditions {
    /// Compiles `rule`, whose field path in the configuration is `at`. `budget` is what the
    /// policy's regular expressions may still take.
    pub(super) fn new(rule: &Match, at: &str, budget: &mut Budget) -> Result<Self, ConfigError> {
        let bytes = |text: &String| text.as_bytes().into();
        let headers = rule.headers.iter().enumerate();
        Ok(Self {
            path: rule
                .path
                .as_ref()
                .map(|p| Path::new(p, &format!("{at}.path"), budget))
                .transpose()?,
            method: rule.method.as_ref().map(bytes),
            grpc: rule
                .grpc
                .as_ref()
                .map(|g| Grpc::new(g, &format!("{at}.grpc"), budget))
                .transpose()?,
            headers: headers
                .map(|(i, h)| Header::new(h, &format!("{at}.headers[{i}]"), budget))
                .collect::<Result<_, _>>()?,
            route: rule.route.as_ref().map(bytes),
        })
    }

    /// Returns the first condition that does not hold, in the order path, method, gRPC, headers and
    /// route. `path` has no query string.
    pub(super) fn failing(
        &self,
        path: Option<&[u8]>,
        request: &impl RequestView,
    ) -> Option<Condition> {
        if let Some(expected) = &self.path
            && !path.is_some_and(|p| expected.matches(p))
        {
            return Some(Condition::Path);
        }
        if let Some(expected) = &self.method
            && request.method() != Some(&**expected)
        {
            return Some(Condition::Method);
        }
        if let Some(failing) = self
            .grpc
            .as_ref()
            .and_then(|grpc| grpc.failing(path, request))
        {
            return Some(failing);
        }
        for (i, header) in self.headers.iter().enumerate() {
            if !request
                .header(&header.name)
                .is_some_and(|v| header.value.matches(v))
            {
                return Some(Condition::Header(i));
            }
        }
        if let Some(expected) = &self.route
            && request.route_name() != Some(&**expected)
        {
            return Some(Condition::Route);
        }
        None
    }

    /// Returns the match's key in the index.
    pub(super) fn drawer(&self) -> Drawer {
        match (&self.path, &self.grpc) {
            (Some(Path::Whole(Text::Exact(path))), _) => Drawer::Path(path.clone()),
            (Some(Path::Prefix(prefix)), _) => Drawer::Prefix(prefix.clone()),
            (
                None,
                Some(Grpc {
                    service: Some(Text::Exact(service)),
                    method,
                }),
            ) => {
                let mut path = vec![b'/'];
                path.extend_from_slice(service);
                if let Some(Text::Exact(method)) = method {
                    path.push(b'/');
                    path.extend_from_slice(method);
                    return Drawer::Path(path.into());
                }
                Drawer::Prefix(path.into())
            }
            _ => self.header_drawer(),
        }
    }

    fn header_drawer(&self) -> Drawer {
        let exact = |header: &Header| match &header.value {
            Text::Exact(value) => Some(Drawer::Header(header.name.clone(), value.clone())),
            Text::Regex(_) => None,
        };
        self.headers.iter().find_map(exact).unwrap_or(Drawer::Any)
    }
}
