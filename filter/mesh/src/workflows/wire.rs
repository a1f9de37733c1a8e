//! The headers of workflows between sidecars.
//!
//! ```text
//! request    x-headgate-workflow: check%20out            percent-encoded outside of visible ASCII
//! request    x-headgate-process: 9f86d081884c7d65        the process that calls
//! request    x-headgate-timeout-ms: 250                  the remaining time until the deadline
//! request    x-headgate-progress: elapsed=12.5, total=40, ...   see `progress`
//! request    x-headgate-class: gold                      the class of the parent
//! response   x-headgate-rate: process="9f86d081884c7d65", rate=37.5
//! response   x-headgate-progress: elapsed=3.1, work=3.1, wait=12, slot=3.1
//! response   x-headgate-downgraded: gold                 the class that the call requested
//! ```
//!
//! `wait` and `slot` are set with class admission only. `x-headgate-downgraded` is set for the
//! application.
//!
//! Dictionaries follow RFC 9651. Unknown members are skipped, because later versions may add some.
//! A value that is invalid, or longer than [`MAX_VALUE`], is ignored. Encoding appends to the
//! caller's buffer. Decoding allocates no memory.

use std::fmt::Write as _;
use std::time::Duration;

use super::ProcessId;
use headgate_core::progress::{members, millis};
use headgate_strategies::request::Progress;

pub use crate::workflow::{BAGGAGE, HEADER as WORKFLOW, member};
pub use headgate_core::progress::HEADER as PROGRESS;

/// The header with the calling process, 16 hexadecimal digits.
pub const PROCESS: &str = "x-headgate-process";
/// The header with the rate that a process allows its caller.
pub const RATE: &str = "x-headgate-rate";
/// The header with the name of the class in which a request must run. It is the class of the
/// request's parent, or the class in which class admission lets the request run.
pub const CLASS: &str = "x-headgate-class";
/// The header with the class that a call requested and that class admission denied. It is set in
/// the answer to the application.
pub const DOWNGRADED: &str = "x-headgate-downgraded";
/// The header with the remaining time until the deadline, ms.
pub use headgate_core::deadline::HEADER as TIMEOUT;
/// The header with the token by which an outgoing call finds the request that caused the call.
pub const REQUEST: &str = "x-headgate-request";
/// The length of the longest value that is read, bytes.
pub const MAX_VALUE: usize = 256;

/// The largest decimal that RFC 9651 can write.
const MAX_DECIMAL: f64 = 999_999_999_999.0;

/// A request's times at the process that answered the request. They are members of the response's
/// header:
///
/// ```text
/// x-headgate-progress: elapsed=12.5, work=12.5, wait=40.2, slot=12.5
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spent {
    /// The queue wait at the stage.
    pub wait: Duration,
    /// The time from the start in the slot to the answer.
    pub slot: Duration,
}

/// Returns the members of [`Spent`] in a value of [`PROGRESS`], or `None` if one of them is
/// missing.
pub fn spent(dictionary: &str) -> Option<Spent> {
    let of = |name: &str| millis(members(dictionary).find(|(key, _)| *key == name)?.1);
    Some(Spent {
        wait: of("wait")?,
        slot: of("slot")?,
    })
}

/// A process's announcement to its caller.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Announcement {
    /// The announcing process.
    pub process: ProcessId,
    /// The rate of the workflow that the receiver may send to the announcing process, requests/s,
    /// or `None` for no limit.
    pub rate: Option<f64>,
}

fn put(out: &mut String, what: std::fmt::Arguments<'_>) {
    // Writing to a string can't fail.
    out.write_fmt(what).unwrap_or(());
}

/// Appends a decimal with at most three digits after the point and no trailing zeros.
fn put_decimal(out: &mut String, value: f64) {
    // Negative values and NaN become zero.
    let value = if value > 0.0 {
        value.min(MAX_DECIMAL)
    } else {
        0.0
    };
    put(out, format_args!("{value:.3}"));
    let kept = out.trim_end_matches('0').trim_end_matches('.').len();
    out.truncate(kept);
}

/// Appends a member, unless its value is `None`.
fn put_millis(out: &mut String, key: &str, span: Option<Duration>) {
    if let Some(span) = span {
        out.push_str(key);
        out.push('=');
        put_decimal(out, span.as_secs_f64() * 1e3);
    }
}

