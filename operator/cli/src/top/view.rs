//! The view: policies with their types and workflows, and proxies, computed from two responses of
//! each proxy. `--output json` prints it, and the tables show it.
//!
//! Proxies that enforce the same policy are shown as one: rates, slots and queues are summed, and
//! percentiles are those of all requests. Nothing here does I/O, waits or draws; equal responses
//! always give equal views.
//!
//! Rates are in 1/s over the window, times in ms, shares are ratios 0..=1. Values that a proxy's
//! version doesn't have are null rather than 0. `hurt` is the rate of requests that were refused,
//! or late beyond the share that objectives allow; rows with the most of it come first.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::iter::once;
use std::ops::Add;
use std::time::{Instant, SystemTime};

use headgate_controller::xds::module::Kind;
use headgate_controller::xds::timestamp::rfc3339;
use serde_json::{Map, Value, json};

use super::fleet::{Fleet, Proxy};
use super::histogram::Spread;
use super::sample::{PolicySample, Stats};

/// The counter of refusals, of a type or a workflow.
const REFUSED: &str = "rq_rejected_enforced";
/// The gauge of the slots that the value cut gives out.
const BUDGET: &str = "value_budget_permille";

/// The state of a proxy that hasn't answered yet.
const ASKED: &str = "Asked";
pub(super) const ANSWERS: &str = "Answers";
/// The state of a proxy that doesn't answer, and is queried again.
pub(super) const UNREACHABLE: &str = "Unreachable";

/// The change of some stats between two responses of a proxy.
#[derive(Clone, Copy)]
struct Change<'a> {
    /// The earlier stats; `None` if the earlier response lacked them.
    before: Option<&'a Stats>,
    after: &'a Stats,
    /// The time between the responses, s; 0 if only one exists.
    seconds: f64,
    /// The policy in the later response.
    policy: &'a PolicySample,
}

/// The stats of a policy, type or workflow, at all proxies.
#[derive(Default)]
struct Group<'a>(Vec<Change<'a>>);

/// A policy, at all proxies.
#[derive(Default)]
struct PolicyGroup<'a> {
    own: Group<'a>,
    types: BTreeMap<&'a str, Group<'a>>,
    workflows: BTreeMap<&'a str, Group<'a>>,
}

/// Policies by name.
type PolicyGroups<'a> = BTreeMap<&'a str, PolicyGroup<'a>>;

/// Returns the view of `fleet` at `now`; of one proxy if `only` names it.
pub(super) fn view(fleet: &Fleet, only: Option<&str>, now: Instant, time: SystemTime) -> Value {
    let proxies = fleet.proxies.iter();
    let wanted = |name: &String| only.is_none_or(|only| only == name);
    let chosen = proxies.clone().filter(|(name, _)| wanted(name));
    let (groups, seconds) = groups(chosen.map(|(_, proxy)| proxy));
    let policies = worst_first(&groups, policy);
    let proxies = proxies.map(|(name, proxy)| self::proxy(name, proxy, now));
    json!({
        "time": rfc3339(time),
        // Less than the window right after the start.
        "windowSeconds": tidy(seconds),
        "proxies": proxies.collect::<Vec<_>>(),
        "policies": policies,
    })
}

/// Returns the elements of a list.
pub(super) fn each(list: &Value) -> impl Iterator<Item = &Value> + Clone {
    list.as_array().into_iter().flatten()
}

/// Returns the rates of arrivals and of refusals of these policies. Requests that the rate limiter
/// of a workflow refuses are not in a policy's `traffic`.
pub(super) fn requests<'a>(policies: impl Iterator<Item = &'a Value> + Clone) -> [Option<f64>; 2] {
    let traffic = policies.clone().map(|policy| &policy["traffic"]);
    let workflows = policies.map(|policy| &policy["workflows"]);
    [
        total(traffic.clone(), "arrivalRate"),
        total(traffic.chain(workflows), "refusedRate"),
    ]
}

/// Returns the sum of a value of all rows; `None` if no row has it.
pub(super) fn total<'a>(rows: impl IntoIterator<Item = &'a Value>, name: &str) -> Option<f64> {
    sum(rows.into_iter().map(|row| row[name].as_f64())).map(tidy)
}

/// Returns the sum of the known parts; `None` if no part is known.
fn sum<T: Add<Output = T>>(parts: impl Iterator<Item = Option<T>>) -> Option<T> {
    parts.flatten().reduce(T::add)
}

