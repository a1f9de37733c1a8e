//! The token in W3C Baggage, with which a call finds the request that caused it.
//!
//! A proxy sees its application's requests and calls, but not which request causes a call.
//! Applications that propagate trace context copy the baggage of a request to its calls. So the
//! inbound side adds a member `headgate=<token>`, and the outbound side removes this member. Other
//! members are the application's, and their bytes don't change. Written baggage stays within the
//! recommendation's limits (§3.3.2). A token that would exceed these limits isn't added to the
//! baggage. Then only the token's header carries the token.
//!
//! A request may have several `baggage` headers, which together form one list (RFC 9110 §5.3).

use super::Token;
use crate::workflow::{MAX_BYTES, MAX_MEMBERS, pair};

/// The token's key.
const KEY: &[u8] = b"headgate";

/// Yields the members of a list, including invalid members, with the white space around each.
fn members<'a>(values: impl Iterator<Item = &'a [u8]> + 'a) -> impl Iterator<Item = &'a [u8]> + 'a {
    values.flat_map(|value| value.split(|&b| b == b','))
}

/// Returns the value of a member, without its properties, if its key is the token's.
fn value(member: &[u8]) -> Option<&[u8]> {
    let (key, value) = pair(member)?;
    (key == KEY).then_some(value)
}

/// Returns the first token in these `baggage` headers. Returns `None` if there is none, or if it is
/// empty or longer than 64 bytes.
pub fn token<'a>(values: impl Iterator<Item = &'a [u8]> + 'a) -> Option<&'a [u8]> {
    let token = members(values).find_map(value)?;
    (1..=Token::LENGTH).contains(&token.len()).then_some(token)
}

/// Writes all members of these `baggage` headers except tokens to `out`. If all members are tokens,
/// `out` is empty.
pub fn without_token<'a>(values: impl Iterator<Item = &'a [u8]> + 'a, out: &mut Vec<u8>) {
    out.clear();
    for member in members(values) {
        if value(member).is_some() || member.trim_ascii().is_empty() {
            continue;
        }
        if !out.is_empty() {
            out.push(b',');
        }
        out.extend_from_slice(member);
    }
}

/// Does the same as [`without_token`], and adds `token`. If the result would exceed the limits,
/// returns false, and `out` doesn't contain `token`.
pub fn with_token<'a>(
    values: impl Iterator<Item = &'a [u8]> + 'a,
    token: &[u8],
    out: &mut Vec<u8>,
) -> bool {
    without_token(values, out);
    let comma = usize::from(!out.is_empty());
    let others = comma + out.iter().filter(|&&b| b == b',').count();
    let length = out.len() + comma + KEY.len() + 1 + token.len();
    if others >= MAX_MEMBERS || length > MAX_BYTES {
        return false;
    }
    if comma > 0 {
        out.push(b',');
    }
    out.extend_from_slice(KEY);
    out.push(b'=');
    out.extend_from_slice(token);
    true
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(values: &[&str]) -> Option<Vec<u8>> {
        token(values.iter().map(|v| v.as_bytes())).map(<[u8]>::to_vec)
    }

    fn without(values: &[&str]) -> String {
        let mut out = b"before".to_vec();
        without_token(values.iter().map(|v| v.as_bytes()), &mut out);
        String::from_utf8(out).unwrap()
    }

    fn with(values: &[&str], token: &str) -> Option<String> {
        let mut out = Vec::new();
        let added = with_token(
            values.iter().map(|v| v.as_bytes()),
            token.as_bytes(),
            &mut out,
        );
        added.then(|| String::from_utf8(out).unwrap())
    }

    #[test]
    fn a_token_is_one_member_among_others() {
        assert_eq!(with(&[], "t1").unwrap(), "headgate=t1");
        assert_eq!(with(&[""], "t1").unwrap(), "headgate=t1");
        let both = with(&["workflow=a;ttl=3, user=4711", "k=v"], "t1").unwrap();
        assert_eq!(both, "workflow=a;ttl=3, user=4711,k=v,headgate=t1");
        assert_eq!(of(&[&both]).unwrap(), b"t1");
        assert_eq!(without(&[&both]), "workflow=a;ttl=3, user=4711,k=v");
        // The token of the previous hop is removed.
        assert_eq!(
            with(&["headgate=t0,k=v", " headgate = t00 ;p=1"], "t1").unwrap(),
            "k=v,headgate=t1"
        );
        assert_eq!(without(&["headgate=t0 ", ",,"]), "");
    }

    #[test]
    fn only_a_token_is_one() {
        for none in [
            "",
            "headgate",
            "headgate=",
            "Headgate=t",
            "headgates=t",
            "k=headgate=t",
            "k=v;headgate=t",
        ] {
            assert_eq!(of(&[none]), None, "{none:?}");
        }
        assert_eq!(of(&[&format!("headgate={}", "t".repeat(65))]), None);
        assert_eq!(of(&["k=v", "headgate=t;p"]).unwrap(), b"t");
    }

    #[test]
    fn limits_of_the_recommendation_hold() {
        let many = vec!["k=v"; 63].join(",");
        assert!(with(&[&many], "t").is_some());
        assert!(with(&[&many, "k=v"], "t").is_none());
        assert_eq!(
            without(&[&many, "k=v", "headgate=t"]),
            vec!["k=v"; 64].join(",")
        );
        let long = format!("k={}", "v".repeat(8192 - 2 - ",headgate=t".len()));
        assert_eq!(with(&[&long], "t").unwrap().len(), 8192);
        assert!(with(&[&long, "k"], "t").is_none());
    }

    proptest! {
        /// For any baggage of an application, adding and then removing a token preserves the
        /// members.
        #[test]
        fn removing_an_added_token_restores_the_baggage(
            values in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..100), 0..4),
            id in "[a-zA-Z0-9]{1,64}",
        ) {
            let all = || values.iter().map(Vec::as_slice);
            let (mut plain, mut added, mut back) = (Vec::new(), Vec::new(), Vec::new());
            without_token(all(), &mut plain);
            if with_token(all(), id.as_bytes(), &mut added) {
                prop_assert_eq!(token([added.as_slice()].into_iter()), Some(id.as_bytes()));
            }
            without_token([added.as_slice()].into_iter(), &mut back);
            prop_assert_eq!(token([back.as_slice()].into_iter()), None);
            prop_assert_eq!(back, plain);
        }
    }
}
