//! Rules for classes: their names, and that the last class takes all other requests.

use headgate_core::classify::Budget;
use headgate_core::config::{ClassConfig, MAX_CLASSES};

use super::matches::check_matches;
use super::names::NAMES;
use super::{At, By, Field, Table, VALUE};
use crate::RequestClass;
use crate::validate::rules::schema::{self as cel, Rule, SchemaField, some};

pub(super) static FIELDS: Table = fields! {
    "" => Field::List(MAX_CLASSES, "classes", By::Key("name")),
    "[].name" => Field::Text(&NAMES),
    "[].value" => VALUE,
};
const MATCHES_OF_LAST: &str =
    "the last class takes all other requests; add one without matches or drop these";
const NO_MATCHES: &str = "none; only the last class has none; one or more, such as {headers: \
                          [{name: x-class, value: gold}]}";

pub(super) fn classes(
    classes: &[RequestClass],
    at: &At<'_>,
    budget: &mut Budget,
) -> Vec<ClassConfig> {
    at.count(classes.len());
    at.unique("names of classes are unique");
    let mut checked = Vec::new();
    for (i, class) in classes.iter().enumerate() {
        let at = at.item(i);
        at.field("name").text(&class.name);
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
            matches: check_matches(&class.matches, &at.field("matches"), budget),
            value: at.field("value").real(),
        });
    }
    checked
}

pub(super) fn schema(classes: &mut SchemaField<'_>) {
    let last = "self[size(self) - 1]";
    let matches_of_last = format!("{last}.matches");
    classes
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
}