/// Rounds to millionths: further digits are rounding errors of sums.
fn tidy(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}

/// Returns the policies in force, and the longest time between two responses, s.
fn groups<'a>(proxies: impl Iterator<Item = &'a Proxy>) -> (PolicyGroups<'a>, f64) {
    let mut groups = PolicyGroups::new();
    let mut longest = 0.0_f64;
    for span in proxies.filter_map(Proxy::span) {
        longest = longest.max(span.seconds);
        let policies = span.after.policies.iter();
        // The stats of a removed policy remain, with 0 slots.
        for (name, policy) in policies.filter(|(_, p)| p.own.value("slots") != Some(0)) {
            let before = span.before.and_then(|b| b.policies.get(name));
            let add = |group: &mut Group<'a>, before, after| {
                group.0.push(Change {
                    before,
                    after,
                    seconds: span.seconds,
                    policy,
                });
            };
            let group = groups.entry(name).or_default();
            add(&mut group.own, before.map(|b| &b.own), &policy.own);
            for (name, stats) in &policy.types {
                let before = before.and_then(|b| b.types.get(name));
                add(group.types.entry(name).or_default(), before, stats);
            }
            for (name, stats) in &policy.workflows {
                let before = before.and_then(|b| b.workflows.get(name));
                add(group.workflows.entry(name).or_default(), before, stats);
            }
        }
    }
    (groups, longest)
}

/// Returns a row for each group, by `hurt`.
fn worst_first<T>(groups: &BTreeMap<&str, T>, row: fn(&str, &T) -> Value) -> Vec<Value> {
    let rows = groups.iter().map(|(name, group)| row(name, group));
    let mut rows: Vec<Value> = rows.collect();
    let hurt = |row: &Value| row["hurt"].as_f64().unwrap_or(0.0);
    rows.sort_by(|a, b| hurt(b).total_cmp(&hurt(a)));
    rows
}

impl Change<'_> {
    /// Returns the rate of a counter. A counter that has fallen was restarted, for example when a
    /// policy was removed and added again.
    fn rate(&self, name: &str) -> Option<f64> {
        let after = self.after.value(name)?;
        let before = self.before.and_then(|b| b.value(name)).unwrap_or(0);
        let added = after.checked_sub(before).unwrap_or(after);
        (self.seconds > 0.0).then(|| added as f64 / self.seconds)
    }

    /// Returns a gauge of the value cut; `None` while `shedByValue` is off. All its gauges are then
    /// 0, including the budget, which is never 0 otherwise.
    fn of_cut(&self, name: &str) -> Option<u64> {
        let budget = self.policy.own.value(BUDGET).filter(|budget| *budget > 0);
        budget.and_then(|_| self.after.value(name))
    }

    /// Returns the place that sets a workflow's rate; `None` if no rate is in force.
    fn bottleneck(&self) -> Option<String> {
        let in_force = self.after.value("limited") != Some(0);
        let at = self.after.value("bottleneck").filter(|_| in_force)?;
        Some(match (at, self.policy.services.get(&at)) {
            (0, _) => "local".to_owned(),
            (_, Some(service)) => service.clone(),
            // Services beyond the limit have no names of their own.
            (1, None) => "_other".to_owned(),
            (_, None) => format!("service {at}"),
        })
    }
}

impl<'a> Group<'a> {
    fn rate(&self, name: &str) -> Option<f64> {
        sum(self.0.iter().map(|c| c.rate(name))).map(tidy)
    }

    fn gauge(&self, name: &str) -> Option<u64> {
        sum(self.0.iter().map(|c| c.after.value(name)))
    }

    /// Returns a gauge that is in thousandths.
    fn milli(&self, name: &str) -> Option<f64> {
        self.gauge(name).map(|thousandths| thousandths as f64 / 1e3)
    }

    fn max(&self, name: &str) -> Option<u64> {
        self.0.iter().filter_map(|c| c.after.value(name)).max()
    }

    /// Returns the percentiles, in ms, of times in µs.
    fn percentiles(&self, name: &str) -> Value {
        let mut all = Spread::default();
        for change in self.0.iter().filter(|c| c.seconds > 0.0) {
            let before = change.before.and_then(|b| b.histogram(name));
            if let Some(after) = change.after.histogram(name) {
                all.add(&after.since(before));
            }
        }
        let ms = |q| all.quantile(q).map(|us| tidy(us / 1e3));
        ms(0.5).map_or(Value::Null, |p50| json!({"p50": p50, "p99": ms(0.99)}))
    }

