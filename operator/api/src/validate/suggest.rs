//! "Did you mean" suggestions: the known name that is closest to the written name.

/// Returns the one of `names` that is closest to `written`, if the difference may be a typing
/// mistake: another case, a part of the name, or one edit per three characters.
pub(super) fn closest<'a>(
    written: &str,
    names: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    // The text is cut, because no known name is longer.
    let lower: String = written.to_lowercase().chars().take(64).collect();
    let distance_to = |name: &str| {
        let name = name.to_lowercase();
        // Only parts of at least four characters count, because shorter parts occur in too many
        // names.
        let is_part = lower.chars().count() >= 4 && name.contains(&lower);
        match is_part {
            true => 1,
            false => strsim::osa_distance(&lower, &name),
        }
    };
    names
        .into_iter()
        .map(|name| (distance_to(name), name))
        .min_by_key(|(distance, _)| *distance)
        .filter(|(distance, name)| *distance <= name.chars().count().max(3) / 3)
        .map(|(_, name)| name)
}

/// Returns advice for a name that is none of `names`.
pub fn instead_of<'a>(written: &str, names: impl IntoIterator<Item = &'a str> + Clone) -> String {
    match closest(written, names.clone()) {
        Some(name) => format!("did you mean {name:?}?"),
        None => format!(
            "one of {}",
            names.into_iter().collect::<Vec<_>>().join(", ")
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_recognised_and_other_words_are_not() {
        let names = ["targetRefs", "mode", "parallelism", "types"];
        assert_eq!(closest("targetrefs", names), Some("targetRefs"));
        assert_eq!(closest("targetRef", names), Some("targetRefs"));
        assert_eq!(closest("paralelism", names), Some("parallelism"));
        assert_eq!(closest("tpyes", names), Some("types"));
        assert_eq!(closest("refs", names), Some("targetRefs"));
        assert_eq!(closest("replicas", names), None);
        assert_eq!(
            instead_of("x", names),
            "one of targetRefs, mode, parallelism, types"
        );
    }
}
