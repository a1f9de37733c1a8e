//! The view: policies with their types and workflows, and proxies, computed from two responses of
//! each proxy. `--output json` prints it, and the tables show it.
//!
//! The proxies that enforce a policy are shown together: rates, slots and queues are summed, and
//! percentiles are over all requests. No function of this module does I/O, waits or draws. Equal
//! responses always give equal views.
//!
//! Rates are in 1/s over the window, times in ms, shares are ratios 0..=1. Values that a proxy's
//! version doesn't have are null rather than 0. `hurt` is the rate of requests that were refused,
//! or late beyond the share that objectives allow. Rows with the largest `hurt` come first.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Add;
use std::time::{Instant, SystemTime};

use headgate_xds::module::Kind;
use headgate_xds::timestamp::rfc3339;
use serde_json::{Value, json};

use crate::fleet::{Fleet, Proxy, Span};
use crate::histogram::Histogram;
use crate::sample::{Parts, SERVICE, Stats, TYPE, WORKFLOW, of, whole};

/// The counter of refusals, of a type or a workflow.
const REFUSED: &str = "rq_rejected_enforced";
/// The gauge of the slots that the value cut allots.
const BUDGET: &str = "value_budget_permille";

/// The state of a proxy that hasn't answered yet.
const ASKED: &str = "Asked";
pub(crate) const ANSWERS: &str = "Answers";
/// The state of a proxy that doesn't answer. Queries continue.
pub(crate) const UNREACHABLE: &str = "Unreachable";

/// The change of some stats between two responses of a proxy.
#[derive(Clone, Copy)]
struct Change<'a> {
    /// The earlier stats, or `None` if the earlier response lacked them.
    before: Option<&'a Stats>,
    after: &'a Stats,
    /// The time between the responses, s. It is 0 if only one response exists.
    seconds: f64,
    /// The policy in the later response.
    policy: &'a Parts<Stats>,
}

/// The changes of the stats of a policy or of one of its parts, such as a type or a workflow, with
/// one element for each proxy in the view.
#[derive(Default)]
struct Group<'a>(Vec<Change<'a>>);

/// Returns the view of `fleet` at `now`, or of one proxy if `only` names it.
fn view(fleet: &Fleet, only: Option<&str>, now: Instant, time: SystemTime) -> Value {
    let wanted = |name: &String| only.is_none_or(|only| only == name);
    let chosen = fleet.proxies.iter().filter(|(name, _)| wanted(name));
    let spans: Vec<Span<'_>> = chosen.filter_map(|(_, proxy)| proxy.span()).collect();
    let proxies = fleet.proxies.iter();
    let proxies = proxies.map(|(name, proxy)| self::proxy(name, proxy, now));
    json!({
        "time": rfc3339(time),
        // The time is shorter than the window just after the start.
        "windowSeconds": tidy(spans.iter().map(|span| span.seconds).fold(0.0, f64::max)),
        "proxies": proxies.collect::<Vec<_>>(),
        "policies": policies(&spans),
    })
}

/// Returns the view of `fleet` at this time.
pub(crate) fn current(fleet: &Fleet, only: Option<&str>) -> Value {
    view(fleet, only, Instant::now(), SystemTime::now())
}

/// Returns the elements of a list.
pub(crate) fn each(list: &Value) -> impl Iterator<Item = &Value> + Clone {
    list.as_array().into_iter().flatten()
}

/// Returns a text value of a row. The text is empty if the value is unknown.
pub(crate) fn field<'a>(row: &'a Value, name: &str) -> &'a str {
    row[name].as_str().unwrap_or_default()
}

/// Returns the request values of a row. A policy has them in a separate field.
pub(crate) fn traffic_of(row: &Value) -> &Value {
    row.get("traffic").unwrap_or(row)
}

/// Returns the arrival rate of a type, a workflow or a proxy.
pub(crate) fn arrivals(traffic: &Value) -> Option<f64> {
    let rate = traffic.get("arrivalRate").or(traffic.get("offeredRate"));
    rate?.as_f64()
}

/// Returns the share of requests that were refused, ratio 0..=1.
pub(crate) fn refused_share(traffic: &Value) -> Option<f64> {
    let all = arrivals(traffic).filter(|all| *all > 0.0)?;
    Some((traffic["refusedRate"].as_f64()? / all).min(1.0))
}

