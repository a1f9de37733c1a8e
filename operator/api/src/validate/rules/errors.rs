//! `spec.errors`: statuses.

use headgate_core::config::{ErrorsConfig, MAX_ERRORS};

use super::{At, By, Field, Format, Table};
use crate::Errors;

static STATUS: Format = Format::new(
    8,
    "^[1-5](xx|[0-9][0-9])$",
    "an HTTP status, such as 429, or 5xx for 500 to 599",
);
pub(super) static FIELDS: Table = fields! {
    "httpStatuses" => Field::List(MAX_ERRORS, "statuses", By::Nothing),
    "httpStatuses[]" => Field::Text(&STATUS),
    "grpcStatuses" => Field::List(MAX_ERRORS, "statuses", By::Nothing),
};

pub(super) fn errors(errors: &Errors, at: &At<'_>) -> ErrorsConfig {
    let default = ErrorsConfig::default();
    let http = errors.http_statuses.as_ref().map(|statuses| {
        let at = at.field("httpStatuses");
        at.count(statuses.len());
        let checked = |(i, status): (usize, &String)| {
            at.item(i).text(status).then(|| range(status)).flatten()
        };
        statuses.iter().enumerate().filter_map(checked).collect()
    });
    let grpc = errors.grpc_statuses.as_ref().map(|statuses| {
        let at = at.field("grpcStatuses");
        at.count(statuses.len());
        statuses.iter().map(|&status| status as u8).collect()
    });
    ErrorsConfig {
        http: http.unwrap_or(default.http),
        grpc: grpc.unwrap_or(default.grpc),
    }
}

/// Returns the first and the last status that a text such as `503` or `5xx` covers.
fn range(status: &str) -> Option<(u16, u16)> {
    let number = |x: &str| status.replace('x', x).parse().ok();
    Some((number("0")?, number("9")?))
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
            assert!(!STATUS.is(odd), "{odd:?}");
        }
    }
}
