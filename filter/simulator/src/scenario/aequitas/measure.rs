//! Numbers of runs, and what is made of them.

use super::Experiment;
use crate::fabric::Seen;

/// How far a settled curve may be from its mean, ratio.
const SETTLED_WITHIN: f64 = 0.03;

/// A number of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Quantity {
    /// When the overall admission has settled, s after the begin: from then on it stays within 0.03 of its mean over
    /// the last third of the run.
    Settled,
    /// Mean of the overall admission over the last third of the run, ratio.
    Admission,
    /// Admission of this sender after the first third, ratio.
    HostAdmission(usize),
    /// Throughput of this sender in the high class after the first third, Gb/s.
    HostThroughput(usize),
    /// 99.9th percentile latency of calls that ran in this class, µs.
    TailLatency(usize),
    /// Percent of calls that ran in this class and kept its target.
    WithinTarget(usize),
    /// The target of this class, µs.
    Target(usize),
}

/// A number of one of the runs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Number {
    /// Its name.
    pub(super) run: &'static str,
    pub(super) quantity: Quantity,
}

/// What a claim is about.
#[derive(Debug, Clone, Copy)]
pub(super) enum Value {
    Of(Number),
    Ratio(Number, Number),
    Difference(Number, Number),
}

/// Least and largest value that bear a claim out.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bound(pub(super) f64, pub(super) f64);

/// Results of all runs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Found<'a> {
    pub(super) experiment: &'a Experiment,
    /// By run, then by seed.
    pub(super) runs: &'a [Vec<Seen>],
}

impl Found<'_> {
    /// Mean over the seeds.
    pub(super) fn number(&self, number: Number) -> Option<f64> {
        let runs = self.experiment.runs.iter();
        let at = runs.map(|run| run.name).position(|n| n == number.run)?;
        let values = self.runs.get(at)?.iter();
        mean(values.map(|seen| self.quantity(number.quantity, seen)))
    }

    pub(super) fn value(&self, value: Value) -> Option<f64> {
        let number = |number| self.number(number);
        Some(match value {
            Value::Of(of) => number(of)?,
            Value::Ratio(one, other) => number(one)? / number(other)?,
            Value::Difference(one, other) => number(one)? - number(other)?,
        })
    }

    fn quantity(&self, quantity: Quantity, seen: &Seen) -> Option<f64> {
        let target = |class: usize| self.experiment.setup.targets_us.get(class).copied();
        match quantity {
            Quantity::Settled => Some(settled(&seen.overall_admission())? as f64 * seen.interval),
            Quantity::Admission => mean(last_third(&seen.overall_admission()).iter().copied()),
            Quantity::HostAdmission(host) => mean(settled_part(&seen.admission(host))),
            Quantity::HostThroughput(host) => {
                let throughput: Vec<Option<f64>> =
                    seen.throughput(host).into_iter().map(Some).collect();
                mean(settled_part(&throughput))
            }
            Quantity::TailLatency(class) => seen.latency_us(class, 0.999),
            Quantity::WithinTarget(class) => seen
                .within_us(class, target(class)?)
                .map(|part| part * 100.0),
            Quantity::Target(class) => Some(target(class)? as f64),
        }
    }
}

/// `None` if nothing is there.
fn mean(values: impl IntoIterator<Item = Option<f64>>) -> Option<f64> {
    crate::results::mean(values.into_iter().flatten())
}

fn last_third(curve: &[Option<f64>]) -> &[Option<f64>] {
    &curve[curve.len() - curve.len() / 3..]
}

fn settled_part(curve: &[Option<f64>]) -> impl Iterator<Item = Option<f64>> {
    curve.iter().skip(curve.len() / 3).copied()
}

/// The interval from which on the curve has settled.
fn settled(curve: &[Option<f64>]) -> Option<usize> {
    let level = mean(last_third(curve).iter().copied())?;
    let near = |value: &Option<f64>| value.is_some_and(|v| (v - level).abs() <= SETTLED_WITHIN);
    let unsettled = curve.iter().rposition(|value| !near(value));
    Some(unsettled.map_or(0, |last| last + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_has_settled_when_it_stays() {
        let curve =
            |values: &[f64]| -> Vec<Option<f64>> { values.iter().copied().map(Some).collect() };
        let falls = curve(&[1.0, 0.5, 0.9, 0.525, 0.51, 0.5, 0.5, 0.5, 0.5]);
        assert_eq!(settled(&falls), Some(3));
        assert_eq!(settled(&curve(&[0.5; 6])), Some(0));
        assert_eq!(settled(&[]), None);
        assert_eq!(settled(&[Some(0.5), None, Some(0.5), Some(0.5)]), Some(2));
    }
}
