//! Tests that the index keeps the order of types. For any rules and request, the index gives the
//! same result as the plain scan.

use proptest::prelude::*;

use super::tests::stage;
use super::{Classified, Classifier, trace};
use crate::config::{
    ClassConfig, GrpcMatch, HeaderMatch, Match, PathMatch, PathMatchKind, StringMatchKind,
};
use crate::memory::MemoryRequest as Request;

fn one_of(texts: &'static [&'static str]) -> impl Strategy<Value = String> + Clone {
    proptest::sample::select(texts).prop_map(String::from)
}

/// Returns a generator of paths. Each part of a path has few values, so that rules and requests
/// often match.
fn a_path() -> impl Strategy<Value = String> {
    proptest::collection::vec(one_of(&["a", "b", "s.S", "M", ""]), 0..4)
        .prop_map(|elements| format!("/{}", elements.join("/")))
}

fn a_match() -> impl Strategy<Value = Match> {
    let regex = |value: &str| {
        let kind = PathMatchKind::RegularExpression;
        let value = value.to_owned();
        Just(Some(PathMatch { kind, value }))
    };
    let plain = |kind| a_path().prop_map(move |value| Some(PathMatch { kind, value }));
    let path = prop_oneof![
        2 => Just(None),
        4 => plain(PathMatchKind::Exact),
        4 => plain(PathMatchKind::PathPrefix),
        1 => regex("/a.*"),
        1 => regex(".*b"),
    ];
    let method = proptest::option::weighted(0.3, one_of(&["GET", "POST"]));
    let kind = prop_oneof![
        Just(StringMatchKind::Exact),
        Just(StringMatchKind::RegularExpression)
    ];
    let headers = proptest::collection::vec(
        (
            kind.clone(),
            one_of(&["x", "y"]),
            one_of(&["1", "2", "[0-9]"]),
        )
            .prop_map(|(kind, name, value)| HeaderMatch { kind, name, value }),
        0..2,
    );
    let grpc = (
        kind,
        proptest::option::of(one_of(&["s.S"])),
        proptest::option::of(one_of(&["M"])),
    )
        .prop_map(|(kind, service, method)| GrpcMatch {
            kind,
            service,
            method,
        });
    let grpc = proptest::option::weighted(0.2, grpc);
    let route = proptest::option::weighted(0.2, one_of(&["r", "q"]));
    (path, method, headers, grpc, route).prop_map(|(path, method, headers, grpc, route)| Match {
        path,
        method,
        headers,
        grpc,
        route,
    })
}

fn a_request() -> impl Strategy<Value = Request> {
    let path = prop_oneof![
        8 => a_path().prop_map(|p| Some(p.into_bytes())),
        2 => (a_path(), "[?#][a-z/]{0,3}").prop_map(|(p, q)| Some(format!("{p}{q}").into_bytes())),
        1 => proptest::collection::vec(any::<u8>(), 0..6).prop_map(Some),
        1 => Just(None),
    ];
    let value = prop_oneof![
        Just(b"1".to_vec()),
        Just(b"2".to_vec()),
        Just(b"\xff".to_vec())
    ];
    let headers = proptest::collection::vec((one_of(&["x", "y"]), value), 0..3);
    let grpc = any::<bool>();
    let method = proptest::option::weighted(0.9, one_of(&["GET", "POST"]));
    let route = proptest::option::of(one_of(&["r", "q"]));
    (path, method, headers, grpc, route).prop_map(|(path, method, mut headers, grpc, route)| {
        if grpc {
            headers.push(("content-type".into(), b"application/grpc".to_vec()));
        }
        Request {
            path,
            method: method.map(String::into_bytes),
            headers,
            route: route.map(String::into_bytes),
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn the_index_answers_as_the_plain_scan(
        types in proptest::collection::vec(proptest::collection::vec(a_match(), 1..3), 0..8),
        excluded in proptest::collection::vec(a_match(), 0..2),
        classes in proptest::collection::vec(proptest::collection::vec(a_match(), 1..3), 0..4),
        requests in proptest::collection::vec(a_request(), 1..8),
    ) {
        let mut stage = stage(types, excluded);
        if !classes.is_empty() {
            let lists = classes.into_iter().chain([Vec::new()]).enumerate();
            stage.classes = lists
                .map(|(i, matches)| ClassConfig { name: format!("c{i}"), matches, value: 1.0 })
                .collect();
        }
        let classifier = Classifier::new(&stage).unwrap();
        for request in requests {
            let expected = trace::trace(&stage, &request).unwrap();
            prop_assert_eq!(classifier.classify(&request), expected.classified);
            if expected.classified != Classified::Excluded {
                prop_assert_eq!(classifier.class(&request), expected.class);
            }
        }
    }
}
