//! Checks of the settings of service time distributions.

use super::problem::{At, HOUR_MS};
use super::{BranchEntry, BucketEntry, DistributionName as Name, ServiceTimeEntry, Time};
use crate::workload::{Branches, Empirical, LogNormal, Pareto, ServiceTime};

impl ServiceTimeEntry {
    /// Returns the distribution; `None` if a problem was recorded, or for `Recorded`.
    pub(crate) fn check(&self, at: &At<'_>) -> Option<ServiceTime> {
        self.refuse_settings_of_others(at);
        let time =
            |name: &str, time: &Option<Time>| at.field(name).time(time.as_ref()?, 1e-3, HOUR_MS);
        // All three times are parsed first, so that every problem is reported.
        let (mean, median, p90) = (
            time("mean", &self.mean),
            time("median", &self.median),
            time("p90", &self.p90),
        );
        let mean_of_family = || self.need("mean", mean, "a time such as 1.16ms", at);
        match self.distribution {
            Name::Recorded => None,
            Name::Constant => mean_of_family().map(ServiceTime::Constant),
            Name::Exponential => mean_of_family().map(ServiceTime::Exponential),
            Name::LogNormal => {
                let given = [&self.mean, &self.median, &self.p90];
                if given.iter().filter(|time| time.is_some()).count() != 2 {
                    let right = "two of mean, median and p90, such as {distribution: LogNormal, \
                                 mean: 20ms, median: 12.5ms}";
                    return at.refuse(self.given(), right);
                }
                let made = match (mean, median, p90) {
                    (Some(mean), Some(median), _) => LogNormal::new(mean, median),
                    (Some(mean), _, Some(p90)) => LogNormal::by_mean_and_p90(mean, p90),
                    (_, Some(median), Some(p90)) => LogNormal::by_median_and_p90(median, p90),
                    // One of the two times is invalid, and its problem is already recorded.
                    _ => return None,
                };
                at.made(made.map(ServiceTime::LogNormal))
            }
            Name::Pareto => {
                let right = "above 1; the smaller, the longer the tail";
                let shape = self.need("shape", self.shape, right, at);
                at.made(Pareto::new(mean_of_family()?, shape?).map(ServiceTime::Pareto))
            }
            Name::Hyperexponential => self.hyperexponential(&at.field("branches")),
            Name::Empirical => self.empirical(at),
        }
    }

    fn hyperexponential(&self, at: &At<'_>) -> Option<ServiceTime> {
        let Some(entries) = &self.branches else {
            let right = "such as [{share: 9, mean: 1ms}, {share: 1, mean: 20ms}]";
            return at.refuse("missing", right);
        };
        let branches = at.each(entries, |at, branch: &BranchEntry| {
            let mean = at.field("mean").time(&branch.mean, 1e-3, HOUR_MS);
            Some((at.field("share").positive(branch.share)?, mean?))
        });
        at.made(Branches::new(&branches?).map(ServiceTime::Hyperexponential))
    }

    fn empirical(&self, at: &At<'_>) -> Option<ServiceTime> {
        let made = match (&self.values, &self.histogram) {
            (Some(values), None) => {
                let time = |at: &At<'_>, value: &Time| at.time(value, 0.0, HOUR_MS);
                Empirical::of_values(&at.field("values").each(values, time)?)
            }
            (None, Some(buckets)) => {
                let step = |at: &At<'_>, bucket: &BucketEntry| {
                    let up_to = at.field("upTo").time(&bucket.up_to, 1e-3, HOUR_MS);
                    Some((up_to?, at.field("share").not_negative(bucket.share)?))
                };
                Empirical::of_histogram(&at.field("histogram").each(buckets, step)?)
            }
            _ => {
                let right = "values, such as [3ms, 3ms, 40ms], or histogram, such as [{upTo: 5ms, \
                             share: 90}, {upTo: 50ms, share: 10}]";
                return at.refuse(self.given(), right);
            }
        };
        at.made(made.map(ServiceTime::Empirical))
    }

    /// Returns a value that the family requires. If the value is missing, a problem is recorded.
    /// The problem of an invalid value was recorded before.
    fn need<T>(&self, name: &str, value: Option<T>, right: &str, at: &At<'_>) -> Option<T> {
        match self.settings().contains(&name) {
            true => value,
            false => at.field(name).refuse("missing", right),
        }
    }

    /// Returns the names of the settings that are set.
    fn settings(&self) -> Vec<&'static str> {
        let all = [
            ("mean", self.mean.is_some()),
            ("median", self.median.is_some()),
            ("p90", self.p90.is_some()),
            ("shape", self.shape.is_some()),
            ("branches", self.branches.is_some()),
            ("values", self.values.is_some()),
            ("histogram", self.histogram.is_some()),
        ];
        let given = all.into_iter().filter(|(_, given)| *given);
        given.map(|(name, _)| name).collect()
    }

    fn given(&self) -> String {
        match self.settings().as_slice() {
            [] => format!("{:?} without settings", self.distribution),
            given => format!("{:?} with {}", self.distribution, given.join(" and ")),
        }
    }

    fn refuse_settings_of_others(&self, at: &At<'_>) {
        let own: &[&str] = match self.distribution {
            Name::LogNormal => &["mean", "median", "p90"],
            Name::Exponential | Name::Constant => &["mean"],
            Name::Hyperexponential => &["branches"],
            Name::Pareto => &["mean", "shape"],
            Name::Empirical => &["values", "histogram"],
            Name::Recorded => &[],
        };
        let right = match own {
            [] => "leave it out; Recorded takes its times from the recording".to_owned(),
            own => format!(
                "leave it out; {:?} takes {}",
                self.distribution,
                own.join(", ")
            ),
        };
        let settings = self.settings().into_iter();
        for name in settings.filter(|name| !own.contains(name)) {
            at.field(name).note("given", &*right);
        }
    }
}
