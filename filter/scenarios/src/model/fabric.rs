//! The experiments of centralized Aequitas (§4), with hosts around a switch whose calls run in the
//! class that class admission allows.

use std::time::Duration;

use headgate_simulator::SimulationError;
use headgate_simulator::fabric::{self, Method, Seen, Setup};
use serde::Deserialize;

use super::Amount;
use crate::measured::{ALL, Measured, mean};

/// The largest distance of a settled curve from its mean, in the unit of the curve.
const SETTLED_WITHIN: f64 = 0.03;
/// The hosts that the report shows.
const HOSTS: [&str; 2] = ["host 1", "host 2"];

/// The parameters of an Aequitas experiment.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Fabric {
    network: Setup,
    /// The names of the classes, the highest first.
    classes: Vec<String>,
    /// The length of the run, s.
    length: f64,
    method: Method,
    /// Whether to measure results over time, too.
    #[serde(default)]
    curves: bool,
}

impl Fabric {
    pub(super) fn run(&self, amount: &Amount, seed: u64) -> Result<Measured, SimulationError> {
        let length = Duration::from_secs_f64(self.length * amount.part);
        let seen = fabric::run(&self.network, self.method, length, length / 3, seed)?;
        Ok(self.measure(&seen))
    }

    fn measure(&self, seen: &Seen) -> Measured {
        let mut measured = Measured::default();
        let overall = seen.overall_admission();
        measured.note(
            ALL,
            "settled_s",
            settled(&overall).map(|at| at as f64 * seen.interval),
        );
        measured.note(
            ALL,
            "admitted",
            mean(last_third(&overall).iter().flatten().copied()),
        );
        for (class, name) in self.classes.iter().enumerate() {
            measured.note(name, "p999_us", seen.latency_us(class, 0.999));
            let Some(target) = self.network.targets_us.get(class) else {
                continue;
            };
            measured.note(name, "target_us", *target as f64);
            measured.note(
                name,
                "within_pct",
                seen.within_us(class, *target).map(|part| part * 100.0),
            );
        }
        for (host, name) in HOSTS.into_iter().enumerate() {
            let throughput: Vec<Option<f64>> =
                seen.throughput(host).into_iter().map(Some).collect();
            measured.note(
                name,
                "admitted",
                mean(after_first_third(&seen.admission(host))),
            );
            measured.note(
                name,
                "throughput_gbps",
                mean(after_first_third(&throughput)),
            );
        }
        if self.curves {
            let time = |n: usize| (n as f64 + 1.0) * seen.interval;
            let points = |values: Vec<Option<f64>>| {
                values
                    .into_iter()
                    .enumerate()
                    .map(move |(n, y)| (time(n), y))
            };
            measured.draw(ALL, "admitted", points(overall));
            for (host, name) in HOSTS.into_iter().enumerate() {
                measured.draw(name, "admitted", points(seen.admission(host)));
                measured.draw(
                    name,
                    "throughput_gbps",
                    points(seen.throughput(host).into_iter().map(Some).collect()),
                );
            }
        }
        measured
    }
}

fn last_third(curve: &[Option<f64>]) -> &[Option<f64>] {
    &curve[curve.len() - curve.len() / 3..]
}

fn after_first_third(curve: &[Option<f64>]) -> impl Iterator<Item = f64> {
    curve.iter().skip(curve.len() / 3).flatten().copied()
}

/// Returns the first interval from which the curve stays near its mean over the last third.
fn settled(curve: &[Option<f64>]) -> Option<usize> {
    let level = mean(last_third(curve).iter().flatten().copied())?;
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
