//! One compiled match: a set of conditions that must all hold.

use regex_lite::{Regex, RegexBuilder};

use super::{CONTENT_TYPE, RequestView};
use crate::config::{
    ConfigError, GrpcMatch, HeaderMatch, Match, PathMatch, PathMatchKind, StringMatchKind,
};

/// Longest regular expression, bytes.
pub const MAX_PATTERN: usize = 1024;

/// Longest value that is compared with a regular expression, bytes. A longer value doesn't match.
/// Envoy accepts paths of 60 KiB.
pub(super) const MAX_VALUE: usize = 4 * 1024;

/// Largest compiled regular expression, KiB. Counted repetitions multiply its size, and every
/// worker has a copy.
const MAX_COMPILED: usize = 64;

/// Largest sum of the compiled regular expressions of one policy, KiB.
pub const MAX_COMPILED_OF_ALL: usize = 256;

/// Largest product of the compiled size of a policy's regular expressions, KiB, and the length of a
/// value that is compared with them, bytes. The time of a classification is proportional to this
/// product, 0.8 ns for each byte of both factors, so it is about 50 ms at most. It delays other
/// requests, and the request can't be refused earlier.
const MAX_WORK: usize = 64 * 1024;

/// Returns the longest value that is compared with the regular expressions of a policy that take
/// `kib` KiB, bytes.
pub(super) fn longest_value(kib: usize) -> usize {
    MAX_VALUE.min(MAX_WORK / kib.max(1))
}

/// Returns the compiled size of all regular expressions in `rules`, KiB. Expressions that can't be
/// used are left out.
pub(super) fn compiled_kib<'m>(rules: impl Iterator<Item = &'m Match>) -> usize {
    rules.flat_map(patterns).filter_map(kib).sum()
}

fn patterns(rule: &Match) -> impl Iterator<Item = &str> {
    let path = rule.path.iter();
    let path = path.filter(|path| path.kind == PathMatchKind::RegularExpression);
    let is_regex = |kind| kind == StringMatchKind::RegularExpression;
    let grpc = rule.grpc.iter().filter(move |grpc| is_regex(grpc.kind));
    let headers = rule.headers.iter().filter(move |h| is_regex(h.kind));
    path.map(|path| &path.value)
        .chain(grpc.flat_map(|grpc| grpc.service.iter().chain(&grpc.method)))
        .chain(headers.map(|header| &header.value))
        .map(String::as_str)
}

/// Returns the compiled size of `pattern`, KiB. `regex-lite` doesn't report it, so it is the
/// smallest power of two within which `pattern` compiles. The memory of a search grows with the
/// number of capturing groups, so each four of them count once more.
fn kib(pattern: &str) -> Option<usize> {
    let sizes = std::iter::successors(Some(1), |kib| Some(2 * kib));
    sizes
        .take_while(|kib| *kib <= MAX_COMPILED)
        .find_map(|kib| {
            let regex = compile(&anchored(pattern), kib).ok()?;
            Some(kib * regex.captures_len().div_ceil(4))
        })
}

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

/// Checks that `pattern` can be used as a regular expression in a match.
///
/// # Errors
/// Returns the reason why `pattern` can't be used. A pattern has the syntax of the `regex-lite`
/// crate (no look-around, no back-references), at most 1024 bytes, and at most 64 KiB compiled. All
/// patterns of a policy together have at most [`MAX_COMPILED_OF_ALL`], which isn't checked here.
pub fn check_pattern(pattern: &str) -> Result<(), String> {
    whole(pattern).map(drop)
}

/// Compiles `pattern` so that it matches only a whole value.
fn whole(pattern: &str) -> Result<Regex, String> {
    if pattern.len() > MAX_PATTERN {
        return Err(format!(
            "{} bytes long; at most {MAX_PATTERN}",
            pattern.len()
        ));
    }
    // Compile the pattern alone first. "a)(b" is an error, although it would be valid inside the
    // group below.
    compile(pattern, MAX_COMPILED)
        .and_then(|_| compile(&anchored(pattern), MAX_COMPILED))
        .map_err(|e| match e.to_string() {
            reason if reason.contains("size limit") => {
                "too large when compiled; use smaller repetition counts".to_owned()
            }
            reason => reason,
        })
}

