//! A request's own deadline, read from headers in which clients and proxies state it.
//!
//! Deadlines are always relative to now, so that the clocks of sender and receiver needn't agree.
//! If a request has several deadlines, the shortest counts.

use std::time::Duration;

use crate::classify::RequestView;

/// The header of Headgate's proxies: the remaining time, ms.
pub const HEADER: &str = "x-headgate-timeout-ms";
/// Headers in which a request states its own deadline.
pub const HEADERS: [&str; 3] = [HEADER, GRPC, "x-envoy-expected-rq-timeout-ms"];
/// The header of gRPC clients, with a unit. The other headers are in ms.
const GRPC: &str = "grpc-timeout";

/// Returns the deadline that the request states, as a time from now, or `None` if the request has
/// no readable deadline.
pub fn own_deadline(request: &impl RequestView) -> Option<Duration> {
    let stated = HEADERS.iter().filter_map(|name| stated(request, name));
    // In Envoy 0 means no limit, and in gRPC an expired deadline. The stage can't enforce either.
    stated.filter(|deadline| !deadline.is_zero()).min()
}

/// Subtracts `by`, the time for which the request was held, from each of its deadlines. Calls `set`
/// with the header's name and its new value, unless no time is left.
pub fn lower(request: &impl RequestView, by: Duration, mut set: impl FnMut(&'static str, &str)) {
    for name in HEADERS {
        let is_grpc = name == GRPC;
        let stated = stated(request, name);
        let left = stated.map_or(0, |stated| stated.saturating_sub(by).as_millis());
        // A longer gRPC timeout would need more than 8 digits. It stays unchanged, because `by` is
        // negligible in comparison.
        if left > 0 && (!is_grpc || left <= 99_999_999) {
            set(name, &format!("{left}{}", if is_grpc { "m" } else { "" }));
        }
    }
}

/// Returns the deadline in the header `name`, or `None` if it isn't readable.
fn stated(request: &impl RequestView, name: &str) -> Option<Duration> {
    let value = request.header(name)?;
    match name {
        GRPC => grpc_timeout(value),
        _ => number(value).map(Duration::from_millis),
    }
}

fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Returns a timeout of gRPC over HTTP/2: at most 8 digits and a unit, e.g. `100m`.
fn grpc_timeout(value: &[u8]) -> Option<Duration> {
    let (&unit, digits) = value.split_last()?;
    let count = number(digits).filter(|_| digits.len() <= 8)?;
    Some(match unit {
        b'H' => Duration::from_secs(count * 3600),
        b'M' => Duration::from_secs(count * 60),
        b'S' => Duration::from_secs(count),
        b'm' => Duration::from_millis(count),
        b'u' => Duration::from_micros(count),
        b'n' => Duration::from_nanos(count),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemoryRequest;

    fn of(headers: &[(&str, &str)]) -> Option<Duration> {
        own_deadline(&MemoryRequest::of(headers))
    }

    #[test]
    fn the_shortest_statement_counts() {
        assert_eq!(of(&[]), None);
        assert_eq!(
            of(&[("grpc-timeout", "250m")]),
            Some(Duration::from_millis(250))
        );
        assert_eq!(
            of(&[("grpc-timeout", "99999999H")]),
            Some(Duration::from_secs(99_999_999 * 3600))
        );
        assert_eq!(
            of(&[
                ("grpc-timeout", "1S"),
                ("x-envoy-expected-rq-timeout-ms", "15000"),
                ("x-headgate-timeout-ms", "40")
            ]),
            Some(Duration::from_millis(40))
        );
    }

    #[test]
    fn a_delay_lowers_what_is_stated() {
        let lowered = |headers: &[(&str, &str)]| {
            let mut set = Vec::new();
            let by = Duration::from_millis(300);
            lower(&MemoryRequest::of(headers), by, |name, value| {
                set.push((name, value.to_owned()));
            });
            set
        };
        let stated = [
            ("grpc-timeout", "1S"),
            ("x-envoy-expected-rq-timeout-ms", "15000"),
            ("x-headgate-timeout-ms", "400"),
        ];
        let expected = [
            ("x-headgate-timeout-ms", "100".to_owned()),
            ("grpc-timeout", "700m".to_owned()),
            ("x-envoy-expected-rq-timeout-ms", "14700".to_owned()),
        ];
        assert_eq!(lowered(&stated), expected);
        // A value of 0 means no limit or an expired deadline. Eight digits of hours need more than
        // eight digits in ms.
        for unchanged in ["0m", "300m", "much", "99999999H"] {
            assert_eq!(lowered(&[("grpc-timeout", unchanged)]), []);
        }
    }

    #[test]
    fn an_unreadable_value_is_no_deadline() {
        for value in [
            "",
            "m",
            "1",
            "1x",
            "-5m",
            "+5m",
            "123456789m",
            "1.5S",
            " 1S",
            "5 m",
        ] {
            assert_eq!(of(&[("grpc-timeout", value)]), None, "{value:?}");
        }
        for value in ["", "0", "-1", "1e3", "99999999999999999999", "10ms"] {
            assert_eq!(of(&[("x-headgate-timeout-ms", value)]), None, "{value:?}");
        }
    }
}
