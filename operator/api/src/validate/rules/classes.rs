//! Rules for classes: their names, and that the last class takes all other requests.

use headgate_core::config::{ClassConfig, MAX_CLASSES};

use super::matches::{self, check_matches};
use super::names::{check_name, check_unique, name_schema};
use super::{At, VALUE};
use crate::RequestClass;
use crate::validate::schema::{self as cel, Place, Rule, some};

const MATCHES_OF_LAST: &str =
    "the last class takes what no other matches; add one without matches or drop these";
const NO_MATCHES: &str = "none; only the last class has none; one or more, such as {headers: \
                          [{name: x-class, value: gold}]}";

pub(super) fn classes(classes: &[RequestClass], at: &At<'_>) -> Vec<ClassConfig> {
    at.at_most(MAX_CLASSES, classes.len(), "classes");
    let names: Vec<&str> = classes.iter().map(|c| c.name.as_str()).collect();
    check_unique(&names, at, "classes");
    let mut checked = Vec::new();
    for (i, class) in classes.iter().enumerate() {
        let at = at.item(i);
        check_name(&class.name, &at.field("name"));
        let last = i + 1 == classes.len();
        if last && !class.matches.is_empty() {
            at.field("matches")
                .add(format!("{} given; {MATCHES_OF_LAST}", class.matches.len()));
        }
        if !last && class.matches.is_empty() {
            at.field("matches").add(NO_MATCHES);
        }
        checked.push(ClassConfig {
            name: class.name.clone(),
            matches: check_matches(&class.matches, &at.field("matches")),
            value: at.field("value").real(class.value, &VALUE),
        });
    }
    checked
}

pub(super) fn schema(spec: &mut Place<'_>) {
    let last = "self[size(self) - 1]";
    let matches_of_last = format!("{last}.matches");
    spec.at("classes")
        .max_items(MAX_CLASSES)
        .by_name()
        .rule(
            Rule::value(
                format!("size(self) == 0 || !{}", some(&matches_of_last)),
                &cel::format("%s given", &[&format!("string(size({matches_of_last}))")]),
                MATCHES_OF_LAST,
            )
            .forbidden(),
        )
        .rule(
            Rule::text(
                format!(
                    "self.all(c, c.name == {last}.name || {})",
                    some("c.matches")
                ),
                NO_MATCHES,
            )
            .required(),
        );
    name_schema(&mut spec.at("classes[].name"));
    spec.at("classes[].value").real(&VALUE);
    spec.at("classes[].matches").atomic();
    matches::schema(&mut spec.at("classes[].matches"));
}
