//! Tests of the meaning of regular expressions, and of their limits.

use proptest::prelude::*;

use super::pattern::{MAX_DFAS, MAX_VALUE, Pattern};
use super::{Budget, Refused};

fn pattern(text: &str) -> Pattern {
    Pattern::new(text, &mut Budget::of_accepted()).unwrap()
}

fn is_match(text: &str, value: impl AsRef<[u8]>) -> bool {
    pattern(text).matches(value.as_ref())
}

/// Returns the reason why a policy with only this expression isn't accepted.
fn reason(text: &str) -> Option<String> {
    match Budget::of_accepted().check(text) {
        Ok(()) => None,
        Err(Refused::Unusable(reason)) => Some(reason),
        Err(Refused::TooMany) => panic!("{text}: only one expression"),
    }
}

const ATOMS: &[&str] = &[
    "a",
    "b",
    "Z",
    "_",
    "0",
    "/",
    "-",
    " ",
    ".",
    r"\.",
    r"\d",
    r"\D",
    r"\w",
    r"\W",
    r"\s",
    r"\S",
    r"\b",
    r"\B",
    "^",
    "$",
    r"\A",
    r"\z",
    "[a-c]",
    "[^a-c]",
    "[[:alpha:]]",
    "[^/]",
    r"[\d_]",
    r"[^\w]",
    r"\t",
    r"\x61",
    "(?i)",
    "(?s)",
    "(?m)",
    "(?U)",
    "(?-s)",
    "(?R)",
];
const TIMES: &[&str] = &["*", "+", "?", "*?", "{2}", "{0,3}", "{2,}", "{0}"];
const OPEN: &[&str] = &["(", "(?:", "(?i:", "(?s-m:", "(?P<n>"];

