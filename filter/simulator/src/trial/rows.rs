//! The results of a trial by type, averaged over its runs.

use headgate_strategies::strategy::TypeId;

use super::ideal::{Demand, ideal};
use super::{Case, CaseOutcome, Offered, Trial};
use crate::observe::Timeline;
use crate::report::ReportRow;
use crate::results::{ALL, mean};
use crate::workload::Workload;

/// The percentiles that every table shows.
const USUAL: [f64; 2] = [50.0, 90.0];

/// The results of a load, or of a phase.
pub(super) struct CaseRows {
    pub(super) span: Span,
    /// The offered rate, requests per second.
    pub(super) per_second: f64,
    /// The load in multiples of full load, or for a recording, in multiples of the recorded rate.
    pub(super) factor: f64,
    /// One row for each type, then a row for all types together.
    pub(super) rows: Vec<TypeRow>,
}

/// The part of a run that the results cover.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Span {
    Whole,
    /// A phase: its number, from 1, and its start and end, s.
    Phase(usize, f64, f64),
}

/// The results of a type.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct TypeRow {
    pub(super) name: String,
    /// The stage's type; `None` for all types together.
    pub(super) kind: Option<TypeId>,
    /// Requests per second.
    pub(super) offered: f64,
    pub(super) rejected_pct: f64,
    /// The percentage of the offered requests that were answered within the objective at the type's
    /// highest percentile. Without an objective, this is the percentage that were answered. For all
    /// types together, this is the percentage of the value.
    pub(super) within_pct: f64,
    /// The percentage `within_pct` of an [`ideal`] admission; `None` if mean service times are
    /// unknown.
    pub(super) ideal_pct: Option<f64>,
    /// Pairs of a percentile and the response time of served requests at this percentile, ms.
    pub(super) times: Vec<(f64, Option<f64>)>,
    pub(super) utilization: f64,
}

impl TypeRow {
    /// Returns the response time at this percentile, ms.
    pub(super) fn at(&self, percentile: f64) -> Option<f64> {
        let found = self.times.iter().find(|(p, _)| *p == percentile);
        found.and_then(|(_, ms)| *ms)
    }
}

impl CaseRows {
    /// Returns the machine-readable rows.
    pub(super) fn records(&self, trial: &Trial) -> Vec<ReportRow> {
        let strategy = trial.strategy();
        let record = |row: &TypeRow| {
            let mut record = ReportRow::new().with("strategy", strategy.as_str());
            if let Span::Phase(number, from, to) = self.span {
                record = record
                    .with("phase", number as u64)
                    .with("from_s", from)
                    .with("to_s", to);
            }
            record = record
                .with("factor", self.factor)
                .with("type", row.name.as_str())
                .with("rejected_pct", row.rejected_pct)
                .with("within_pct", row.within_pct)
                .with("ideal_pct", row.ideal_pct)
                .with("rt_p50_ms", row.at(50.0))
                .with("rt_p90_ms", row.at(90.0))
                .with("utilization", row.utilization)
                .with("offered_per_s", row.offered);
            for (percentile, ms) in &row.times {
                if !USUAL.contains(percentile) {
                    let name = format!("rt_p{percentile}_ms").replace('.', "_");
                    record = record.with(name, *ms);
                }
            }
            record
        };
        self.rows.iter().map(record).collect()
    }
}

impl Trial {
    /// Returns the percentiles to show: the usual percentiles and the percentiles that have an
    /// objective.
    pub(super) fn percentiles(&self) -> Vec<f64> {
        let types = self.stage.types.iter();
        let objectives = types.flat_map(|kind| kind.slo.iter().map(|o| o.percentile));
        let mut all: Vec<f64> = objectives.chain(USUAL).collect();
        all.sort_by(f64::total_cmp);
        all.dedup();
        all
    }

    /// Returns the objective of a type at a percentile, ms.
    pub(super) fn objective(&self, kind: Option<TypeId>, percentile: f64) -> Option<f64> {
        let kind = self.stage.types.get(usize::from(kind?.0))?;
        let objective = kind.slo.iter().find(|o| o.percentile == percentile)?;
        Some(objective.objective_us as f64 / 1e3)
    }

