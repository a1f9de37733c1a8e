//! A request's work in the queue, and its unit.
//!
//! The ledger keeps the sum of the work of all waiting requests. It is the sum in Bouncer's Eq. 2,
//! and the backlog d(t) of Chronos' Eq. 2, `d(t) = Σ n_i`. If n_i is the mean processing time of
//! the request's type, the unit is the microsecond. If a cost is configured for the type, or the
//! request states its own cost, the unit is that of the cost, such as rows, documents or tokens. A
//! cost is more precise than a type if requests of one type differ in size. The slot time of a unit
//! of cost is measured, so estimates of waits include each request's size.
//!
//! A request without a readable cost costs 1, the minimum, so that an invalid value has no
//! advantage over a plain 1. Only a policy that trusts its clients should configure the header.

use crate::config::CostConfig;
use crate::request::Attributes;
use crate::service_times::ServiceTimes;
use crate::time::micros;

/// The largest work of one request, to which larger values are clamped. In µs it is 71 minutes,
/// about the longest time that a histogram measures.
pub const MAX_WORK: u64 = 1 << 32;

/// Returns n_i, the work of a request in the unit of `cost`, at most [`MAX_WORK`]. A time is 0
/// before anything was measured, and a cost is at least 1.
pub fn work(cost: &CostConfig, request: &Attributes, times: &ServiceTimes) -> u64 {
    let work = match cost {
        CostConfig::Measured => {
            return micros(times.mean_of(request).unwrap_or_default()).min(MAX_WORK);
        }
        CostConfig::Type { costs } => costs.get(request.kind.0 as usize).or(costs.last()).copied(),
        CostConfig::Header { .. } => request.cost,
    };
    u64::from(work.unwrap_or(1)).clamp(1, MAX_WORK)
}

/// Returns the cost in the value of a header, a whole number of at least 1, or `None` for any other
/// value.
pub fn cost(value: &[u8]) -> Option<u32> {
    size(value).filter(|cost| *cost > 0)
}

/// Returns the size in the value of a header, a whole number, or `None` for any other value.
pub fn size(value: &[u8]) -> Option<u32> {
    let digits = value.trim_ascii();
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    Some(digits.iter().fold(0_u32, |number, digit| {
        let tens = number.saturating_mul(10);
        tens.saturating_add(u32::from(digit - b'0'))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::TypeId;
    use crate::service_times::Settings;
    use std::time::Duration;

    #[test]
    fn a_cost_is_a_whole_number() {
        let read = |value: &str| cost(value.as_bytes());
        assert_eq!(read("17"), Some(17));
        assert_eq!(read(" 0017\t"), Some(17));
        assert_eq!(read("99999999999999999999"), Some(u32::MAX));
        assert_eq!((size(b"0"), size(b"")), (Some(0), None));
        for nothing in ["", " ", "0", "-1", "+1", "1.5", "1e3", "0x10", "1,2", "ten"] {
            assert_eq!(read(nothing), None, "{nothing:?}");
        }
    }

    #[test]
    fn work_is_bounded_and_never_nothing() {
        let times = ServiceTimes::new(Settings {
            interval: Duration::from_secs(1),
            steps: 1,
            min_samples: 1,
            types: Vec::new(),
        });
        let request = |kind, cost| Attributes {
            cost,
            ..Attributes::of(TypeId(kind))
        };
        let by_type = CostConfig::Type { costs: vec![20, 0] };
        let header = String::new();
        let by_header = CostConfig::Header { header };
        let of = |by: &CostConfig, kind, cost| work(by, &request(kind, cost), &times);
        assert_eq!(of(&by_type, 0, Some(7)), 20);
        assert_eq!(of(&by_type, 1, None), 1);
        assert_eq!(of(&by_type, 9, None), 1, "an unknown type is the last");
        assert_eq!(of(&by_header, 0, Some(7)), 7);
        assert_eq!(of(&by_header, 0, None), 1);
        assert_eq!(of(&by_header, 0, Some(u32::MAX)), u64::from(u32::MAX));
        assert_eq!(
            of(&CostConfig::Measured, 0, Some(7)),
            0,
            "nothing was measured"
        );
    }
}
