//! Tests of the meaning of each rule.

use super::pattern::{MAX_DFAS, MAX_VALUE};
use super::*;
use crate::config::{
    GrpcMatch, HeaderMatch, Match, PathMatch, PathMatchKind, QueueConfig, StringMatchKind,
    TypeConfig,
};
use crate::memory::MemoryRequest as Request;

/// Returns a stage with one type for each list of matches, and `default`.
pub(super) fn stage(types: Vec<Vec<Match>>, excluded: Vec<Match>) -> StageConfig {
    let named = types
        .into_iter()
        .enumerate()
        .map(|(i, matches)| (format!("t{i}"), matches));
    let types = named
        .chain([("default".to_owned(), Vec::new())])
        .map(|(name, matches)| TypeConfig {
            name,
            matches,
            ..TypeConfig::default()
        })
        .collect();
    StageConfig {
        policy: "default/test".into(),
        parallelism: 1,
        queue: QueueConfig {
            max_length: 1,
            timeout_us: 1,
            ..QueueConfig::default()
        },
        types,
        excluded,
        ..StageConfig::default()
    }
}

/// Whether `rule` holds for `request`. Fails if the index and the scan disagree.
fn holds(rule: Match, request: &Request) -> bool {
    let stage = stage(vec![vec![rule]], Vec::new());
    let class = Classifier::new(&stage).unwrap().classify(request);
    assert_eq!(class, trace::trace(&stage, request).unwrap().classified);
    class == Classified::Type(TypeId(0))
}

fn path(kind: PathMatchKind, value: &str) -> Match {
    let value = value.to_owned();
    Match {
        path: Some(PathMatch { kind, value }),
        ..Match::default()
    }
}

fn exact(value: &str) -> Match {
    path(PathMatchKind::Exact, value)
}

fn prefix(value: &str) -> Match {
    path(PathMatchKind::PathPrefix, value)
}

fn regex(value: &str) -> Match {
    path(PathMatchKind::RegularExpression, value)
}

fn header(kind: StringMatchKind, name: &str, value: &str) -> Match {
    let header = HeaderMatch {
        kind,
        name: name.into(),
        value: value.into(),
    };
    Match {
        headers: vec![header],
        ..Match::default()
    }
}

#[test]
fn a_prefix_is_of_whole_path_elements() {
    for (value, path, expected) in [
        ("/q", "/q", true),
        ("/q", "/q/", true),
        ("/q", "/q/x?y=/z", true),
        ("/q", "/q?x", true),
        ("/q", "/qx", false),
        ("/q", "/", false),
        ("/q/", "/q", true),
        ("/q/", "/q/x", true),
        ("/q/r", "/q/r/s/t", true),
        ("/q/r", "/q", false),
        ("/", "/", true),
        ("/", "/x/y", true),
        ("/", "*", false),
        ("/", "", false),
    ] {
        assert_eq!(
            holds(prefix(value), &Request::get(path)),
            expected,
            "{value} on {path}"
        );
    }
}

#[test]
fn an_exact_path_ignores_only_the_query() {
    for (value, path, expected) in [
        ("/q", "/q", true),
        ("/q", "/q?a=b?c", true),
        ("/q", "/q#f", true),
        ("/q", "/q/", false),
        ("/q", "/Q", false),
        ("/", "/", true),
    ] {
        assert_eq!(
            holds(exact(value), &Request::get(path)),
            expected,
            "{value} on {path}"
        );
    }
}

#[test]
fn a_regular_expression_matches_the_whole_value() {
    for (value, path, expected) in [
        ("/v[0-9]+/items", "/v12/items?x", true),
        ("/v[0-9]+/items", "/v12/items/3", false),
        ("/v[0-9]+/items", "/api/v12/items", false),
        ("/a|/b", "/b", true),
        ("/a|/b", "/bx", false),
        ("(?i)/a", "/A", true),
        ("(?m)/a$", "/a\n/b", false),
    ] {
        assert_eq!(
            holds(regex(value), &Request::get(path)),
            expected,
            "{value} on {path}"
        );
    }
}

#[test]
fn a_value_beyond_4_kib_matches_no_regular_expression() {
    for (length, expected) in [(MAX_VALUE, true), (MAX_VALUE + 1, false)] {
        let path = format!("/{}", "a".repeat(length - 1));
        assert_eq!(holds(regex("/a*"), &Request::get(&path)), expected);
        assert!(
            holds(prefix("/"), &Request::get(&path)),
            "other matches take any length"
        );
    }
}

