//! Adds up the proxies of each policy.

use std::collections::BTreeMap;
use std::time::Duration;

use super::types::TypeSums;
use super::workflows::WorkflowSums;
use super::{Percentiles, PolicyRow, View, sum};
use crate::top::fleet::{Fleet, Proxy, Reach};
use crate::top::histogram::Spread;
use crate::top::history::Span;
use crate::top::sample::{PolicySample, Stats};

/// The change of some stats between two responses.
#[derive(Clone, Copy)]
pub(super) struct Change<'a> {
    /// The earlier stats; `None` if the earlier response lacked them.
    before: Option<&'a Stats>,
    pub(super) after: &'a Stats,
    /// Time between the responses, s; 0 if only one exists.
    pub(super) seconds: f64,
}

impl<'a> Change<'a> {
    /// Returns the requests/s of a counter. One that has fallen began anew, as when a policy was
    /// removed and came back.
    pub(super) fn rate(&self, name: &str) -> Option<f64> {
        Some(self.count(name)? as f64 / self.seconds)
    }

    pub(super) fn count(&self, name: &str) -> Option<u64> {
        let after = self.after.value(name)?;
        (self.seconds > 0.0).then(|| self.since(name, after))
    }

    fn since(&self, name: &str, after: u64) -> u64 {
        let before = self.before.and_then(|b| b.value(name)).unwrap_or(0);
        after.checked_sub(before).unwrap_or(after)
    }

    pub(super) fn counts(&self, prefix: &'a str) -> impl Iterator<Item = (&'a str, u64)> {
        let named = self.after.values(prefix).filter(|_| self.seconds > 0.0);
        named.map(move |(name, after)| (name, self.since(&format!("{prefix}{name}"), after)))
    }

    pub(super) fn gauge(&self, name: &str) -> Option<u64> {
        self.after.value(name)
    }

    pub(super) fn spread(&self, name: &str) -> Option<Spread> {
        let after = self.after.histogram(name)?;
        let before = self.before.and_then(|b| b.histogram(name));
        (self.seconds > 0.0).then(|| after.since(before))
    }
}

/// Adds a part that may be unknown; a sum of unknown parts is unknown.
pub(super) fn add(total: &mut Option<f64>, part: Option<f64>) {
    *total = sum([*total, part].into_iter()).map(tidy);
}

/// As [`add`], for counts.
pub(super) fn add_count(total: &mut Option<u64>, part: Option<u64>) {
    *total = sum([*total, part].into_iter());
}

/// Rounds to millionths: digits beyond them are noise of sums.
pub(super) fn tidy(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}

/// Returns the responses to compare of each proxy that answers.
pub(super) fn spans<'a>(fleet: &'a Fleet, only: Option<&'a str>) -> impl Iterator<Item = Span<'a>> {
    let chosen = fleet
        .proxies
        .iter()
        .filter(move |(name, _)| only.is_none_or(|only| only == name.as_str()));
    let answering = |proxy: &&'a Proxy| proxy.reach == Reach::Answers;
    chosen
        .map(|(_, proxy)| proxy)
        .filter(answering)
        .filter_map(|proxy| proxy.history.span())
}

/// Returns the policies of one response that are in force. A removed policy leaves its stats
/// behind, without slots.
pub(super) fn in_force<'a>(
    span: &Span<'a>,
) -> impl Iterator<Item = (&'a String, &'a PolicySample)> + use<'a> {
    let policies = span.after.policies.iter();
    policies.filter(|(_, p)| p.own.value("slots") != Some(0))
}

/// Returns the changes of a policy's stats and of those of its types or workflows.
pub(super) fn change<'a>(
    span: &Span<'a>,
    policy: &str,
    pick: impl Fn(&'a PolicySample) -> Option<&'a Stats>,
) -> Option<Change<'a>> {
    let before = span.before.and_then(|b| b.policies.get(policy));
    Some(Change {
        before: before.and_then(&pick),
        after: pick(span.after.policies.get(policy)?)?,
        seconds: span.seconds,
    })
}