fn anchored(pattern: &str) -> String {
    format!(r"\A(?:{pattern})\z")
}

fn compile(pattern: &str, kib: usize) -> Result<Regex, regex_lite::Error> {
    RegexBuilder::new(pattern).size_limit(kib * 1024).build()
}

/// The expected value of a comparison.
#[derive(Debug)]
enum Text {
    Exact(Box<[u8]>),
    Regex {
        regex: Regex,
        /// The longest value that matches, bytes.
        longest: usize,
    },
}

impl Text {
    fn new(
        kind: StringMatchKind,
        value: &str,
        at: &str,
        longest: usize,
    ) -> Result<Self, ConfigError> {
        match kind {
            StringMatchKind::Exact => Ok(Self::Exact(value.as_bytes().into())),
            StringMatchKind::RegularExpression => Self::regex(value, at, longest),
        }
    }

    fn regex(pattern: &str, at: &str, longest: usize) -> Result<Self, ConfigError> {
        match whole(pattern) {
            Ok(regex) => Ok(Self::Regex { regex, longest }),
            Err(reason) => Err(ConfigError::new(
                at,
                format!("{pattern:?} is no usable regular expression: {reason}"),
            )),
        }
    }

    fn matches(&self, value: &[u8]) -> bool {
        match self {
            Self::Exact(expected) => **expected == *value,
            Self::Regex { longest, .. } if value.len() > *longest => false,
            Self::Regex { regex, .. } => {
                std::str::from_utf8(value).is_ok_and(|v| regex.is_match(v))
            }
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
    fn new(path: &PathMatch, at: &str, longest: usize) -> Result<Self, ConfigError> {
        let value = &path.value;
        Ok(match path.kind {
            PathMatchKind::Exact => Self::Whole(Text::Exact(value.as_bytes().into())),
            PathMatchKind::PathPrefix => {
                Self::Prefix(value.trim_end_matches('/').as_bytes().into())
            }
            PathMatchKind::RegularExpression => Self::Whole(Text::regex(value, at, longest)?),
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
    fn new(grpc: &GrpcMatch, at: &str, longest: usize) -> Result<Self, ConfigError> {
        let text = |value: &Option<String>, field: &str| {
            value
                .as_ref()
                .map(|v| Text::new(grpc.kind, v, &format!("{at}.{field}"), longest))
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
    fn new(header: &HeaderMatch, at: &str, longest: usize) -> Result<Self, ConfigError> {
        Ok(Self {
            name: header.name.to_ascii_lowercase().into(),
            value: Text::new(header.kind, &header.value, at, longest)?,
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
    /// Compiles `rule`, whose field path in the configuration is `at`. Values of more than
    /// `longest` bytes match none of its regular expressions.
    pub(super) fn new(rule: &Match, at: &str, longest: usize) -> Result<Self, ConfigError> {
        let bytes = |text: &String| text.as_bytes().into();
        let headers = rule.headers.iter().enumerate();
        Ok(Self {
            path: rule
                .path
                .as_ref()
                .map(|p| Path::new(p, &format!("{at}.path"), longest))
                .transpose()?,
            method: rule.method.as_ref().map(bytes),
            grpc: rule
                .grpc
                .as_ref()
                .map(|g| Grpc::new(g, &format!("{at}.grpc"), longest))
                .transpose()?,
            headers: headers
                .map(|(i, h)| Header::new(h, &format!("{at}.headers[{i}]"), longest))
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
            Text::Regex { .. } => None,
        };
        self.headers.iter().find_map(exact).unwrap_or(Drawer::Any)
    }
}
