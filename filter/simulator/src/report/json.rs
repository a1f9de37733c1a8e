//! A report as JSON.

use super::Report;

/// Returns the report as JSON, ending with a line break. The JSON object has the subject, `rows`
/// with one object for each result, and the `claims`, if there are any. `holds` is null for a claim
/// that is not judged.
///
/// # Errors
/// Errors of [`serde_json`]; no report causes one.
pub fn json(report: &Report) -> Result<String, serde_json::Error> {
    let mut text = serde_json::to_string_pretty(report)?;
    text.push('\n');
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Claim, ReportRow, Subject};

    #[test]
    fn rows_come_after_what_was_simulated_and_claims_only_where_there_are_some() {
        let mut report = Report::new(Subject::Scenario("bouncer-table3".into()), "Title");
        report.rows.push(
            ReportRow::new()
                .with("strategy", "Bouncer")
                .with("factor", 1.5),
        );
        let compact = |report: &Report| {
            let text = json(report).unwrap();
            text.split_whitespace().collect::<String>()
        };
        assert_eq!(
            compact(&report),
            r#"{"scenario":"bouncer-table3","rows":[{"strategy":"Bouncer","factor":1.5}]}"#
        );
        report.subject = Subject::Policy {
            policy: "default/search".into(),
            workload: "w.yaml".into(),
        };
        report.rows.clear();
        report.claims.push(Claim {
            text: "a".into(),
            paper: String::new(),
            ours: "b".into(),
            holds: Some(true),
        });
        assert_eq!(
            compact(&report),
            r#"{"policy":"default/search","workload":"w.yaml","rows":[],"claims":[{"claim":"a","expected":"","found":"b","holds":true}]}"#
        );
    }
}
