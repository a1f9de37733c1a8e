//! Classes: names, and that the last takes the rest.

use headgate_core::config::{ClassConfig, MAX_CLASSES};

use super::Problems;
use super::matches::check_matches;
use super::names::{check_name, check_unique};
use crate::api::RequestClass;
use crate::validate::path::Path;

pub(super) fn classes(
    classes: &[RequestClass],
    at: &Path,
    problems: &mut Problems,
) -> Vec<ClassConfig> {
    if classes.len() > MAX_CLASSES {
        problems.add(
            at.clone(),
            format!("{} classes; at most {MAX_CLASSES}", classes.len()),
        );
    }
    let names: Vec<&str> = classes.iter().map(|c| c.name.as_str()).collect();
    check_unique(&names, at, "classes", problems);
    let mut checked = Vec::new();
    for (i, class) in classes.iter().enumerate() {
        let at = at.item(i);
        check_name(&class.name, &at.field("name"), problems);
        let last = i + 1 == classes.len();
        if last && !class.matches.is_empty() {
            let right =
                "the last class takes what no other matches; add one without matches or drop these";
            problems.add(
                at.field("matches"),
                format!("{} given; {right}", class.matches.len()),
            );
        }
        if !last && class.matches.is_empty() {
            let right = "only the last class has none; one or more, such as {headers: [{name: x-class, value: gold}]}";
            problems.add(at.field("matches"), format!("none; {right}"));
        }
        checked.push(ClassConfig {
            name: class.name.clone(),
            matches: check_matches(&class.matches, &at.field("matches"), problems),
        });
    }
    checked
}