    /// Returns the rest of the names that begin with `prefix`.
    fn names(&self, prefix: &'a str) -> BTreeSet<&'a str> {
        let names = self.0.iter().flat_map(|c| c.after.values(prefix));
        names.map(|(name, _)| name).collect()
    }
}

fn proxy(name: &str, proxy: &Proxy, now: Instant) -> Value {
    let (policies, _) = groups(once(proxy));
    let types = || policies.values().flat_map(|policy| policy.types.values());
    let workflows = || {
        policies
            .values()
            .flat_map(|policy| policy.workflows.values())
    };
    let refused = |group: &Group<'_>| group.rate(REFUSED);
    let hurt = types().map(|of| hurt(of, &objectives(of)));
    let hurt = hurt.map(Some).chain(workflows().map(refused));
    let hurt = sum(hurt).unwrap_or(0.0);
    let gauge = |name| sum(policies.values().map(|policy| policy.own.gauge(name)));
    let latest = proxy.span().map(|span| span.after);
    let about = latest
        .map(|sample| sample.about.clone())
        .unwrap_or_default();
    let kind = |native| if native { Kind::Native } else { Kind::Wasm };
    // Unknown if no policy is in force.
    let filter = latest.filter(|sample| !sample.policies.is_empty());
    let state = match (&proxy.silent, latest) {
        (Some(_), _) => UNREACHABLE,
        (None, Some(_)) => ANSWERS,
        (None, None) => ASKED,
    };
    let silent = |since| tidy(now.saturating_duration_since(since).as_secs_f64());
    json!({
        "proxy": name,
        "state": state,
        "problem": proxy.silent.as_ref().map(|(_, why)| why),
        "silentSeconds": proxy.silent.as_ref().map(|(since, _)| silent(*since)),
        "node": about.node,
        "version": about.version,
        "filter": filter.map(|sample| kind(sample.is_native).name()),
        "uptimeSeconds": latest.and_then(|sample| Some(sample.uptime?.as_secs())),
        "restarts": proxy.restarts,
        "policies": policies.keys().collect::<Vec<_>>(),
        "arrivalRate": sum(types().map(|of| of.rate("rq_total"))).map(tidy),
        "refusedRate": sum(types().chain(workflows()).map(refused)).map(tidy),
        "slotsInUse": gauge("slots_in_use"),
        "slots": gauge("slots"),
        "hurt": tidy(hurt),
    })
}

fn policy(name: &str, group: &PolicyGroup<'_>) -> Value {
    let own = &group.own;
    let all_types = group.types.values().flat_map(|group| &group.0).copied();
    let mut types = worst_first(&group.types, kind);
    let value = value_cut(own, &mut types);
    let workflows = workflows(group);
    // Requests that the rate limiter refuses never reach a type.
    let parts = types.iter().chain(&workflows);
    json!({
        "policy": name,
        "proxies": own.0.len(),
        "slots": own.gauge("slots"),
        "slotsInUse": own.gauge("slots_in_use"),
        "queueLength": own.gauge("queue_length"),
        "queuedWorkMs": own.milli("queued_work_us"),
        "traffic": traffic(&Group(all_types.collect())),
        // Requests that passed without a decision, because a host call failed.
        "unmanagedRate": own.rate("rq_unmanaged"),
        // The number of proxies at which starvation avoidance needs more slots than exist.
        "floorsOverCapacity": own.gauge("floors_over_capacity"),
        "valueCut": value,
        "hurt": total(parts, "hurt").unwrap_or(0.0),
        "types": types,
        "workflows": workflows,
    })
}

/// Returns the rates of requests and of the decisions on them.
fn traffic(group: &Group<'_>) -> Value {
    const REASONS: &str = "rq_rejected.reason.";
    let refused = group.rate(REFUSED);
    let reason = |name: &str| {
        let rate = group
            .rate(&format!("{REASONS}{name}"))
            .filter(|rate| *rate > 0.0)?;
        Some((name.to_owned(), json!(rate)))
    };
    let reasons: Map<String, Value> = group
        .names(REASONS)
        .into_iter()
        .filter_map(reason)
        .collect();
    json!({
        "arrivalRate": group.rate("rq_total"),
        "acceptedRate": group.rate("rq_accepted"),
        "refusedRate": refused,
        "wouldRefuseRate": not_enforced(group.rate("rq_rejected"), refused),
        "completedRate": group.rate("rq_completed"),
        // Includes the rejections of a dry run.
        "refusedByReason": reasons,
    })
}

/// Returns the rate of rejections by a dry run, which refuses no request.
fn not_enforced(rejected: Option<f64>, refused: Option<f64>) -> Option<f64> {
    Some(tidy((rejected? - refused?).max(0.0)))
}

fn kind(name: &str, group: &Group<'_>) -> Value {
    let objectives = objectives(group);
    let mut row = traffic(group);
    row["hurt"] = tidy(hurt(group, &objectives)).into();
    row["type"] = name.into();
    row["queueWaitMs"] = group.percentiles("queue_wait_us");
    row["responseTimeMs"] = group.percentiles("response_time_us");
    row["objectives"] = objectives.into();
    row["valueCut"] = value(group).into();
    row
}

/// Returns the objectives of a type, with their attainments.
fn objectives(group: &Group<'_>) -> Vec<Value> {
    let completed = group.rate("rq_completed").unwrap_or(0.0);
    let names = group.names("slo_quantile_ppm.objective.").into_iter();
    names
        .filter_map(|name| objective(name, group, completed))
        .collect()
}

/// Returns the rate of a type's requests that were refused, or late beyond the share that
/// objectives allow.
fn hurt(group: &Group<'_>, objectives: &[Value]) -> f64 {
    let margins = objectives.iter().filter_map(margin);
    let late = margins.fold(0.0, |worst, m| f64::max(worst, -m));
    let rate = |name| group.rate(name).unwrap_or(0.0);
    rate(REFUSED) + late * rate("rq_completed")
}

/// Returns a type's place in the value cut; `None` where nothing is shed by value.
fn value(group: &Group<'_>) -> Option<Value> {
    const SLOTS: &str = "value_slots_asked_milli";
    let asked = sum(group.0.iter().map(|change| change.of_cut(SLOTS)))? as f64 / 1e3;
    // The mean over the proxies with at least this value, weighted by the demanded slots.
    let mean = |name: &str, least: u64| {
        let weighted = group.0.iter().map(|change| {
            // Nearly 0 without requests, so that a mean exists even if no proxy has requests.
            let weight = change.of_cut(SLOTS)? as f64 + 1e-9;
            let value = change.of_cut(name).filter(|value| *value >= least)?;
            Some((value as f64 / 1e3 * weight, weight))
        });
        let (sum, weight) = { weighted.flatten() }.reduce(|a, b| (a.0 + b.0, a.1 + b.1))?;
        Some(tidy(sum / weight))
    };
    Some(json!({
        // 0 if no proxy has ranked the type yet.
        "perSlotSecond": mean("value_per_slot_second_milli", 1).unwrap_or(0.0),
        "slotsAsked": asked,
        "admitted": mean("value_admitted_permille", 0),
    }))
}

/// Returns the slots that all types demand, and those that the cut gives out; `None` if the value
/// cut is off. Adds to each type the slots that types of a higher rank demand.
fn value_cut(own: &Group<'_>, types: &mut [Value]) -> Option<Value> {
    let given = |change: &Change<'_>| {
        let parts = change.of_cut(BUDGET)? as f64 / 1e3;
        Some(parts * change.after.value("slots")? as f64)
    };
    let given = sum(own.0.iter().map(given))?;
    let mut ranked: Vec<&mut Value> = { types.iter_mut() }
        .map(|row| &mut row["valueCut"])
        .filter(|value| !value.is_null())
        .collect();
    let rank = |value: &Value| value["perSlotSecond"].as_f64().unwrap_or(0.0);
    ranked.sort_by(|a, b| rank(b).total_cmp(&rank(a)));
    let mut before = 0.0;
    for value in &mut ranked {
        value["slotsBefore"] = tidy(before).into();
        before += value["slotsAsked"].as_f64().unwrap_or(0.0);
    }
    let all = json!({"slotsAsked": tidy(before), "slotsGiven": tidy(given)});
    for value in ranked {
        value["ofAll"] = all.clone();
    }
    Some(all)
}