    /// Returns the objective at the highest percentile of a type, µs.
    fn limit_us(&self, kind: Option<TypeId>) -> Option<u64> {
        let kind = self.stage.types.get(usize::from(kind?.0))?;
        kind.slo.last().map(|objective| objective.objective_us)
    }

    /// Returns the value of an answer, for each type of the traffic.
    fn values(&self) -> Vec<f64> {
        let types = self.plan.offered.workload().map(Workload::types);
        let class_of = |at: usize| types?.get(at).map(|kind| kind.class);
        let scale = |at: usize| {
            let class = self.stage.classes.get(usize::from(class_of(at)?))?;
            Some(class.value)
        };
        let value = |kind: TypeId| self.stage.types.get(usize::from(kind.0)).map(|t| t.value);
        let kinds = self.kinds().into_iter().enumerate();
        kinds
            .map(|(at, (_, kind))| value(kind).unwrap_or(1.0) * scale(at).unwrap_or(1.0))
            .collect()
    }

    /// Adds the results of an ideal admission at `per_second`, and weights the row of all types by
    /// value.
    fn against_ideal(&self, mut rows: Vec<TypeRow>, per_second: f64) -> Vec<TypeRow> {
        let values = self.values();
        if let Some(workload) = self.plan.offered.workload() {
            let demands: Vec<Demand> = workload
                .types()
                .iter()
                .zip(&values)
                .map(|(kind, value)| Demand {
                    value: *value,
                    per_second: per_second * workload.share_of(kind),
                    mean_ms: kind.service_time.mean_ms(),
                })
                .collect();
            for (row, part) in rows.iter_mut().zip(ideal(&demands, self.slots)) {
                row.ideal_pct = Some(100.0 * part);
            }
        }
        let Some((all, types)) = rows.split_last_mut() else {
            return rows;
        };
        let weighed = |of: fn(&TypeRow) -> Option<f64>| {
            let weight = |row: &TypeRow, value: &f64| row.offered * value;
            let pairs = || types.iter().zip(&values);
            let total: f64 = pairs().map(|(row, value)| weight(row, value)).sum();
            let sum: Option<f64> = pairs()
                .map(|(row, value)| Some(of(row)? * weight(row, value)))
                .sum();
            sum.map(|sum| sum / total.max(f64::MIN_POSITIVE))
        };
        all.within_pct = weighed(|row| Some(row.within_pct)).unwrap_or(0.0);
        all.ideal_pct = weighed(|row| row.ideal_pct);
        rows
    }

    /// Returns the results of a case from its runs, phase by phase if the case has phases.
    pub(super) fn rows_of(&self, case: &Case, runs: &[CaseOutcome]) -> Vec<CaseRows> {
        let Offered::Phases { workload, phases } = &self.plan.offered else {
            // The rate of a closed loop is only known after the run.
            let is_open = !matches!(self.plan.offered, Offered::Clients { .. });
            let per_second = |run: &CaseOutcome| match is_open {
                true => case.per_second,
                false => run.outcome.per_second(),
            };
            let rows_of = |run| {
                let per_second = per_second(run);
                self.against_ideal(self.whole(per_second, run), per_second)
            };
            let of_runs: Vec<Vec<TypeRow>> = runs.iter().map(rows_of).collect();
            let seen = mean(runs.iter().map(per_second)).unwrap_or(case.per_second);
            return vec![CaseRows {
                span: Span::Whole,
                per_second: seen,
                factor: case.factor * seen / case.per_second,
                rows: average(&of_runs),
            }];
        };
        let full = workload.mean_ms() / 1e3 / f64::from(self.slots);
        let mut from = 0.0;
        let mut all = Vec::new();
        for (i, phase) in phases.iter().enumerate() {
            let per_second = workload.per_second(phase.rate, self.slots);
            let to = from + phase.duration.as_secs_f64();
            let timelines = runs.iter().filter_map(|run| run.phases.as_ref());
            let rows_of = |t: &Timeline| self.against_ideal(self.bin(t, i), per_second);
            let of_runs: Vec<Vec<TypeRow>> = timelines.map(rows_of).collect();
            all.push(CaseRows {
                span: Span::Phase(i + 1, from, to),
                per_second,
                factor: per_second * full,
                rows: average(&of_runs),
            });
            from = to;
        }
        all
    }

