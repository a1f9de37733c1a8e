//! A request's use of a second resource, as the backend reports it in its response.
//!
//! Two existing conventions are supported:
//!
//! - An ORCA load report for one request (Open Request Cost Aggregation) is in the header
//!   `endpoint-load-metrics`, as `TEXT request_cost.cpu=0.25, cpu_utilization=0.4` or `JSON
//!   {"request_cost": {"cpu": 0.25}}`.
//! - The header `server-timing` (W3C Server Timing) has values such as `cpu;dur=12.5, db;desc="two
//!   queries";dur=53`.
//!
//! A report that can't be read, or that is negative or not finite, is ignored.

/// The header of an ORCA load report.
pub const ORCA: &str = "endpoint-load-metrics";
/// The header of timings.
pub const SERVER_TIMING: &str = "server-timing";
/// The length of the longest header that is read, bytes.
const MAX_VALUE: usize = 4096;

/// Returns the cost `metric` of the request from an ORCA load report, in the backend's unit.
pub fn orca(header: &[u8], metric: &str) -> Option<f64> {
    let header = text(header)?;
    if let Some(json) = header.strip_prefix("JSON ") {
        let report: serde_json::Value = serde_json::from_str(json).ok()?;
        // The JSON form of Protobuf may have either spelling of the name.
        let costs = report
            .get("request_cost")
            .or_else(|| report.get("requestCost"))?;
        return costs
            .get(metric)?
            .as_f64()
            .and_then(|cost| amount(Some(cost)));
    }
    let pairs = header.strip_prefix("TEXT ")?.split(',');
    let mut costs = pairs.filter_map(|pair| {
        let (key, value) = pair.split_once(['=', ':'])?;
        let key = key.trim().strip_prefix("request_cost.")?;
        (key == metric).then(|| value.trim())
    });
    amount(costs.next()?.parse().ok())
}

/// Returns the duration of `metric` from a `server-timing` header, ms.
pub fn server_timing(header: &[u8], metric: &str) -> Option<f64> {
    let mut metrics = unquoted(text(header)?, ',');
    let found = metrics.find_map(|entry| {
        let mut parts = unquoted(entry, ';');
        (parts.next()?.trim() == metric).then_some(parts)
    });
    let duration = found?.find_map(|part| {
        let (key, value) = part.split_once('=')?;
        let value = value.trim().trim_matches('"');
        key.trim()
            .eq_ignore_ascii_case("dur")
            .then(|| value.parse().ok())
    });
    amount(duration?)
}

fn text(header: &[u8]) -> Option<&str> {
    let short = header.len() <= MAX_VALUE;
    short.then(|| std::str::from_utf8(header).ok())?
}

fn amount(value: Option<f64>) -> Option<f64> {
    value.filter(|v| v.is_finite() && *v >= 0.0)
}

/// Yields the pieces of `text` between `separator`s outside of quoted strings.
fn unquoted(text: &str, separator: char) -> impl Iterator<Item = &str> {
    let (mut quoted, mut escaped) = (false, false);
    text.split(move |c| {
        match c {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            _ => return c == separator && !quoted,
        }
        false
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn orca_reports_in_text_and_json() {
        let cpu = |header: &str| orca(header.as_bytes(), "cpu");
        assert_eq!(
            cpu("TEXT cpu_utilization=0.4, request_cost.cpu=0.25,request_cost.io=9"),
            Some(0.25)
        );
        assert_eq!(cpu(r#"JSON {"request_cost": {"cpu": 2}}"#), Some(2.0));
        assert_eq!(
            cpu(r#"JSON {"requestCost": {"cpu": 2.5}, "eps": 1}"#),
            Some(2.5)
        );
        for nothing in [
            "",
            "TEXT ",
            "TEXT request_cost.cpu",
            "TEXT request_cost.cpu=x",
            "TEXT request_cost.cpu=-1",
            "TEXT request_cost.cpu=inf",
            "TEXT request_cost.cpu2=1",
            "TEXT cpu=1",
            "JSON {",
            r#"JSON {"request_cost": {"cpu": -1}}"#,
            r#"JSON {"request_cost": {"cpu": "1"}}"#,
            "request_cost.cpu=1",
        ] {
            assert_eq!(cpu(nothing), None, "{nothing:?}");
        }
        assert_eq!(
            cpu(&format!("TEXT {}request_cost.cpu=1", "a=1,".repeat(2000))),
            None
        );
    }

    #[test]
    fn durations_in_server_timing() {
        let db = |header: &str| server_timing(header.as_bytes(), "db");
        assert_eq!(db("cpu;dur=1, db;dur=53.5"), Some(53.5));
        assert_eq!(db("db; desc=\"a;dur=1, db;dur=2\"; DUR = 7"), Some(7.0));
        assert_eq!(db(r#"x;desc="\",db;dur=1", db;dur="4""#), Some(4.0));
        for nothing in [
            "",
            "db",
            "db;dur",
            "db;dur=x",
            "db;dur=-1",
            "dbs;dur=1",
            "x;desc=\"db;dur=1",
        ] {
            assert_eq!(db(nothing), None, "{nothing:?}");
        }
    }

    proptest! {
        #[test]
        fn any_header_causes_no_panic(header in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = (orca(&header, "cpu"), server_timing(&header, "db"));
            let mut json = b"JSON ".to_vec();
            json.extend(&header);
            let _ = orca(&json, "cpu");
        }
    }
}