/// Returns an objective and its attainment; `None` if it was removed, and so its gauges are 0.
fn objective(name: &str, group: &Group<'_>, completed: f64) -> Option<Value> {
    let of = |family: &str| format!("{family}.objective.{name}");
    let promised = |family| group.max(&of(family)).filter(|promised| *promised > 0);
    let in_time = group.rate(&of("rq_slo_met")).filter(|_| completed > 0.0);
    Some(json!({
        "objective": name,
        "target": promised("slo_quantile_ppm")? as f64 / 1e6,
        "responseTimeMs": promised("slo_response_time_us").map(|us| us as f64 / 1e3),
        // Counters are read one after the other: a response may be in one and not yet in the other.
        "attainment": in_time.map(|rate| tidy((rate / completed).min(1.0))),
    }))
}

/// Returns the attainment of an objective minus its target, a ratio of responses.
pub(super) fn margin(objective: &Value) -> Option<f64> {
    Some(objective["attainment"].as_f64()? - objective["target"].as_f64()?)
}

/// Returns the workflows of a policy; `None` if they aren't configured.
fn workflows(group: &PolicyGroup<'_>) -> Option<Value> {
    let own = &group.own;
    // The number at the process with the most workflows.
    let known = own.max("workflows");
    let rows = worst_first(&group.workflows, workflow);
    (known.is_some() || !rows.is_empty()).then(|| {
        json!({
            "known": known,
            "foldedRate": own.rate("workflows_folded"),
            "ratesExpiredRate": own.rate("rates_expired"),
            "ratesRefusedRate": own.rate("rates_refused"),
            "demandRate": total(&rows, "demandRate"),
            "offeredRate": total(&rows, "offeredRate"),
            "admittedRate": total(&rows, "admittedRate"),
            "refusedRate": total(&rows, "refusedRate"),
            "queueLength": sum(rows.iter().map(|w| w["queueLength"].as_u64())),
            "hurt": total(&rows, "hurt"),
            "rows": rows,
        })
    })
}

