//! Why a request is of the type that it is: the plain scan of all rules, with every step kept.
//!
//! This is what "first match wins" means, written so that it can be read. It is far too slow for the
//! data path; [`super::Classifier`] gives the same answer.

use super::condition::Conditions;
use super::{Classified, Condition, RequestView, without_query};
use crate::config::{ConfigError, Match, StageConfig};
use crate::strategy::TypeId;

/// The outcome of one match: `None` when it holds, else the first condition that does not.
pub type Outcome = Option<Condition>;

/// How a request was classified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trace {
    /// Outcomes of the stage's exclusions, up to the first that holds.
    pub excluded: Vec<Outcome>,
    /// Outcomes of the matches of each type, up to the first that holds; types behind the one that
    /// matched are left out.
    pub types: Vec<Vec<Outcome>>,
    /// The answer.
    pub class: Classified,
}

/// Tries all rules of `stage` in order.
///
/// # Errors
/// As [`super::Classifier::new`].
pub fn trace(stage: &StageConfig, request: &impl RequestView) -> Result<Trace, ConfigError> {
    let excluded = outcomes(&stage.excluded, "excluded", request)?;
    if excluded.last() == Some(&None) {
        return Ok(Trace {
            excluded,
            types: Vec::new(),
            class: Classified::Excluded,
        });
    }
    let mut types = Vec::new();
    for (i, kind) in stage.types.iter().enumerate() {
        let id = u16::try_from(i)
            .map(TypeId)
            .map_err(|_| ConfigError::new("types", format!("{} types", stage.types.len())))?;
        let tried = outcomes(&kind.matches, &format!("types[{i}].matches"), request)?;
        let hit = tried.last() == Some(&None) || i + 1 == stage.types.len();
        types.push(tried);
        if hit {
            return Ok(Trace {
                excluded,
                types,
                class: Classified::Type(id),
            });
        }
    }
    Err(ConfigError::new(
        "types",
        "0 types; at least the default type",
    ))
}

fn outcomes(
    rules: &[Match],
    at: &str,
    request: &impl RequestView,
) -> Result<Vec<Outcome>, ConfigError> {
    let path = request.path().map(without_query);
    let mut outcomes = Vec::new();
    for (i, rule) in rules.iter().enumerate() {
        let outcome = Conditions::new(rule, &format!("{at}[{i}]"))?.failing(path, request);
        outcomes.push(outcome);
        if outcome.is_none() {
            break;
        }
    }
    Ok(outcomes)
}
