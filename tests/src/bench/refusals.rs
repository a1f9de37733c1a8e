//! Refusals by reason, as text.

use std::collections::BTreeMap;

/// Returns the refusals of types as text, in the order of the types, such as `chat slo_p90 70,
/// value 48; rag value 9`. A type without refusals is left out.
pub(super) fn words<'a>(
    types: impl Iterator<Item = (&'a str, &'a BTreeMap<String, u64>)>,
) -> String {
    let of_type = |(name, reasons): (&str, &BTreeMap<String, u64>)| {
        let reasons = reasons
            .iter()
            .map(|(reason, count)| format!("{reason} {count}"));
        let reasons: Vec<String> = reasons.collect();
        (!reasons.is_empty()).then(|| format!("{name} {}", reasons.join(", ")))
    };
    types.filter_map(of_type).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_without_refusals_are_left_out() {
        let reasons = |all: &[(&str, u64)]| {
            let owned = all
                .iter()
                .map(|&(reason, count)| (reason.to_owned(), count));
            owned.collect::<BTreeMap<String, u64>>()
        };
        let types = [
            ("chat", reasons(&[("value", 48), ("slo_p90", 70)])),
            ("rag", reasons(&[])),
            ("batch", reasons(&[("value", 9)])),
        ];
        let all = types.iter().map(|(name, reasons)| (*name, reasons));
        assert_eq!(words(all), "chat slo_p90 70, value 48; batch value 9");
        assert_eq!(
            words(types[1..2].iter().map(|(name, all)| (*name, all))),
            ""
        );
    }
}