/// Returns a generator of regular expressions, most of which are valid.
fn an_expression() -> impl Strategy<Value = String> {
    let atom = proptest::sample::select(ATOMS).prop_map(str::to_owned);
    atom.prop_recursive(4, 24, 4, |part| {
        let times = proptest::sample::select(TIMES);
        let open = proptest::sample::select(OPEN);
        prop_oneof![
            3 => proptest::collection::vec(part.clone(), 1..4).prop_map(|parts| parts.concat()),
            2 => proptest::collection::vec(part.clone(), 1..4).prop_map(|parts| parts.join("|")),
            2 => (open, part.clone()).prop_map(|(open, part)| format!("{open}{part})")),
            3 => (part, times).prop_map(|(part, times)| format!("(?:{part}){times}")),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Filters of version 0.1 compile expressions with `regex-lite`.
    #[test]
    fn expressions_mean_what_they_mean_to_regex_lite(
        text in an_expression(),
        values in proptest::collection::vec("[abcABCzZ_019/. \\t\r\n-]{0,8}", 1..8),
        odd in "[ -~\\t\\n]{0,4}",
    ) {
        let expected = regex_lite::Regex::new(&format!(r"\A(?:{text})\z"));
        let found = Pattern::new(&text, &mut Budget::of_accepted());
        let (Ok(expected), Ok(found)) = (&expected, &found) else {
            prop_assert!(expected.is_err() || matches!(found, Err(Refused::Unusable(_))));
            return Ok(());
        };
        for value in values.iter().chain([&odd]) {
            prop_assert_eq!(
                found.matches(value.as_bytes()),
                expected.is_match(value),
                "{} on {:?}",
                text,
                value
            );
        }
    }

    #[test]
    fn no_text_makes_the_compiler_panic(text in "[ -~é]{0,40}", value in ".{0,8}") {
        if let Ok(pattern) = Pattern::new(&text, &mut Budget::of_accepted()) {
            pattern.matches(value.as_bytes());
        }
    }
}

#[test]
fn expressions_like_those_of_the_generator_are_usable() {
    // Otherwise the comparison with regex-lite may compare nothing.
    for text in [
        r"(?i:[a-c]\b)|(?:\d|/){2,}",
        "(?P<n>a|[^/]*?)(?s-m:.$)",
        "(?R)^$",
    ] {
        assert_eq!(reason(text), None, "{text}");
        assert!(regex_lite::Regex::new(text).is_ok(), "{text}");
    }
}

#[test]
fn a_dot_is_one_byte_and_text_beyond_ascii_matches_itself() {
    assert!(is_match("/é", "/é"));
    assert!(is_match("/(é|è)+", "/éè"));
    assert!(is_match("/.*", "/é"));
    assert!(is_match("/[^/]{2}", "/é"));
    assert!(!is_match("/.", "/é"));
    assert!(!is_match(r"\w+", "é"));
    assert!(!is_match("(?i)é", "É"));
    assert!(!is_match(".", b"\xff"), "no UTF-8");
}

#[test]
fn what_needs_unicode_is_refused_with_a_remedy() {
    let ascii = "a class of characters beyond ASCII; write alternatives, such as (é|è)";
    for text in ["[é]", "[^é]", "[a-é]", r"\p{L}"] {
        assert_eq!(reason(text).as_deref(), Some(ascii), "{text}");
    }
    for text in [r"(?u)\w", r"a(?u:\d)", r"(?iu)a", r"((a|(?u:.)))"] {
        assert_eq!(
            reason(text).as_deref(),
            Some("the flag u is not supported"),
            "{text}"
        );
    }
    assert_eq!(reason(r"\(?u(?-u:.)"), None);
}

#[test]
fn an_expression_is_compiled_alone() {
    assert_eq!(reason("a)(b").as_deref(), Some("unopened group"));
    assert!(is_match("(?x) a # b", "a"));
    assert!(!is_match("(?m)a$", "a\nb"));
    assert!(is_match("a|ab", "ab"), "not only the first alternative");
    assert!(is_match("(?U)a+", "aaa"));
}

#[test]
fn expressions_beyond_the_limits_are_refused() {
    let too_large = Some("too large when compiled; use smaller repetition counts".to_owned());
    for text in [
        // A state for each set of positions of the last "a": 2^20.
        "(a|b)*a[ab]{20}",
        "(a|b|ab)*[a-z]{30}a.{20}",
        "((a{100}){100}){100}",
        "((a?){1000}){1000}",
        "[a-z]{1000}[0-9]{1000}",
    ] {
        assert_eq!(reason(text), too_large, "{text}");
    }
    let deep = format!("{}a{}", "(".repeat(51), ")".repeat(51));
    assert!(reason(&deep).is_some_and(|reason| reason.contains("(50)")));
    assert_eq!(reason(&"a".repeat(1024)), None);
    let long = reason(&"a".repeat(1025));
    assert_eq!(long.as_deref(), Some("1025 bytes long; at most 1024"));
}

#[test]
fn an_expression_that_makes_backtracking_slow_is_small() {
    for (text, matching) in [
        ("(a|b|ab)*[a-z]{30}", "ab".repeat(20)),
        ("(a*)*b", "a".repeat(100) + "b"),
        ("(?:a?){30}a{30}", "a".repeat(30)),
        ("/(?:a*){700}z", "/".to_owned() + &"a".repeat(1000) + "z"),
        (
            "/users/[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
            "/users/01234567-89ab-cdef-0123-456789abcdef".to_owned(),
        ),
    ] {
        let pattern = pattern(text);
        assert!(
            pattern.size() <= 64 * 1024,
            "{text}: {} bytes",
            pattern.size()
        );
        assert!(pattern.matches(matching.as_bytes()), "{text}");
        let longest = "a".repeat(MAX_VALUE - 1) + "!";
        assert!(!pattern.matches(longest.as_bytes()), "{text}");
    }
}

#[test]
fn a_policy_has_256_ordinary_expressions_or_fewer_large_ones() {
    let accepted = |text: &dyn Fn(usize) -> String| {
        let mut budget = Budget::of_accepted();
        (0..1000)
            .take_while(|n| budget.check(&text(*n)).is_ok())
            .count()
    };
    assert_eq!(accepted(&|n| format!("/{n}.*")), 256);
    assert_eq!(MAX_DFAS / 4096, 256);
    let ordinary = accepted(&|n| format!("/t{n}/v[0-9]+/items/[^/]+/orders"));
    assert!((100..=256).contains(&ordinary), "{ordinary}");
    let large = accepted(&|n| format!("/[a-z]{{500}}{n}"));
    assert!((2..=16).contains(&large), "{large}");
}

#[test]
fn beyond_the_budget_nothing_is_compiled() {
    let mut budget = Budget::of_accepted();
    while budget.check("/[a-z]{500}b").is_ok() {
        assert!(!budget.is_exceeded());
    }
    assert!(budget.is_exceeded());
    // Not even what can't be used is looked at.
    for text in ["a", "(", "((a{100}){100}){100}"] {
        assert_eq!(budget.check(text), Err(Refused::TooMany), "{text}");
    }
}

#[test]
fn expressions_that_are_too_large_take_from_the_budget() {
    let mut budget = Budget::of_accepted();
    let mut tried = 0;
    while budget.check("((a{100}){100}){100}") != Err(Refused::TooMany) {
        tried += 1;
        assert!(tried < 200);
    }
}

#[test]
fn a_filter_takes_twice_of_what_is_accepted() {
    let accepted = |mut budget: Budget| {
        let texts = (0..2000).map(|n| format!("/{n}.*"));
        texts.take_while(|t| budget.check(t).is_ok()).count()
    };
    assert_eq!(accepted(Budget::of_running()), 512);
    let large = "[a-z]{600}[0-9]{600}";
    assert!(Budget::of_accepted().check(large).is_err());
    assert_eq!(Budget::of_running().check(large), Ok(()));
}
