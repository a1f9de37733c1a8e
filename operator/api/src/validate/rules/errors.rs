//! `spec.errors`: statuses.

use headgate_core::config::{ErrorsConfig, MAX_ERRORS};

use super::At;
use crate::Errors;
use crate::validate::schema::{Place, Rule};

const RIGHT: &str = "an HTTP status, such as 429, or 5xx for 500 to 599";

pub(super) fn errors(errors: &Errors, at: &At<'_>) -> ErrorsConfig {
    let default = ErrorsConfig::default();
    let http = errors.http_statuses.as_ref().map(|statuses| {
        let at = at.field("httpStatuses");
        at.at_most(MAX_ERRORS, statuses.len(), "statuses");
        let checked = |(i, status): (usize, &String)| {
            let found = range(status);
            if found.is_none() {
                at.item(i).add(format!("{status:?}; {RIGHT}"));
            }
            found
        };
        statuses.iter().enumerate().filter_map(checked).collect()
    });
    let grpc = errors.grpc_statuses.as_ref().map(|statuses| {
        let at = at.field("grpcStatuses");
        at.at_most(MAX_ERRORS, statuses.len(), "statuses");
        statuses.iter().map(|&status| status as u8).collect()
    });
    ErrorsConfig {
        http: http.unwrap_or(default.http),
        grpc: grpc.unwrap_or(default.grpc),
    }
}

/// Returns the first and last status of `503` or `5xx`.
fn range(status: &str) -> Option<(u16, u16)> {
    let (first, last) = match status.strip_suffix("xx") {
        Some(class) if class.len() == 1 => {
            let first = class.parse::<u16>().ok()? * 100;
            (first, first + 99)
        }
        Some(_) => return None,
        None if status.len() == 3 && status.bytes().all(|b| b.is_ascii_digit()) => {
            let status = status.parse().ok()?;
            (status, status)
        }
        None => return None,
    };
    (first >= 100 && last <= 599).then_some((first, last))
}

pub(super) fn schema(spec: &mut Place<'_>) {
    spec.at("errors.httpStatuses")
        .max_items(MAX_ERRORS)
        .atomic();
    spec.at("errors.httpStatuses[]")
        .max_length(8)
        .rule(Rule::quoted(
            "self.matches('^[1-5](xx|[0-9][0-9])$')",
            "self",
            RIGHT,
        ));
    spec.at("errors.grpcStatuses")
        .max_items(MAX_ERRORS)
        .atomic();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_single_or_of_a_class() {
        assert_eq!(range("503"), Some((503, 503)));
        assert_eq!(range("5xx"), Some((500, 599)));
        assert_eq!(range("1xx"), Some((100, 199)));
        for odd in [
            "", "5", "5x", "xx", "0xx", "6xx", "50x", "099", "600", "5XX", "+50", "5000", "-1",
        ] {
            assert_eq!(range(odd), None, "{odd:?}");
        }
    }
}
