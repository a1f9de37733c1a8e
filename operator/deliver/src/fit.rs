//! Selection of the policies that fit into a shared object.
//!
//! The growth of one policy must not remove another policy from the object. Above [`MAX_BYTES`], a
//! policy that has grown keeps its last version that fitted, which is still in the object on the
//! API server. A policy that is new to the object is left out. Of these cuts, the one that saves
//! the most bytes is made first. If they don't suffice, or no such object exists, other policies
//! are left out, the largest first. One policy always stays, whatever its size.
//!
//! At a shared Gateway, the first namespace could keep all of the object in this way. So all these
//! cuts are first made at the namespaces that take more than an equal part of the object. The
//! proxies' own namespace isn't one of them, because users of its routes must not remove its
//! policies.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use headgate_core::config::{Direction, FilterConfig, StageConfig};
use serde_json::{Value, json};

use crate::object::MAX_BYTES;
use crate::workload::{Cut, Cuts, Last, Workload};
use headgate_api::plan::{namespace_of, with_share_of};

/// The cuts that make a workload fit into its object.
#[derive(Debug)]
pub(crate) struct Fit<'a> {
    /// The cut of each policy that doesn't fit.
    pub(crate) cuts: Cuts<'a>,
    present: &'a FilterConfig,
}

impl<'a> Fit<'a> {
    /// Returns the cuts that make `workload` fit into its object. `bytes` is the object's size
    /// without cuts, `before` is the object on the API server, and `measure` returns the object's
    /// size after some cuts.
    pub(crate) fn find(
        workload: &'a Workload,
        before: Option<&Value>,
        mut bytes: usize,
        measure: impl Fn(&Cuts<'a>) -> usize,
    ) -> Self {
        let present: &FilterConfig = &workload.config;
        let before = before.and_then(configuration_in);
        let mut of_namespace: BTreeMap<&str, usize> = BTreeMap::new();
        for stage in &present.stages {
            *of_namespace.entry(namespace_of(&stage.policy)).or_default() += size(stage);
        }
        let part = MAX_BYTES / of_namespace.len().max(1);
        let is_greedy = |stage: &StageConfig| {
            let namespace = namespace_of(&stage.policy);
            namespace != workload.proxies.namespace && of_namespace[namespace] > part
        };
        let mut cuts = Vec::new();
        // Of two cuts of equal size, the policy with lower precedence is cut first, because the
        // sort is stable.
        for stage in present.stages.iter().rev() {
            let (policy, size) = (stage.policy.as_str(), size(stage));
            let stays = !is_greedy(stage);
            let last = before.as_ref().and_then(|b| last(b, stage, present));
            let Some(last) = last else {
                cuts.push(((stays, false), size, policy, Cut::Out));
                continue;
            };
            let rest = self::size(&last.stage).min(size);
            if rest < size {
                cuts.push((
                    (stays, false),
                    size - rest,
                    policy,
                    Cut::Last(Box::new(last)),
                ));
            }
            cuts.push(((stays, true), rest, policy, Cut::Out));
        }
        cuts.sort_by_key(|(rank, bytes, ..)| (*rank, Reverse(*bytes)));
        let mut cuts = cuts.into_iter();
        let mut left = present.stages.len();
        let mut fit = Self {
            cuts: Cuts::new(),
            present,
        };
        while bytes > MAX_BYTES {
            let mut excess = bytes - MAX_BYTES;
            let known = fit.cuts.len();
            while excess > 0
                && let Some((_, size, policy, cut)) = cuts.next()
            {
                if matches!(cut, Cut::Out) {
                    if left == 1 {
                        continue;
                    }
                    left -= 1;
                }
                excess = excess.saturating_sub(size);
                fit.cuts.insert(policy, cut);
            }
            if excess > 0 && fit.cuts.len() == known {
                break;
            }
            bytes = measure(&fit.cuts);
        }
        fit
    }

    /// Returns one line with the reason and the remedy for each policy that was cut.
    pub(crate) fn reasons(&self) -> impl Iterator<Item = (&str, String)> {
        self.present.stages.iter().rev().filter_map(|stage| {
            let bytes = size(stage);
            let why = match self.cuts.get(stage.policy.as_str())? {
                Cut::Last(last) => format!(
                    "generation {} of this policy is not in force, and generation {} still is, \
                     with the current slots and routes: the new one has {bytes} bytes, and all \
                     policies of these proxies may have at most {MAX_BYTES}",
                    stage.generation, last.stage.generation
                ),
                Cut::Out => format!(
                    "this policy is left out, so that the other policies of these proxies fit: it \
                     has {bytes} bytes, and all of them may have at most {MAX_BYTES}"
                ),
            };
            let what_to_do = "use fewer types and matches, or shorter ones";
            Some((stage.policy.as_str(), format!("{why}; {what_to_do}")))
        })
    }
}

fn size(stage: &StageConfig) -> usize {
    serde_json::to_vec(stage).map_or(0, |json| json.len())
}

/// Returns the version of the policy of `stage` that is in `before`, if it can replace the version
/// in `present`.
fn last(before: &FilterConfig, stage: &StageConfig, present: &FilterConfig) -> Option<Last> {
    let mut last = { before.stages.iter() }
        .find(|s| s.policy == stage.policy)?
        .clone();
    with_share_of(&mut last, stage);
    let calls = before.outbound.clone();
    let calls = calls.filter(|calls| calls.policy == stage.policy);
    let mut config = present.clone();
    let at = config
        .stages
        .iter_mut()
        .find(|s| s.policy == stage.policy)?;
    at.clone_from(&last);
    config.check().ok()?;
    Some(Last { stage: last, calls })
}

/// Returns the inbound configuration in a delivered object of any kind, without the stages that the
/// filter of this version refuses. An operator of another version may have written them.
pub(crate) fn configuration_in(object: &Value) -> Option<FilterConfig> {
    let content = ["spec", "data"].map(|field| &object[field]);
    content
        .into_iter()
        .find_map(|value| find(value, Direction::Inbound, read_stages))
}

/// Returns the configuration for this direction found at any depth of `value`. It may be an object,
/// or a text inside an object.
pub(super) fn configuration(value: &Value, direction: Direction) -> Option<FilterConfig> {
    find(value, direction, read)
}

/// Whether the filter of this version refuses the configuration in the `spec` of an object.
pub(crate) fn is_refused(spec: &Value) -> bool {
    let read = |direction| configuration(spec, direction);
    read(Direction::Inbound)
        .or_else(|| read(Direction::Outbound))
        .is_none()
}

fn find(
    value: &Value,
    direction: Direction,
    read: fn(&Value) -> Option<FilterConfig>,
) -> Option<FilterConfig> {
    let find = |value: &Value| find(value, direction, read);
    match value {
        Value::Object(fields) if fields.contains_key("stages") => {
            read(value).filter(|c| c.direction == direction)
        }
        Value::Object(fields) => fields.values().find_map(find),
        Value::Array(items) => items.iter().find_map(find),
        Value::String(text) if text.starts_with('{') => {
            let value: Value = serde_json::from_str(text).ok()?;
            find(&value)
        }
        _ => None,
    }
}

fn read(config: &Value) -> Option<FilterConfig> {
    FilterConfig::from_json(config.to_string().as_bytes()).ok()
}

/// Reads a configuration without the stages that can't be read.
fn read_stages(config: &Value) -> Option<FilterConfig> {
    if let Some(config) = read(config) {
        return Some(config);
    }
    let mut config = config.clone();
    let stages = config["stages"].as_array_mut()?;
    stages.retain(|stage| read(&json!({"stages": [stage]})).is_some());
    read(&config).or_else(|| {
        // The calls may belong to one of the other stages.
        config.as_object_mut()?.remove("outbound");
        read(&config)
    })
}
