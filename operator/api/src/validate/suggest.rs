//! Suggestions "did you mean": the known name closest to the written one.

/// Returns the one of `names` closest to `written`, if a typing mistake can explain the difference:
/// another case, a part of the name, or one edit in three characters.
pub(super) fn closest<'a>(
    written: &str,
    names: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let lower = written.to_lowercase();
    let distance_to = |name: &str| {
        let name = name.to_lowercase();
        // Four characters: shorter parts are in too many names.
        let is_part = lower.chars().count() >= 4 && name.contains(&lower);
        if is_part { 1 } else { distance(&lower, &name) }
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

/// Returns the number of edits from `a` to `b`: insertions, deletions, substitutions, and swaps of
/// neighbours (optimal string alignment).
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().take(64).collect(), b.chars().collect());
    let width = b.len() + 1;
    let mut table = vec![0; (a.len() + 1) * width];
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            let at = |i: usize, j: usize| i * width + j;
            table[at(i, j)] = if i == 0 || j == 0 {
                i + j
            } else {
                let changed = usize::from(a[i - 1] != b[j - 1]);
                let mut best = (table[at(i - 1, j)] + 1)
                    .min(table[at(i, j - 1)] + 1)
                    .min(table[at(i - 1, j - 1)] + changed);
                if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                    best = best.min(table[at(i - 2, j - 2)] + 1);
                }
                best
            };
        }
    }
    table[a.len() * width + b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        for (a, b, expected) in [
            ("", "", 0),
            ("a", "", 1),
            ("abc", "abc", 0),
            ("abc", "acb", 1),
            ("kitten", "sitting", 3),
        ] {
            assert_eq!(distance(a, b), expected, "{a} {b}");
            assert_eq!(distance(b, a), expected, "{b} {a}");
        }
    }

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