/// Returns the view without the proxies.
pub(super) fn policies(fleet: &Fleet, only: Option<&str>) -> View {
    let mut all: BTreeMap<String, Sums> = BTreeMap::new();
    let mut longest = Duration::ZERO;
    for span in spans(fleet, only) {
        longest = longest.max(Duration::from_secs_f64(span.seconds));
        for (name, sample) in in_force(&span) {
            all.entry(name.clone())
                .or_default()
                .add(&span, name, sample);
        }
    }
    let mut policies: Vec<PolicyRow> = all
        .into_iter()
        .map(|(name, sums)| sums.finish(name))
        .collect();
    policies.sort_by(|a, b| b.hurt.total_cmp(&a.hurt));
    View {
        window_seconds: tidy(longest.as_secs_f64()),
        policies,
        ..View::default()
    }
}

#[derive(Default)]
struct Sums {
    row: PolicyRow,
    types: BTreeMap<String, TypeSums>,
    workflows: BTreeMap<String, WorkflowSums>,
}

impl Sums {
    fn add(&mut self, span: &Span<'_>, policy: &str, sample: &PolicySample) {
        let row = &mut self.row;
        row.proxies += 1;
        if let Some(own) = change(span, policy, |p| Some(&p.own)) {
            add_count(&mut row.slots, own.gauge("slots"));
            add_count(&mut row.slots_in_use, own.gauge("slots_in_use"));
            add_count(&mut row.queue_length, own.gauge("queue_length"));
            let work = own.gauge("queued_work_us").map(|us| us as f64 / 1e3);
            add(&mut row.queued_work_ms, work);
            add(&mut row.unmanaged_rate, own.rate("rq_unmanaged"));
            let floors = own.gauge("floors_over_capacity");
            add_count(&mut row.floors_over_capacity, floors);
            if let Some(known) = own.gauge("workflows") {
                let all = row.workflows.get_or_insert_default();
                all.known = all.known.max(Some(known));
                add(&mut all.folded_rate, own.rate("workflows_folded"));
                add(&mut all.rates_expired_rate, own.rate("rates_expired"));
                add(&mut all.rates_refused_rate, own.rate("rates_refused"));
            }
        }
        for name in sample.types.keys() {
            if let Some(change) = change(span, policy, |p| p.types.get(name)) {
                self.types.entry(name.clone()).or_default().add(&change);
            }
        }
        for name in sample.workflows.keys() {
            if let Some(change) = change(span, policy, |p| p.workflows.get(name)) {
                let sums = self.workflows.entry(name.clone()).or_default();
                sums.add(&change, &sample.services);
            }
        }
    }

    fn finish(self, policy: String) -> PolicyRow {
        let mut row = self.row;
        row.policy = policy;
        let types = self.types.into_iter();
        row.types = types.map(|(name, sums)| sums.finish(name)).collect();
        row.types.sort_by(|a, b| b.hurt.total_cmp(&a.hurt));
        for kind in &row.types {
            row.traffic.add(&kind.traffic);
            row.hurt += kind.hurt;
        }
        if !self.workflows.is_empty() {
            row.workflows.get_or_insert_default();
        }
        if let Some(all) = &mut row.workflows {
            let rows = self.workflows.into_iter();
            all.rows = rows.map(|(name, sums)| sums.finish(name)).collect();
            all.rows.sort_by(|a, b| b.hurt.total_cmp(&a.hurt));
            // Requests that the rate limiter refuses never reach a type.
            row.hurt += all.rows.iter().map(|w| w.hurt).sum::<f64>();
        }
        row.hurt = tidy(row.hurt);
        row
    }
}

/// Returns percentiles of times in µs, in ms.
pub(super) fn percentiles(spread: &Spread) -> Option<Percentiles> {
    let ms = |q| spread.quantile(q).map(|us| tidy(us / 1e3));
    Some(Percentiles {
        p50: ms(0.5)?,
        p99: ms(0.99)?,
    })
}