/// Appends the value of [`RATE`].
pub fn put_rate(out: &mut String, announcement: &Announcement) {
    let process = announcement.process.0;
    put(out, format_args!("process=\"{process:016x}\""));
    if let Some(rate) = announcement.rate {
        out.push_str(", rate=");
        put_decimal(out, rate);
    }
}

/// Returns the announcement in a value of [`RATE`], or `None` if the value is invalid.
pub fn parse_rate(value: &[u8]) -> Option<Announcement> {
    let (mut process, mut rate) = (None, None);
    for (key, value) in members(text(value)?) {
        match key {
            "process" => {
                let quoted = value.strip_prefix('"')?.strip_suffix('"')?;
                process = Some(parse_process(quoted.as_bytes())?);
            }
            "rate" => rate = Some(decimal(value)?),
            "" => return None,
            _ => {}
        }
    }
    Some(Announcement {
        process: process?,
        rate,
    })
}

/// Appends the value of [`PROCESS`].
pub fn put_process(out: &mut String, process: ProcessId) {
    put(out, format_args!("{:016x}", process.0));
}

/// Returns the process in a value of [`PROCESS`], or `None` if the value is invalid.
pub fn parse_process(value: &[u8]) -> Option<ProcessId> {
    let valid = value.len() == 16 && value.iter().all(u8::is_ascii_hexdigit);
    let digits = text(value).filter(|_| valid)?;
    u64::from_str_radix(digits, 16).ok().map(ProcessId)
}

/// Appends the value of [`PROGRESS`]. Unknown totals and an age of 0 are left out.
pub fn put_progress(out: &mut String, progress: &Progress) {
    put_millis(out, "elapsed", Some(progress.elapsed));
    put_millis(out, ", total", progress.total);
    put_millis(out, ", work", Some(progress.work));
    put_millis(out, ", total-work", progress.total_work);
    put_millis(
        out,
        ", age",
        Some(progress.age).filter(|age| !age.is_zero()),
    );
}

/// Appends the members of [`Spent`] to the value of [`PROGRESS`].
pub fn put_spent(out: &mut String, spent: &Spent) {
    put_millis(out, ", wait", Some(spent.wait));
    put_millis(out, ", slot", Some(spent.slot));
}

/// Appends the value of [`TIMEOUT`], ms. It is at least 1, because 0 means no deadline.
pub fn put_timeout(out: &mut String, left: Duration) {
    put(out, format_args!("{}", left.as_millis().max(1)));
}

/// Appends `name`. Bytes that a header or a baggage member can't hold are percent-encoded.
pub fn put_name(out: &mut String, name: &[u8]) {
    for &byte in name {
        let plain =
            byte.is_ascii_graphic() && !matches!(byte, b'"' | b',' | b';' | b'\\' | b'%' | b'=');
        if plain {
            out.push(char::from(byte));
        } else {
            put(out, format_args!("%{byte:02X}"));
        }
    }
}

/// Decodes the percent-encoded name `value` into `out`, which is cleared first. Returns false if
/// the name is empty or too long.
pub fn parse_name(value: &[u8], out: &mut Vec<u8>) -> bool {
    out.clear();
    let value = value.trim_ascii();
    if value.len() > 3 * MAX_VALUE {
        return false;
    }
    out.extend(crate::workflow::Decoded(value).take(MAX_VALUE + 1));
    !out.is_empty() && out.len() <= MAX_VALUE
}

/// Returns a value as text. Returns `None` unless the value consists of at most [`MAX_VALUE`] bytes
/// of visible ASCII, blanks and tabs.
fn text(value: &[u8]) -> Option<&str> {
    let valid = value.len() <= MAX_VALUE
        && value
            .iter()
            .all(|&b| b.is_ascii_graphic() || b == b' ' || b == b'\t');
    std::str::from_utf8(value).ok().filter(|_| valid)
}