#[test]
fn types_classes_and_exclusions_share_the_policys_budget() {
    let count = 2 * MAX_DFAS / 4096;
    let small = |count| vec![regex("/a*"); count];
    let refused = |types, excluded, classes| {
        let mut stage = stage(vec![small(types)], small(excluded));
        stage.classes = [small(classes), vec![]]
            .into_iter()
            .map(|matches| ClassConfig {
                name: "c".into(),
                matches,
                value: 1.0,
            })
            .collect();
        Classifier::new(&stage).err().map(|error| error.field)
    };
    assert_eq!(refused(count - 2, 1, 1), None);
    let last = Some(format!("types[0].matches[{}].path", count - 2));
    assert_eq!(refused(count - 1, 2, 0), last);
    let last = Some("classes[0].matches[1].path".to_owned());
    assert_eq!(refused(count - 2, 1, 2), last);
}

#[test]
fn values_that_are_not_utf8_match_exactly_or_not_at_all() {
    let odd = Request {
        path: Some(b"/q/\xff\xfe".to_vec()),
        ..Request::default()
    };
    assert!(holds(prefix("/q"), &odd));
    assert!(!holds(regex("/q/.*"), &odd));
    assert!(!holds(exact("/q/"), &odd));
    let odd = Request::get("/").with("x-kind", b"\x80");
    assert!(!holds(
        header(StringMatchKind::RegularExpression, "x-kind", ".*"),
        &odd
    ));
    assert!(!holds(header(StringMatchKind::Exact, "x-kind", ""), &odd));
}

#[test]
fn headers_compare_by_lower_case_name_and_exact_value() {
    let request = Request::get("/").with("x-kind", "slow");
    assert!(holds(
        header(StringMatchKind::Exact, "X-Kind", "slow"),
        &request
    ));
    assert!(!holds(
        header(StringMatchKind::Exact, "x-kind", "slo"),
        &request
    ));
    assert!(!holds(
        header(StringMatchKind::Exact, "x-other", "slow"),
        &request
    ));
    assert!(holds(
        header(StringMatchKind::RegularExpression, "x-kind", "s.*"),
        &request
    ));
    assert!(!holds(
        header(StringMatchKind::RegularExpression, "x-kind", "lo"),
        &request
    ));
}

#[test]
fn grpc_needs_a_grpc_content_type_and_a_grpc_path() {
    let rule = |service: Option<&str>, method: Option<&str>| Match {
        grpc: Some(GrpcMatch {
            kind: StringMatchKind::Exact,
            service: service.map(Into::into),
            method: method.map(Into::into),
        }),
        ..Match::default()
    };
    let call = |kind: &str| Request::get("/search.v1.Search/Query").with("content-type", kind);
    for kind in [
        "application/grpc",
        "application/grpc+proto",
        "application/grpc;charset=utf-8",
    ] {
        assert!(
            holds(rule(Some("search.v1.Search"), Some("Query")), &call(kind)),
            "{kind}"
        );
        assert!(
            holds(rule(Some("search.v1.Search"), None), &call(kind)),
            "{kind}"
        );
        assert!(holds(rule(None, Some("Query")), &call(kind)), "{kind}");
        assert!(
            !holds(rule(Some("search.v1.Search"), Some("Other")), &call(kind)),
            "{kind}"
        );
        assert!(
            !holds(rule(Some("search.v1"), Some("Query")), &call(kind)),
            "{kind}"
        );
    }
    for kind in ["application/grpc-web", "application/json", ""] {
        assert!(
            !holds(rule(Some("search.v1.Search"), Some("Query")), &call(kind)),
            "{kind}"
        );
    }
    for path in [
        "/search.v1.Search",
        "/search.v1.Search/Query/x",
        "/search.v1.Search/",
        "/",
        "",
    ] {
        let odd = Request::get(path).with("content-type", "application/grpc");
        assert!(!holds(rule(Some("search.v1.Search"), None), &odd), "{path}");
    }
}

#[test]
fn all_conditions_of_a_match_must_hold() {
    let rule = Match {
        method: Some("GET".into()),
        route: Some("r".into()),
        ..header(StringMatchKind::Exact, "a", "1")
    };
    let rule = Match {
        path: prefix("/q").path,
        ..rule
    };
    let good = Request {
        route: Some(b"r".to_vec()),
        ..Request::get("/q/x").with("a", "1")
    };
    assert!(holds(rule.clone(), &good));
    assert!(!holds(
        rule.clone(),
        &Request {
            route: None,
            ..good.clone()
        }
    ));
    assert!(!holds(
        rule.clone(),
        &Request {
            method: Some(b"POST".to_vec()),
            ..good.clone()
        }
    ));
    assert!(!holds(
        rule.clone(),
        &Request {
            headers: Vec::new(),
            ..good.clone()
        }
    ));
    assert!(!holds(
        rule,
        &Request {
            path: Some(b"/r".to_vec()),
            ..good
        }
    ));
}