/// Returns the arrival rate and the refusal rate of these policies. A policy's `traffic` lacks the
/// requests that the rate limiter of a workflow refuses, so they are added.
pub(crate) fn requests<'a>(policies: impl Iterator<Item = &'a Value> + Clone) -> [Option<f64>; 2] {
    let traffic = policies.clone().map(|policy| &policy["traffic"]);
    let workflows = policies.map(|policy| &policy["workflows"]);
    [
        total(traffic.clone(), "arrivalRate"),
        total(traffic.chain(workflows), "refusedRate"),
    ]
}

/// Returns the sum of the value `name` over all rows, or `None` if no row has this value.
pub(crate) fn total<'a>(rows: impl IntoIterator<Item = &'a Value>, name: &str) -> Option<f64> {
    sum(rows.into_iter().map(|row| row[name].as_f64())).map(tidy)
}

/// Returns the sum of the known parts, or `None` if no part is known.
fn sum<T: Add<Output = T>>(parts: impl Iterator<Item = Option<T>>) -> Option<T> {
    parts.flatten().reduce(T::add)
}

/// Rounds to millionths, because further digits are rounding errors of sums.
fn tidy(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}

/// Returns the weighted mean of pairs of a value and its weight, or `None` without pairs.
fn mean(weighted: impl Iterator<Item = (f64, f64)>) -> Option<f64> {
    // Each value gets a tiny additional weight, so that a mean exists even if no proxy has
    // requests.
    let products = weighted.map(|(value, weight)| (value * (weight + 1e-9), weight + 1e-9));
    let (sum, weight) = products.reduce(|a, b| (a.0 + b.0, a.1 + b.1))?;
    Some(tidy(sum / weight))
}

