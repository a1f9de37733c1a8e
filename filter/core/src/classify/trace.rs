//! The trace of a request's classification: the plain scan of all rules, with the outcome of every
//! step.
//!
//! The scan defines "first match wins" in the simplest form. It is far too slow for the data path,
//! where [`super::Classifier`] gives the same result.

use headgate_strategies::request::ClassId;

use super::condition::Conditions;
use super::{Budget, Classified, Condition, RequestView, without_query};
use crate::config::{ConfigError, Match, StageConfig};

/// The outcome of one match: `None` if the match holds, otherwise the first condition that does not
/// hold.
pub type Outcome = Option<Condition>;

/// The steps of a request's classification.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trace {
    /// The outcomes of the stage's exclusions, up to the first exclusion that holds.
    pub excluded: Vec<Outcome>,
    /// The outcomes of the matches of each type, up to the first match that holds. Types after the
    /// matching type are left out.
    pub types: Vec<Vec<Outcome>>,
    /// The outcomes of the matches of each class, up to the first match that holds. Empty if the
    /// stage has no classes.
    pub classes: Vec<Vec<Outcome>>,
    /// The resulting type.
    pub classified: Classified,
    /// The resulting class.
    pub class: ClassId,
}

/// Tries all rules of `stage` in order.
///
/// # Errors
/// The errors of [`super::Classifier::new`].
pub fn trace(stage: &StageConfig, request: &impl RequestView) -> Result<Trace, ConfigError> {
    let mut budget = Budget::of_running();
    let excluded = outcomes(&stage.excluded, "excluded", &mut budget, request)?;
    if excluded.last() == Some(&None) {
        return Ok(Trace {
            excluded,
            types: Vec::new(),
            classes: Vec::new(),
            classified: Classified::Excluded,
            class: super::class_id(stage.classes.len().saturating_sub(1)),
        });
    }
    let lists = stage.types.iter().map(|t| t.matches.as_slice());
    let (types, kind) = first(lists, "types", &mut budget, request)?;
    let lists = stage.classes.iter().map(|c| c.matches.as_slice());
    let (classes, class) = first(lists, "classes", &mut budget, request)?;
    Ok(Trace {
        excluded,
        types,
        classes,
        classified: Classified::Type(super::type_id(kind)),
        class: super::class_id(class),
    })
}

/// Returns the outcomes of each list of matches, up to the first list with a match that holds, and
/// the index of that list. If there is none, the index is that of the last list.
fn first<'s>(
    lists: impl ExactSizeIterator<Item = &'s [Match]>,
    name: &str,
    budget: &mut Budget,
    request: &impl RequestView,
) -> Result<(Vec<Vec<Outcome>>, usize), ConfigError> {
    let last = lists.len().saturating_sub(1);
    let mut all = Vec::new();
    for (i, rules) in lists.enumerate() {
        let tried = outcomes(rules, &format!("{name}[{i}].matches"), budget, request)?;
        let holds = tried.last() == Some(&None);
        all.push(tried);
        if holds {
            return Ok((all, i));
        }
    }
    Ok((all, last))
}

fn outcomes(
    rules: &[Match],
    at: &str,
    budget: &mut Budget,
    request: &impl RequestView,
) -> Result<Vec<Outcome>, ConfigError> {
    let path = request.path().map(without_query);
    let mut outcomes = Vec::new();
    for (i, rule) in rules.iter().enumerate() {
        let rule = Conditions::new(rule, &format!("{at}[{i}]"), budget)?;
        let outcome = rule.failing(path, request);
        outcomes.push(outcome);
        if outcome.is_none() {
            break;
        }
    }
    Ok(outcomes)
}