#[test]
fn the_first_type_that_matches_wins() {
    let types = vec![
        vec![Match {
            method: Some("POST".into()),
            ..exact("/a")
        }],
        vec![prefix("/a")],
        vec![exact("/a"), exact("/b")],
        vec![prefix("/")],
    ];
    let classifier = Classifier::new(&stage(types, vec![exact("/healthz")])).unwrap();
    let class = |path: &str| classifier.classify(&Request::get(path));
    assert_eq!(class("/a"), Classified::Type(TypeId(1)));
    assert_eq!(class("/b"), Classified::Type(TypeId(2)));
    assert_eq!(class("/c"), Classified::Type(TypeId(3)));
    assert_eq!(class("*"), Classified::Type(TypeId(4)));
    assert_eq!(class("/healthz?x"), Classified::Excluded);
    assert_eq!(
        classifier.classify(&Request::default()),
        Classified::Type(TypeId(4))
    );
}

#[test]
fn a_stage_for_some_routes_covers_only_those() {
    let mut config = stage(vec![], vec![]);
    assert!(
        Classifier::new(&config)
            .unwrap()
            .covers(&Request::default())
    );
    config.routes = vec!["r".into()];
    let classifier = Classifier::new(&config).unwrap();
    assert!(!classifier.covers(&Request::default()));
    assert!(classifier.covers(&Request {
        route: Some(b"r".to_vec()),
        ..Request::default()
    }));
}

#[test]
fn bad_patterns_are_refused_with_their_place() {
    for pattern in [
        "(",
        "a)(b",
        r"(?=x)",
        "((a{100}){100}){100}",
        &"a".repeat(2000),
    ] {
        let stage = stage(vec![vec![exact("/a"), regex(pattern)]], Vec::new());
        let error = Classifier::new(&stage).unwrap_err();
        assert_eq!(error.field, "types[0].matches[1].path", "{pattern}");
        let refused = Budget::of_accepted().check(pattern);
        assert!(matches!(refused, Err(Refused::Unusable(_))), "{pattern}");
    }
}

/// A request that counts how often its headers are searched.
struct Searched(std::cell::Cell<usize>);

impl RequestView for Searched {
    fn path(&self) -> Option<&[u8]> {
        Some(b"/")
    }

    fn method(&self) -> Option<&[u8]> {
        Some(b"GET")
    }

    fn header(&self, name: &str) -> Option<&[u8]> {
        self.0.set(self.0.get() + 1);
        (name == "x-tenant").then_some(b"t199")
    }

    fn route_name(&self) -> Option<&[u8]> {
        None
    }
}

#[test]
fn types_by_a_header_are_found_without_trying_each() {
    let of_tenant = |n| {
        vec![Match {
            headers: vec![HeaderMatch {
                kind: StringMatchKind::Exact,
                name: "X-Tenant".to_owned(),
                value: format!("t{n}"),
            }],
            ..Match::default()
        }]
    };
    let types = (0..200).map(of_tenant).collect();
    let classifier = Classifier::new(&stage(types, vec![])).unwrap();
    let request = Searched(std::cell::Cell::new(0));
    assert_eq!(classifier.classify(&request), Classified::Type(TypeId(199)));
    assert!(request.0.get() <= 2, "{} searches", request.0.get());
}

/// Whether a stage with these patterns of routes covers a request on the route `name`.
fn covers(patterns: &[&str], name: Option<&str>) -> bool {
    let mut stage = stage(Vec::new(), Vec::new());
    stage.routes = patterns.iter().map(|&p| p.to_owned()).collect();
    let request = Request {
        route: name.map(Into::into),
        ..Request::get("/")
    };
    Classifier::new(&stage).unwrap().covers(&request)
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
    struct Nameless;

    impl RequestView for Nameless {
        fn path(&self) -> Option<&[u8]> {
            None
        }

        fn method(&self) -> Option<&[u8]> {
            None
        }

        fn header(&self, _name: &str) -> Option<&[u8]> {
            None
        }

        fn route_name(&self) -> Option<&[u8]> {
            unreachable!()
        }
    }

    let stage = stage(Vec::new(), Vec::new());
    assert!(Classifier::new(&stage).unwrap().covers(&Nameless));
}