    fn whole(&self, per_second: f64, run: &CaseOutcome) -> Vec<TypeRow> {
        let outcome = &run.outcome;
        let all = outcome.all();
        let total = all.as_ref().map_or(0, |all| all.offered).max(1) as f64;
        let named = self.kinds().into_iter().zip(&outcome.types);
        let named = named.map(|((name, kind), of)| (name, Some(kind), of));
        let all = all.as_ref().map(|all| (ALL, None, all));
        named
            .chain(all)
            .map(|(name, kind, of)| TypeRow {
                name: name.to_owned(),
                kind,
                offered: per_second * of.offered as f64 / total,
                rejected_pct: of.rejected_pct(),
                within_pct: percent(of.within(self.limit_us(kind)), of.offered),
                ideal_pct: None,
                times: self
                    .percentiles()
                    .into_iter()
                    .map(|p| (p, of.response_time_ms(p / 100.0)))
                    .collect(),
                utilization: outcome.utilization,
            })
            .collect()
    }

    /// Returns the results of one bin of a timeline.
    pub(super) fn bin(&self, timeline: &Timeline, bin: usize) -> Vec<TypeRow> {
        let (from, to) = timeline.span(bin);
        let seconds = (to - from) as f64 / 1e9;
        let percentiles = self.percentiles();
        let quantiles: Vec<f64> = percentiles.iter().map(|p| p / 100.0).collect();
        let utilization = timeline.utilization(bin, self.slots);
        let kinds = self.kinds().into_iter().enumerate();
        let kinds = kinds.map(|(at, (name, kind))| (name, Some(kind), Some(at)));
        kinds
            .chain([(ALL, None, None)])
            .map(|(name, kind, at)| {
                let moment = timeline.moment(bin, at);
                let times = timeline.quantiles(bin, at, &quantiles);
                let within = at.map_or(0, |at| timeline.within(bin, at, self.limit_us(kind)));
                TypeRow {
                    name: name.to_owned(),
                    kind,
                    offered: moment.offered as f64 / seconds,
                    rejected_pct: moment.rejected_pct,
                    within_pct: percent(within, moment.offered),
                    ideal_pct: None,
                    times: percentiles.iter().copied().zip(times).collect(),
                    utilization,
                }
            })
            .collect()
    }
}

fn percent(part: u64, of: u64) -> f64 {
    100.0 * part as f64 / of.max(1) as f64
}

/// Returns the averages over runs, which all have the same rows.
pub(super) fn average(runs: &[Vec<TypeRow>]) -> Vec<TypeRow> {
    let Some(first) = runs.first() else {
        return Vec::new();
    };
    let average_of = |(at, row): (usize, &TypeRow)| {
        let same = || runs.iter().filter_map(move |rows| rows.get(at));
        let over = |value: fn(&TypeRow) -> f64| mean(same().map(value)).unwrap_or(0.0);
        let time = |i: usize| mean(same().filter_map(|row| row.times.get(i)?.1));
        let times = row.times.iter().enumerate();
        TypeRow {
            name: row.name.clone(),
            kind: row.kind,
            offered: over(|row| row.offered),
            rejected_pct: over(|row| row.rejected_pct),
            within_pct: over(|row| row.within_pct),
            ideal_pct: mean(same().filter_map(|row| row.ideal_pct)),
            times: times
                .map(|(i, (percentile, _))| (*percentile, time(i)))
                .collect(),
            utilization: over(|row| row.utilization),
        }
    };
    first.iter().enumerate().map(average_of).collect()
}