/// Returns the policies in force at the proxies that sent these responses.
fn policies(spans: &[Span<'_>]) -> Vec<Value> {
    let mut groups: BTreeMap<&str, Parts<Group<'_>>> = BTreeMap::new();
    for span in spans {
        for (name, policy) in span.after.in_force() {
            let before = span.before.policies.get(name);
            let groups = groups.entry(name).or_default();
            for (kind, parts) in policy {
                let groups = groups.entry(kind.clone()).or_default();
                for (part, after) in parts {
                    groups.entry(part.clone()).or_default().0.push(Change {
                        before: before.and_then(|b| b.get(kind)?.get(part)),
                        after,
                        seconds: span.seconds,
                        policy,
                    });
                }
            }
        }
    }
    worst_first(groups.iter().map(|(name, parts)| policy(name, parts)))
}

fn worst_first(rows: impl Iterator<Item = Value>) -> Vec<Value> {
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

    /// Returns the bottleneck that determines a workflow's rate, or `None` if no rate is in force.
    fn bottleneck(&self) -> Option<String> {
        let in_force = self.after.value("limited") != Some(0);
        let at = self.after.value("bottleneck").filter(|_| in_force)?;
        let mut services = of(self.policy, SERVICE);
        let service = services.find(|(_, stats)| stats.value("index") == Some(at));
        Some(match (at, service) {
            (0, _) => "local".to_owned(),
            (_, Some((service, _))) => service.to_owned(),
            // Services beyond the limit have no stats of their own.
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

    /// Returns the value of a gauge in thousandths, divided by 1,000.
    fn milli(&self, name: &str) -> Option<f64> {
        self.gauge(name).map(|thousandths| thousandths as f64 / 1e3)
    }

    fn max(&self, name: &str) -> Option<u64> {
        self.0.iter().filter_map(|c| c.after.value(name)).max()
    }

    /// Returns the percentiles, in ms, of a histogram in µs.
    fn percentiles(&self, name: &str) -> Value {
        let mut all = Histogram::default();
        for change in self.0.iter().filter(|c| c.seconds > 0.0) {
            if let Some(after) = change.after.histogram(name) {
                let before = change.before.and_then(|b| b.histogram(name));
                all.add(&after.since(before.unwrap_or(&Histogram::default())));
            }
        }
        let ms = |q| all.quantile(q).map(|us| tidy(us / 1e3));
        ms(0.5).map_or(Value::Null, |p50| json!({"p50": p50, "p99": ms(0.99)}))
    }

    /// Returns the rest of each name that begins with `prefix`.
    fn names(&self, prefix: &'a str) -> BTreeSet<&'a str> {
        let names = self.0.iter().flat_map(|c| c.after.values(prefix));
        names.map(|(name, _)| name).collect()
    }
}

fn proxy(name: &str, proxy: &Proxy, now: Instant) -> Value {
    let span = proxy.span();
    let latest = span.as_ref().map(|span| span.after);
    let policies = policies(span.as_slice());
    let names: BTreeSet<_> = policies.iter().map(|p| p["policy"].as_str()).collect();
    let [arrivals, refused] = requests(policies.iter());
    let gauge = |name| sum(policies.iter().map(|policy| policy[name].as_u64()));
    // The filter is unknown if no policy is in force.
    let filter = latest.filter(|sample| !sample.policies.is_empty());
    let filter = filter.map(|sample| match sample.is_native {
        true => Kind::Native.name(),
        false => Kind::Wasm.name(),
    });
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
        "node": latest.map_or("", |sample| &sample.about.node),
        "version": latest.map_or("", |sample| &sample.about.version),
        "filter": filter,
        "uptimeSeconds": latest.and_then(|sample| Some(sample.uptime?.as_secs())),
        "restarts": proxy.restarts,
        "policies": names,
        "arrivalRate": arrivals,
        "refusedRate": refused,
        "slotsInUse": gauge("slotsInUse"),
        "slots": gauge("slots"),
        "hurt": total(&policies, "hurt").unwrap_or(0.0),
    })
}

fn policy(name: &str, parts: &Parts<Group<'_>>) -> Value {
    let none = Group::default();
    let own = whole(parts).unwrap_or(&none);
    let all_types = of(parts, TYPE).flat_map(|(_, group)| &group.0).copied();
    let traffic = traffic(&Group(all_types.collect()));
    let given = slots_given(own);
    let types = of(parts, TYPE).map(|(name, group)| kind(name, group, given.is_some()));
    let mut types = worst_first(types);
    let value = given.map(|given| value_cut(given, &mut types));
    let workflows = workflows(own, parts);
    // Requests that the rate limiter refuses never reach a type.
    let parts = types.iter().chain(&workflows);
    json!({
        "policy": name,
        "proxies": own.0.len(),
        "slots": own.gauge("slots"),
        "slotsInUse": own.gauge("slots_in_use"),
        "queueLength": own.gauge("queue_length"),
        "queuedWorkMs": own.milli("queued_work_us"),
        "traffic": traffic,
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
    let reason = |name| {
        let rate = group.rate(&format!("{REASONS}{name}"));
        Some((name, rate.filter(|rate| *rate > 0.0)?))
    };
    let reasons = group.names(REASONS).into_iter().filter_map(reason);
    let refused = group.rate(REFUSED);
    json!({
        "arrivalRate": group.rate("rq_total"),
        "acceptedRate": group.rate("rq_accepted"),
        "refusedRate": refused,
        "wouldRefuseRate": not_enforced(group.rate("rq_rejected"), refused),
        "completedRate": group.rate("rq_completed"),
        // The rates include rejections in a dry run, which aren't enforced.
        "refusedByReason": reasons.collect::<BTreeMap<_, _>>(),
    })
}

/// Returns the rate of rejections that aren't enforced. A dry run enforces none.
fn not_enforced(rejected: Option<f64>, refused: Option<f64>) -> Option<f64> {
    Some(tidy((rejected? - refused?).max(0.0)))
}

fn kind(name: &str, group: &Group<'_>, sheds_by_value: bool) -> Value {
    let completed = group.rate("rq_completed").unwrap_or(0.0);
    let names = group.names("slo_quantile_ppm.objective.").into_iter();
    let objectives = names.filter_map(|name| objective(name, group, completed));
    let objectives: Vec<Value> = objectives.collect();
    let margins = objectives.iter().filter_map(margin);
    let late = margins.fold(0.0, |worst, margin| f64::max(worst, -margin));
    let mut row = traffic(group);
    row["hurt"] = tidy(group.rate(REFUSED).unwrap_or(0.0) + late * completed).into();
    row["type"] = name.into();
    row["queueWaitMs"] = group.percentiles("queue_wait_us");
    row["responseTimeMs"] = group.percentiles("response_time_us");
    row["objectives"] = objectives.into();
    row["valueCut"] = value(group).filter(|_| sheds_by_value).into();
    row
}

/// Returns a type's place in the value cut. The gauges of a proxy that doesn't shed by value are 0.
fn value(group: &Group<'_>) -> Option<Value> {
    const SLOTS: &str = "value_slots_asked_milli";
    // The mean is weighted by the demanded slots.
    let weighted = |name: &'static str| {
        let changes = group.0.iter().map(|change| change.after);
        changes.filter_map(|s| Some((s.value(name)? as f64 / 1e3, s.value(SLOTS)? as f64)))
    };
    let ranks = weighted("value_per_slot_second_milli").filter(|(rank, _)| *rank > 0.0);
    Some(json!({
        // The value is 0 until a proxy has ranked the type.
        "perSlotSecond": mean(ranks).unwrap_or(0.0),
        "slotsAsked": group.milli(SLOTS)?,
        "admitted": mean(weighted("value_admitted_permille")),
    }))
}

/// Returns the slots that the value cut allots, or `None` if the cut is off. The gauge of the
/// budget is 0 in this case.
fn slots_given(own: &Group<'_>) -> Option<f64> {
    let given = |s: &Stats| Some(s.value(BUDGET)? as f64 / 1e3 * s.value("slots")? as f64);
    sum(own.0.iter().map(|c| given(c.after))).filter(|given| *given > 0.0)
}

/// Returns the slots that all types demand and the slots that are allotted. Adds to each type the
/// number of slots that higher-ranked types demand.
fn value_cut(given: f64, types: &mut [Value]) -> Value {
    let cuts = types.iter_mut().map(|row| &mut row["valueCut"]);
    let mut ranked: Vec<&mut Value> = cuts.filter(|value| !value.is_null()).collect();
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
    all
}

/// Returns an objective and its attainment, or `None` if the objective was removed. The gauges of a
/// removed objective are 0.
fn objective(name: &str, group: &Group<'_>, completed: f64) -> Option<Value> {
    let of = |family: &str| format!("{family}.objective.{name}");
    let promised = |family| group.max(&of(family)).filter(|promised| *promised > 0);
    let in_time = group.rate(&of("rq_slo_met")).filter(|_| completed > 0.0);
    Some(json!({
        "objective": name,
        "target": promised("slo_quantile_ppm")? as f64 / 1e6,
        "responseTimeMs": promised("slo_response_time_us").map(|us| us as f64 / 1e3),
        // Envoy reads counters one after the other, so a response may be in one counter and not yet
        // in the other.
        "attainment": in_time.map(|rate| tidy((rate / completed).min(1.0))),
    }))
}

/// Returns the attainment of an objective minus its target, a ratio of responses.
pub(crate) fn margin(objective: &Value) -> Option<f64> {
    Some(objective["attainment"].as_f64()? - objective["target"].as_f64()?)
}

/// Returns the workflows of a policy, or `None` if they aren't configured.
fn workflows(own: &Group<'_>, parts: &Parts<Group<'_>>) -> Option<Value> {
    // The largest number of workflows at any process.
    let known = own.max("workflows");
    let rows = worst_first(of(parts, WORKFLOW).map(|(name, group)| workflow(name, group)));
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
    // The limit is `None` if any process has no limit.
    let limit = |name| group.milli(name).filter(|_| everywhere);
    let (limited, late) = (group.rate("rq_rate_limited"), group.rate("rq_deadline"));
    let refused = group.rate(REFUSED);
    let rejected = limited.zip(late).map(|(limited, late)| limited + late);
    let completed = group.0.iter().filter_map(|c| {
        let us = c.after.value("completion_us").filter(|us| *us > 0)?;
        Some((us as f64 / 1e3, c.rate("rq_completed").unwrap_or(0.0)))
    });
    json!({
        "workflow": name,
        // λ as measured by the processes, including refused requests.
        "demandRate": group.milli("demand_mhz"),
        "offeredRate": group.rate("rq_offered"),
        // σ, the rate in force, over all processes.
        "limitRate": limit("rate_mhz"),
        // The rate that the processes themselves can serve (Wisp, Algorithm 1, line 1).
        "localLimitRate": limit("local_rate_mhz"),
        "admittedRate": group.rate("rq_admitted"),
        // Both counters also increase in a dry run.
        "rateLimitedRate": limited,
        "deadlineRate": late,
        "refusedRate": refused,
        "wouldRefuseRate": not_enforced(rejected, refused),
        "completedRate": group.rate("rq_completed"),
        "callsRate": group.rate("calls"),
        "queueLength": group.gauge("queue_length"),
        "waitMs": group.percentiles("limiter_wait_us"),
        // The mean over the processes, weighted by their completed requests.
        "completionMs": mean(completed),
        "bottlenecks": bottlenecks(group),
        "hurt": refused.unwrap_or(0.0),
    })
}

/// Returns the bottlenecks that determine a workflow's rate, each with its number of proxies.
fn bottlenecks(group: &Group<'_>) -> Vec<Value> {
    let mut places: BTreeMap<String, u64> = BTreeMap::new();
    for place in group.0.iter().filter_map(Change::bottleneck) {
        *places.entry(place).or_default() += 1;
    }
    let places = places.into_iter();
    places
        .map(|(place, proxies)| json!({"place": place, "proxies": proxies}))
        .collect()
}

#[cfg(test)]
mod tests;
