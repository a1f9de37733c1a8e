//! Checks of the settings of service time distributions.

use super::problem::{Checks, HOUR_MS, Step};
use super::{DistributionName as Name, ServiceTimeEntry, Time};
use crate::workload::{Branches, Empirical, LogNormal, Pareto, ServiceTime};

impl ServiceTimeEntry {
    /// Returns the distribution; `None` if a problem was noted, or for the recorded distribution.
    pub(crate) fn check(&self, at: &[Step], checks: &mut Checks) -> Option<ServiceTime> {
        self.refuse_settings_of_others(at, checks);
        let mut time = |name: &'static str, time: Option<&Time>| {
            let time = time?;
            checks.time(
                &[at, &[Step::Field(name.into())]].concat(),
                time,
                1e-3,
                HOUR_MS,
            )
        };
        // All are parsed first, so that every problem is reported.
        let (mean, median, p90) = (
            time("mean", self.mean.as_ref()),
            time("median", self.median.as_ref()),
            time("p90", self.p90.as_ref()),
        );
        let made = match self.distribution {
            Name::Recorded => return None,
            Name::Constant => ServiceTime::Constant(self.need(mean, "mean", at, checks)?),
            Name::Exponential => ServiceTime::Exponential(self.need(mean, "mean", at, checks)?),
            Name::LogNormal => {
                let given = [&self.mean, &self.median, &self.p90];
                if given.iter().filter(|time| time.is_some()).count() != 2 {
                    let right = "two of mean, median and p90, such as {distribution: LogNormal, \
                                 mean: 20ms, median: 12.5ms}";
                    checks.add(at, self.given(), right);
                    return None;
                }
                let made = match (mean, median, p90) {
                    (Some(mean), Some(median), _) => LogNormal::new(mean, median),
                    (Some(mean), _, Some(p90)) => LogNormal::by_mean_and_p90(mean, p90),
                    (_, Some(median), Some(p90)) => LogNormal::by_median_and_p90(median, p90),
                    // One of the two is invalid, which was noted.
                    _ => return None,
                };
                return checks.made(at, made.map(ServiceTime::LogNormal));
            }
            Name::Pareto => {
                let shape = self.need(self.shape, "shape", at, checks);
                let mean = self.need(mean, "mean", at, checks);
                return checks.made(at, Pareto::new(mean?, shape?).map(ServiceTime::Pareto));
            }
            Name::Hyperexponential => return self.hyperexponential(at, checks),
            Name::Empirical => return self.empirical(at, checks),
        };
        Some(made)
    }

    fn hyperexponential(&self, at: &[Step], checks: &mut Checks) -> Option<ServiceTime> {
        let Some(entries) = &self.branches else {
            checks.missing(
                at,
                "branches",
                "such as [{share: 9, mean: 1ms}, {share: 1, mean: 20ms}]",
            );
            return None;
        };
        let mut branches = Vec::with_capacity(entries.len());
        for (i, branch) in entries.iter().enumerate() {
            let here = [at, &[Step::Field("branches".into()), Step::Item(i)]].concat();
            let mean = [&here[..], &[Step::Field("mean".into())]].concat();
            let mean = checks.time(&mean, &branch.mean, 1e-3, HOUR_MS);
            let share = checks.positive(&here, "share", branch.share);
            branches.push((share?, mean?));
        }
        let made = Branches::new(&branches).map(ServiceTime::Hyperexponential);
        checks.made(&[at, &[Step::Field("branches".into())]].concat(), made)
    }

    fn empirical(&self, at: &[Step], checks: &mut Checks) -> Option<ServiceTime> {
        let made = match (&self.values, &self.histogram) {
            (Some(values), None) => {
                let mut times = Vec::with_capacity(values.len());
                for (i, value) in values.iter().enumerate() {
                    let here = [at, &[Step::Field("values".into()), Step::Item(i)]].concat();
                    times.push(checks.time(&here, value, 0.0, HOUR_MS)?);
                }
                Empirical::of_values(&times)
            }
            (None, Some(buckets)) => {
                let mut steps = Vec::with_capacity(buckets.len());
                for (i, bucket) in buckets.iter().enumerate() {
                    let here = [at, &[Step::Field("histogram".into()), Step::Item(i)]].concat();
                    let up_to = [&here[..], &[Step::Field("upTo".into())]].concat();
                    let up_to = checks.time(&up_to, &bucket.up_to, 1e-3, HOUR_MS)?;
                    steps.push((up_to, checks.not_negative(&here, "share", bucket.share)?));
                }
                Empirical::of_histogram(&steps)
            }
            _ => {
                let right = "values, such as [3ms, 3ms, 40ms], or histogram, such as [{upTo: 5ms, \
                             share: 90}, {upTo: 50ms, share: 10}]";
                checks.add(at, self.given(), right);
                return None;
            }
        };
        checks.made(at, made.map(ServiceTime::Empirical))
    }

    /// Returns a value that the family requires. A value that is given and invalid was noted
    /// before.
    fn need<T>(
        &self,
        value: Option<T>,
        name: &'static str,
        at: &[Step],
        checks: &mut Checks,
    ) -> Option<T> {
        let given = self
            .settings()
            .iter()
            .any(|(n, given)| *n == name && *given);
        if !given {
            let right = match name {
                "shape" => "above 1; the smaller, the longer the tail",
                _ => "a time such as 1.16ms",
            };
            checks.missing(at, name, right);
        }
        value
    }

    fn settings(&self) -> [(&'static str, bool); 7] {
        [
            ("mean", self.mean.is_some()),
            ("median", self.median.is_some()),
            ("p90", self.p90.is_some()),
            ("shape", self.shape.is_some()),
            ("branches", self.branches.is_some()),
            ("values", self.values.is_some()),
            ("histogram", self.histogram.is_some()),
        ]
    }

    fn given(&self) -> String {
        let given: Vec<&str> = self
            .settings()
            .iter()
            .filter(|(_, given)| *given)
            .map(|(name, _)| *name)
            .collect();
        match given.is_empty() {
            true => format!("{:?} without settings", self.distribution),
            false => format!("{:?} with {}", self.distribution, given.join(" and ")),
        }
    }

    fn refuse_settings_of_others(&self, at: &[Step], checks: &mut Checks) {
        let own: &[&str] = match self.distribution {
            Name::LogNormal => &["mean", "median", "p90"],
            Name::Exponential | Name::Constant => &["mean"],
            Name::Hyperexponential => &["branches"],
            Name::Pareto => &["mean", "shape"],
            Name::Empirical => &["values", "histogram"],
            Name::Recorded => &[],
        };
        for (name, given) in self.settings() {
            if given && !own.contains(&name) {
                let here = [at, &[Step::Field(name.into())]].concat();
                let right = match own {
                    [] => "nothing else; the times are those of the recording".to_owned(),
                    own => format!("{:?} is made by {}", self.distribution, own.join(", ")),
                };
                checks.add(&here, "given".to_owned(), right);
            }
        }
    }
}
