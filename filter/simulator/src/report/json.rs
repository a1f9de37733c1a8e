//! A report as JSON.

use serde::ser::{Serialize, SerializeStruct as _, Serializer};

use super::{Claim, Report, ReportRow, Subject};

/// Returns the report as JSON, ending with a line break. The JSON object has the subject, `rows`
/// with one object for each result, and the `claims`, if there are any. `holds` is null for a claim
/// that is not judged.
///
/// # Errors
/// Errors of [`serde_json`]; no report causes one.
pub fn json(report: &Report) -> Result<String, serde_json::Error> {
    let mut text = serde_json::to_string_pretty(&Json(report))?;
    text.push('\n');
    Ok(text)
}

struct Json<'a>(&'a Report);

impl Serialize for Json<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let report = self.0;
        let mut object = serializer.serialize_struct("Report", 4)?;
        match &report.subject {
            Subject::Scenario(name) => object.serialize_field("scenario", name)?,
            Subject::Policy { policy, workload } => {
                object.serialize_field("policy", policy)?;
                object.serialize_field("workload", workload)?;
            }
        }
        object.serialize_field("rows", &report.rows)?;
        if !report.claims.is_empty() {
            let claims: Vec<ReportRow> = report.claims.iter().map(claim).collect();
            object.serialize_field("claims", &claims)?;
        }
        object.end()
    }
}

fn claim(claim: &Claim) -> ReportRow {
    ReportRow::new()
        .with("claim", claim.text.as_str())
        .with("expected", claim.paper.as_str())
        .with("found", claim.ours.as_str())
        .with("holds", claim.holds)
}

#[cfg(test)]
mod tests {
    use super::*;

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
