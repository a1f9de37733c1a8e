//! The Envoy routes that a stage covers, by name.
//!
//! Gateways generate the names of routes: an HTTPRoute becomes one route for each of its rules and
//! matches, and edits of it add and remove them. So a pattern may end in `*`, which matches every
//! name with that prefix. Nothing is allocated for a request.

/// Patterns of route names. Without patterns every request is covered.
#[derive(Debug, Default)]
pub(crate) struct Routes(Vec<Pattern>);

#[derive(Debug)]
enum Pattern {
    Exact(Box<[u8]>),
    Prefix(Box<[u8]>),
}

impl Routes {
    pub(crate) fn new(patterns: &[String]) -> Self {
        let pattern = |text: &String| match text.strip_suffix('*') {
            Some(prefix) => Pattern::Prefix(prefix.as_bytes().into()),
            None => Pattern::Exact(text.as_bytes().into()),
        };
        Self(patterns.iter().map(pattern).collect())
    }

    /// Whether a request belongs to one of the routes. `name` returns the name of the request's
    /// route, and is called only if there are patterns.
    pub(crate) fn cover<'a>(&self, name: impl FnOnce() -> Option<&'a [u8]>) -> bool {
        if self.0.is_empty() {
            return true;
        }
        let Some(name) = name() else {
            return false;
        };
        self.0.iter().any(|pattern| match pattern {
            Pattern::Exact(expected) => **expected == *name,
            Pattern::Prefix(prefix) => name.starts_with(prefix),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn covers(patterns: &[&str], name: Option<&str>) -> bool {
        let patterns: Vec<String> = patterns.iter().map(|&p| p.to_owned()).collect();
        Routes::new(&patterns).cover(|| name.map(str::as_bytes))
    }

    #[test]
    fn a_star_at_the_end_matches_the_rest_of_the_name() {
        let patterns = ["httproute/shop/search/*", "shop.search.*", "exact"];
        for (name, expected) in [
            (
                Some("httproute/shop/search/rule/0/match/0/example.com"),
                true,
            ),
            (Some("httproute/shop/search/"), true),
            (Some("httproute/shop/search"), false),
            (Some("httproute/shop/search-v2/rule/0"), false),
            (Some("httproute/other/search/rule/0"), false),
            (Some("shop.search.0"), true),
            (Some("exact"), true),
            (Some("exactly"), false),
            (Some("an exact"), false),
            (Some(""), false),
            (None, false),
        ] {
            assert_eq!(covers(&patterns, name), expected, "{name:?}");
        }
    }

    #[test]
    fn no_pattern_is_every_request_and_asks_for_no_name() {
        assert!(Routes::new(&[]).cover(|| unreachable!()));
    }
}
