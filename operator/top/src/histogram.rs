//! Envoy's histograms, and percentiles of their values.

/// The values by bucket, as pairs of upper bound and count, ordered by bound. They come from
/// Envoy's format `histogram_buckets=disjoint`. Values above the last bound are missing.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Histogram(Vec<(f64, u64)>);

impl Histogram {
    /// Parses `B50(1,2) B100(0,0) …`: each bucket's bound, its count in Envoy's last flush period,
    /// and its total count.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let bucket = |word: &str| {
            let (upper, counts) = word.strip_prefix('B')?.strip_suffix(')')?.split_once('(')?;
            let upper = upper.parse().ok().filter(|u: &f64| u.is_finite())?;
            Some((upper, counts.split_once(',')?.1.parse().ok()?))
        };
        let buckets = text.split_ascii_whitespace().map(bucket);
        let buckets: Vec<_> = buckets.collect::<Option<_>>()?;
        let rising = buckets.is_sorted_by(|a, b| a.0 < b.0);
        (rising && !buckets.is_empty()).then_some(Self(buckets))
    }

    /// Returns the values that were added since `before`. After a restart, or if the buckets
    /// differ, these are all values.
    pub(crate) fn since(&self, before: &Self) -> Self {
        let both = || self.0.iter().zip(&before.0);
        let continued =
            self.0.len() == before.0.len() && both().all(|(a, b)| a.0 == b.0 && a.1 >= b.1);
        match continued {
            true => Self(both().map(|(a, b)| (a.0, a.1 - b.1)).collect()),
            false => self.clone(),
        }
    }

    /// Returns the number of values.
    pub fn count(&self) -> u64 {
        self.0.iter().map(|b| b.1).fold(0, u64::saturating_add)
    }

    /// Adds the values of another proxy, whose buckets may differ.
    pub(crate) fn add(&mut self, other: &Self) {
        for &(upper, count) in &other.0 {
            match self.0.binary_search_by(|b| b.0.total_cmp(&upper)) {
                Ok(at) => self.0[at].1 = self.0[at].1.saturating_add(count),
                Err(at) => self.0.insert(at, (upper, count)),
            }
        }
    }

    /// Returns the `q`-quantile, with `q` in 0..=1, or `None` without values. Values count as
    /// spread evenly over their bucket, as in Prometheus' `histogram_quantile`.
    pub fn quantile(&self, q: f64) -> Option<f64> {
        let rank = q * self.count() as f64;
        let (mut below, mut lower) = (0.0, 0.0);
        for &(upper, count) in &self.0 {
            let here = count as f64;
            if count > 0 && below + here >= rank {
                return Some(lower + (upper - lower) * (rank - below) / here);
            }
            below += here;
            lower = upper;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn histogram(text: &str) -> Histogram {
        Histogram::parse(text).unwrap()
    }

    #[test]
    fn quantiles_are_of_what_was_added() {
        let before = histogram("B50(0,100) B100(0,0) B1e+06(0,0)");
        let after = histogram("B50(0,100) B100(8,10) B1e+06(0,0)");
        let added = after.since(&before);
        assert_eq!(added.count(), 10);
        assert_eq!(added.quantile(0.5), Some(75.0));
        assert_eq!(added.quantile(0.0), Some(50.0));
        assert_eq!(added.quantile(1.0), Some(100.0));
        assert_eq!(after.count(), 110);
    }

    #[test]
    fn an_unchanged_histogram_has_no_quantile() {
        let idle = histogram("B50(3,100) B100(1,10)");
        assert_eq!(idle.since(&idle).quantile(0.5), None);
    }

    #[test]
    fn a_restart_or_other_buckets_begin_anew() {
        let before = histogram("B50(0,100) B100(0,10)");
        assert_eq!(histogram("B50(2,2) B100(0,90)").since(&before).count(), 92);
        assert_eq!(histogram("B70(1,5)").since(&before).count(), 5);
    }

    #[test]
    fn proxies_with_other_buckets_add_up() {
        let mut all = histogram("B50(0,4) B100(0,4)");
        all.add(&histogram("B70(0,4) B100(0,4)"));
        assert_eq!(all.count(), 16);
        assert_eq!(all.quantile(0.25), Some(50.0));
        assert_eq!(all.quantile(0.5), Some(70.0));
    }

    #[test]
    fn an_invalid_histogram_is_none() {
        for text in [
            "",
            "No recorded values",
            "B1",
            "B1(1)",
            "B1(1,x)",
            "Binf(1,1)",
            "B2(0,0) B1(0,0)",
            "B1(0,-1)",
        ] {
            assert_eq!(Histogram::parse(text), None, "{text}");
        }
    }
}