/// Returns the value of a nonnegative decimal of RFC 9651, or `None` if `value` isn't one.
fn decimal(value: &str) -> Option<f64> {
    // Milliseconds have the same syntax.
    millis(value)?;
    value.parse().ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rate_of(announcement: &Announcement) -> String {
        let mut out = String::new();
        put_rate(&mut out, announcement);
        out
    }

    #[test]
    fn an_announcement_as_the_mesh_reads_it() {
        let full = Announcement {
            process: ProcessId(0x9f86_d081_884c_7d65),
            rate: Some(37.5),
        };
        let written = r#"process="9f86d081884c7d65", rate=37.5"#;
        assert_eq!(rate_of(&full), written);
        let read = |value: &str| parse_rate(value.as_bytes());
        assert_eq!(read(written), Some(full));
        let other_order = r#"rate=37.5;x=1,	hops=2, ttl=1000, process="9F86d081884c7d65";y, flag"#;
        assert_eq!(read(other_order), Some(full));
        let no_limit = read(r#"process="0000000000000001""#).unwrap();
        assert_eq!((no_limit.process, no_limit.rate), (ProcessId(1), None));
    }

    #[test]
    fn an_invalid_announcement_has_no_effect() {
        for odd in [
            "",
            "rate=1",
            "process=9f86d081884c7d65",
            r#"process="9f86d081884c7d6""#,
            r#"process="9f86d081884c7d65", rate"#,
            r#"process="9f86d081884c7d65", rate=-1"#,
            r#"process="9f86d081884c7d65", rate=1e9"#,
            r#"process="9f86d081884c7d65", rate=NaN"#,
            r#"process="9f86d081884c7d65", rate=1234567890123"#,
            r#"process="9f86d081884c7d65","#,
            r#"process="+f86d081884c7d65""#,
        ] {
            assert_eq!(parse_rate(odd.as_bytes()), None, "{odd:?}");
        }
        let padded = format!(r#"{}process="9f86d081884c7d65""#, "a=1,".repeat(64));
        assert_eq!(parse_rate(padded.as_bytes()), None);
    }

    proptest! {
        #[test]
        fn a_written_value_reads_back(
            process in any::<u64>(),
            rate in prop::option::of(0.0..1e12_f64),
        ) {
            let written = Announcement { process: ProcessId(process), rate };
            let value = rate_of(&written);
            prop_assert!(value.len() <= MAX_VALUE);
            let read = parse_rate(value.as_bytes());
            let Some(read) = read else { return Err(TestCaseError::fail(value)) };
            prop_assert_eq!(read.process, written.process);
            prop_assert_eq!(read.rate.is_some(), rate.is_some());
            prop_assert!((read.rate.unwrap_or(0.0) - rate.unwrap_or(0.0)).abs() <= 0.000_51);
        }

        #[test]
        fn any_rate_can_be_written(rate in any::<f64>()) {
            let announcement = Announcement { process: ProcessId(1), rate: Some(rate) };
            let value = rate_of(&announcement);
            prop_assert!(parse_rate(value.as_bytes()).is_some(), "{value}");
        }

        #[test]
        fn a_process_and_a_name_survive(
            process in any::<u64>(),
            name in prop::collection::vec(any::<u8>(), 1..=MAX_VALUE),
        ) {
            let mut out = String::new();
            put_process(&mut out, ProcessId(process));
            prop_assert_eq!(parse_process(out.as_bytes()), Some(ProcessId(process)));
            let (mut out, mut read) = (String::new(), Vec::new());
            put_name(&mut out, &name);
            prop_assert!(parse_name(out.as_bytes(), &mut read));
            prop_assert_eq!(read, name);
        }

        #[test]
        fn progress_survives(us in prop::array::uniform5(0_u64..1_000_000_000)) {
            let at = |i: usize| Duration::from_micros(us[i]);
            let progress = Progress {
                elapsed: at(0),
                total: Some(at(1)),
                work: at(2),
                total_work: Some(at(3)),
                age: at(4),
            };
            let mut out = String::new();
            put_progress(&mut out, &progress);
            prop_assert!(out.len() <= MAX_VALUE);
            prop_assert_eq!(headgate_core::progress::parse(&out), Some(progress));
            prop_assert_eq!(spent(&out), None);
            let times = Spent { wait: at(0), slot: at(2) };
            put_spent(&mut out, &times);
            prop_assert!(out.len() <= MAX_VALUE);
            prop_assert_eq!(headgate_core::progress::parse(&out), Some(progress));
            prop_assert_eq!(spent(&out), Some(times));
        }

        #[test]
        fn any_bytes_cause_no_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let mut out = Vec::new();
            let _ = (parse_rate(&bytes), parse_process(&bytes), parse_name(&bytes, &mut out));
            let _ = member(&bytes, b"headgate");
        }
    }
}
