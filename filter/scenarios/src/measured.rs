//! Measurements of a run of a model, and averages over the runs of a case.

/// `ALL` is the kind of numbers over all types, classes or workflows. `mean` returns the mean of
/// numbers.
pub(crate) use headgate_simulator::results::{ALL, mean};

/// The points of a curve: times, s, and values, which may be missing.
pub(crate) type Points = Vec<(f64, Option<f64>)>;

/// A measured number of one kind (a type, class, workflow or service) and one metric.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Number {
    pub(crate) kind: String,
    pub(crate) metric: String,
    /// The value, or `None` if there was nothing to measure.
    pub(crate) value: Option<f64>,
    /// Half the width of the 90% confidence interval of the mean, or `None` for a single run.
    pub(crate) half: Option<f64>,
}

/// A metric over time.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Curve {
    pub(crate) kind: String,
    pub(crate) metric: String,
    pub(crate) points: Points,
}

/// The measurements of a run.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Measured {
    pub(crate) numbers: Vec<Number>,
    pub(crate) curves: Vec<Curve>,
    /// The times of changes, s, and their descriptions.
    pub(crate) events: Vec<(f64, String)>,
    /// The textual results: the name and the text of each.
    pub(crate) words: Vec<(String, String)>,
}

impl Measured {
    pub(crate) fn note(
        &mut self,
        kind: &str,
        metric: impl Into<String>,
        value: impl Into<Option<f64>>,
    ) {
        self.numbers.push(Number {
            kind: kind.to_owned(),
            metric: metric.into(),
            value: value.into().filter(|value| value.is_finite()),
            half: None,
        });
    }

    pub(crate) fn draw(
        &mut self,
        kind: &str,
        metric: impl Into<String>,
        points: impl IntoIterator<Item = (f64, Option<f64>)>,
    ) {
        self.curves.push(Curve {
            kind: kind.to_owned(),
            metric: metric.into(),
            points: points.into_iter().collect(),
        });
    }

    /// Returns the means of the numbers over the runs of one case. The curves are those of the
    /// first run.
    pub(crate) fn average(mut runs: Vec<Self>) -> Self {
        if runs.is_empty() {
            return Self::default();
        }
        let others = runs.split_off(1);
        let Some(mut first) = runs.pop() else {
            return Self::default();
        };
        for (at, number) in first.numbers.iter_mut().enumerate() {
            let others = others.iter().filter_map(|run| run.numbers.get(at)?.value);
            let values: Vec<f64> = number.value.into_iter().chain(others).collect();
            (number.value, number.half) = estimate(&values);
        }
        first
    }

    pub(crate) fn number(&self, kind: &str, metric: &str) -> Option<&Number> {
        let wanted = |n: &&Number| n.kind == kind && n.metric == metric;
        self.numbers.iter().find(wanted)
    }

    /// Returns the kinds that have this metric, in the order in which they were noted.
    pub(crate) fn kinds_of<'a>(&'a self, metric: &'a str) -> impl Iterator<Item = &'a str> {
        let wanted = move |n: &&Number| n.metric == metric;
        self.numbers.iter().filter(wanted).map(|n| n.kind.as_str())
    }
}

/// Returns the variance.
pub(crate) fn variance(values: &[f64]) -> Option<f64> {
    let middle = mean(values)?;
    mean(values.iter().map(|v| (v - middle).powi(2)))
}

/// Returns the standard deviation.
pub(crate) fn deviation(values: &[f64]) -> Option<f64> {
    variance(values).map(f64::sqrt)
}

/// The 0.95 quantiles of Student's t, by degrees of freedom from 1.
const T_95: [f64; 15] = [
    6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812, 1.796, 1.782, 1.771,
    1.761, 1.753,
];
/// The 0.95 quantile of the normal distribution, for more degrees of freedom than [`T_95`] has.
const NORMAL_95: f64 = 1.645;

/// Returns the mean, and half the width of its 90% confidence interval.
fn estimate(values: &[f64]) -> (Option<f64>, Option<f64>) {
    let n = values.len() as f64;
    let Some(mean) = mean(values) else {
        return (None, None);
    };
    let squares: f64 = values.iter().map(|v| (v - mean).powi(2)).sum();
    let half = (values.len() > 1).then(|| {
        let t = T_95.get(values.len() - 2).unwrap_or(&NORMAL_95);
        t * (squares / (n - 1.0) / n).sqrt()
    });
    (Some(mean), half)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn confidence_intervals_are_those_of_student() {
        // The standard deviation of 1..=10 is 3.0277, so half the width is 1.833 · 3.0277 / √10 =
        // 1.7550.
        let values: Vec<f64> = (1..=10).map(f64::from).collect();
        let (mean, half) = estimate(&values);
        assert_eq!(mean, Some(5.5));
        assert!((half.unwrap() - 1.755).abs() < 1e-3);
        assert_eq!(estimate(&[2.0]), (Some(2.0), None));
        assert_eq!(estimate(&[]), (None, None));
    }

    #[test]
    fn a_mean_ignores_runs_without_the_value() {
        let run = |value: Option<f64>| {
            let mut run = Measured::default();
            run.note("slow", "rt_p50_ms", value);
            run
        };
        let mean = |runs: &[Option<f64>]| {
            let found = Measured::average(runs.iter().map(|value| run(*value)).collect());
            found.number("slow", "rt_p50_ms").and_then(|n| n.value)
        };
        assert_eq!(mean(&[Some(1.0), None, Some(3.0)]), Some(2.0));
        assert_eq!(mean(&[None, Some(3.0)]), Some(3.0));
        assert_eq!(mean(&[None, None]), None);
    }
}