fn workflow(name: &str, group: &Group<'_>) -> Value {
    let everywhere = group.0.iter().all(|c| c.after.value("limited") != Some(0));
    // `None` if any process has no limit.
    let limit = |name| group.milli(name).filter(|_| everywhere);
    let (limited, late) = (group.rate("rq_rate_limited"), group.rate("rq_deadline"));
    let refused = group.rate(REFUSED);
    let rejected = limited.zip(late).map(|(limited, late)| limited + late);
    json!({
        "workflow": name,
        // λ as the processes measure it, refused requests included.
        "demandRate": group.milli("demand_mhz"),
        "offeredRate": group.rate("rq_offered"),
        // σ, the rate in force, over all processes.
        "limitRate": limit("rate_mhz"),
        // The rate that the processes themselves can serve (Wisp, Algorithm 1, line 1).
        "localLimitRate": limit("local_rate_mhz"),
        "admittedRate": group.rate("rq_admitted"),
        // Both also count in a dry run.
        "rateLimitedRate": limited,
        "deadlineRate": late,
        "refusedRate": refused,
        "wouldRefuseRate": not_enforced(rejected, refused),
        "completedRate": group.rate("rq_completed"),
        "callsRate": group.rate("calls"),
        "queueLength": group.gauge("queue_length"),
        "waitMs": group.percentiles("limiter_wait_us"),
        "completionMs": completion(group),
        "bottlenecks": bottlenecks(group),
        "hurt": refused.unwrap_or(0.0),
    })
}

/// Returns the mean of the processes' completion times by their completed requests, ms.
fn completion(group: &Group<'_>) -> Option<f64> {
    let known = group.0.iter().filter_map(|c| {
        let us = c.after.value("completion_us").filter(|us| *us > 0)?;
        // Nearly 0 without completed requests, so that a mean exists even if no process completed
        // any.
        Some((us as f64, c.rate("rq_completed").unwrap_or(0.0) + 1e-9))
    });
    let (sum, weight) = known.fold((0.0, 0.0), |(sum, all), (us, n)| (sum + us * n, all + n));
    (weight > 0.0).then(|| tidy(sum / weight / 1e3))
}

/// Returns the places that set a workflow's rate, with the numbers of proxies, the most frequent
/// first.
fn bottlenecks(group: &Group<'_>) -> Vec<Value> {
    let mut places: BTreeMap<String, usize> = BTreeMap::new();
    for place in group.0.iter().filter_map(Change::bottleneck) {
        *places.entry(place).or_default() += 1;
    }
    let mut places: Vec<_> = places.into_iter().collect();
    places.sort_by_key(|(_, proxies)| Reverse(*proxies));
    let row = |(place, proxies)| json!({"place": place, "proxies": proxies});
    places.into_iter().map(row).collect()
}

#[cfg(test)]
mod tests;
