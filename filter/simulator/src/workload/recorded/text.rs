//! Text lines of an access log: Envoy's default format, Istio's, and that of `headgate bootstrap`.
//!
//! All formats begin with `[START_TIME] "METHOD PATH PROTOCOL" CODE FLAGS`. Envoy's format
//! continues with bytes received, bytes sent, duration and upstream service time. Istio's format
//! has details before these four fields. So both formats have three whole numbers in a row,
//! followed by a number or `-`. Then both formats quote `X-Forwarded-For`, `User-Agent`,
//! `X-Request-Id`, `:authority` and the upstream host. Headgate's format has times with their unit.

use super::fields::{Fields, millis, present};
use super::{Passed, timestamp};

/// The quoted headers that follow the numbers, in order. The upstream host is next.
const QUOTED: [&str; 4] = ["x-forwarded-for", "user-agent", "x-request-id", "host"];

/// Reads a line.
pub(super) fn fields(line: &str) -> Result<Fields, Passed> {
    let tokens = tokens(line);
    let [start, request, rest @ ..] = tokens.as_slice() else {
        return Err(Passed::Unknown);
    };
    let mut words = request.split(' ');
    let (Some(method), Some(path), Some(protocol)) = (words.next(), words.next(), words.next())
    else {
        return Err(Passed::Unknown);
    };
    // Method, path and protocol are all missing if a connection broke before its request was
    // complete.
    if !protocol.starts_with("HTTP/") && present(protocol).is_some() {
        return Err(Passed::Unknown);
    }
    let mut fields = Fields {
        start_ns: timestamp::nanos(start),
        ..Fields::default()
    };
    fields.request.method = present(method).map(str::to_owned);
    fields.request.path = present(path).map(str::to_owned);
    if !numbers_of_envoy(rest, &mut fields) {
        times_of_headgate(rest, &mut fields);
    }
    Ok(fields)
}

/// Finds the bytes received, the bytes sent, the duration and the upstream service time, and reads
/// these times and the fields after them. Returns whether the four fields were found.
fn numbers_of_envoy(rest: &[String], fields: &mut Fields) -> bool {
    let whole = |token: &String| !token.is_empty() && token.bytes().all(|b| b.is_ascii_digit());
    // The first two tokens are the code and the flags.
    let four = rest.windows(4).skip(2).position(|four| {
        four[..3].iter().all(whole) && (whole(&four[3]) || present(&four[3]).is_none())
    });
    let Some(at) = four.map(|at| at + 2) else {
        return false;
    };
    fields.duration_ms = millis(&rest[at + 2]);
    fields.upstream_ms = millis(&rest[at + 3]);
    let mut quoted = rest[at + 4..].iter();
    for (name, value) in QUOTED.iter().zip(quoted.by_ref()) {
        if let Some(value) = present(value) {
            let header = ((*name).to_owned(), value.to_owned());
            fields.request.headers.push(header);
        }
    }
    fields.reached_upstream = quoted.next().map(|host| present(host).is_some());
    true
}

/// Reads `CODE FLAGS DETAILS 12ms refused="…" retry_after=… upstream=11ms`.
fn times_of_headgate(rest: &[String], fields: &mut Fields) {
    let upstream = rest
        .iter()
        .find_map(|token| token.strip_prefix("upstream="));
    let ends_in_ms = |token: &&String| token.ends_with("ms") && !token.contains('=');
    fields.duration_ms = rest.iter().find(ends_in_ms).and_then(|token| millis(token));
    fields.upstream_ms = upstream.and_then(millis);
    fields.reached_upstream = rest.get(2).map(|details| details == "via_upstream");
}

/// Returns the tokens between spaces, brackets or quotes.
fn tokens(line: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut token = String::new();
    let (mut bracket, mut quote) = (false, false);
    let mut begun = false;
    for c in line.trim_end().chars() {
        match c {
            '[' if !begun && !quote => (bracket, begun) = (true, true),
            ']' if bracket => bracket = false,
            '"' if !bracket => (quote, begun) = (!quote, true),
            ' ' if !bracket && !quote => {
                if begun {
                    tokens.push(std::mem::take(&mut token));
                }
                begun = false;
            }
            c => {
                begun = true;
                token.push(c);
            }
        }
    }
    if begun {
        tokens.push(token);
    }
    tokens
}
