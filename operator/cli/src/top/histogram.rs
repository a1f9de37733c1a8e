//! Envoy's histograms, and percentiles of the values added to them.

/// A histogram in Envoy's format `histogram_buckets=disjoint`. Values above its last bucket are not
/// in it.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Histogram(Vec<Bucket>);

/// The values up to `upper`, and above the previous bucket.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Bucket {
    upper: f64,
    /// The number of values in Envoy's last flush period, 5 s unless its bootstrap sets another.
    recent: u64,
    /// The number of values since the start of the histogram.
    total: u64,
}

/// Values by bucket: pairs of upper bound and count, by bound.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Spread(Vec<(f64, u64)>);

impl Histogram {
    /// Reads `B50(1,2) B100(0,0) …`: bound, count of the last period, total count.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut buckets = Vec::new();
        for word in text.split_ascii_whitespace() {
            let (upper, counts) = word.strip_prefix('B')?.strip_suffix(')')?.split_once('(')?;
            let (recent, total) = counts.split_once(',')?;
            buckets.push(Bucket {
                upper: upper.parse().ok().filter(|u: &f64| u.is_finite())?,
                recent: recent.parse().ok()?,
                total: total.parse().ok()?,
            });
        }
        let rising = buckets.is_sorted_by(|a, b| a.upper < b.upper);
        (rising && !buckets.is_empty()).then_some(Self(buckets))
    }

    /// Returns the values that were added since `before`.
    ///
    /// Envoy adds to its histograms when it flushes them, so between two samples of a busy proxy no
    /// values may have been added. In that case, the values of the last period are returned.
    pub(crate) fn since(&self, before: Option<&Self>) -> Spread {
        // After a restart, or with other buckets, all values are new.
        let continued = |before: &&Self| {
            let mut both = before.0.iter().zip(&self.0);
            before.0.len() == self.0.len()
                && both.all(|(b, a)| b.upper == a.upper && b.total <= a.total)
        };
        let before = before.filter(continued);
        let earlier = |at: usize| before.map_or(0, |b| b.0[at].total);
        let buckets = self.0.iter().enumerate();
        let added = buckets.map(|(at, b)| (b.upper, b.total - earlier(at)));
        let spread = Spread(added.collect());
        if spread.count() > 0 {
            return spread;
        }
        Spread(self.0.iter().map(|b| (b.upper, b.recent)).collect())
    }
}

impl Spread {
    /// Returns the number of values.
    pub(crate) fn count(&self) -> u64 {
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

    /// Returns the `q`-quantile, 0..=1, with values spread evenly over their bucket, as Prometheus'
    /// `histogram_quantile` does; `None` without values.
    pub(crate) fn quantile(&self, q: f64) -> Option<f64> {
        let count = self.count();
        if count == 0 {
            return None;
        }
        let rank = q.clamp(0.0, 1.0) * count as f64;
        let (mut below, mut lower) = (0.0, 0.0);
        for &(upper, count) in &self.0 {
            let here = count as f64;
            if count > 0 && below + here >= rank {
                return Some(lower + (upper - lower) * ((rank - below) / here).clamp(0.0, 1.0));
            }
            below += here;
            lower = upper;
        }
        Some(lower)
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
        let added = after.since(Some(&before));
        assert_eq!(added.count(), 10);
        assert_eq!(added.quantile(0.5), Some(75.0));
        assert_eq!(added.quantile(0.0), Some(50.0));
        assert_eq!(added.quantile(1.0), Some(100.0));
        assert_eq!(after.since(None).count(), 110);
    }

    #[test]
    fn between_two_flushes_the_last_period_counts() {
        let now = histogram("B50(3,100) B100(1,10)");
        assert_eq!(now.since(Some(&now)).count(), 4);
        let idle = histogram("B50(0,100) B100(0,10)");
        assert_eq!(idle.since(Some(&idle)).quantile(0.5), None);
    }

    #[test]
    fn a_restart_or_other_buckets_begin_anew() {
        let before = histogram("B50(0,100) B100(0,10)");
        assert_eq!(
            histogram("B50(2,2) B100(0,90)")
                .since(Some(&before))
                .count(),
            92
        );
        assert_eq!(histogram("B70(1,5)").since(Some(&before)).count(), 5);
    }

    #[test]
    fn proxies_with_other_buckets_add_up() {
        let mut all = histogram("B50(0,4) B100(0,4)").since(None);
        all.add(&histogram("B70(0,4) B100(0,4)").since(None));
        assert_eq!(all.count(), 16);
        assert_eq!(all.quantile(0.25), Some(50.0));
        assert_eq!(all.quantile(0.5), Some(70.0));
    }

    #[test]
    fn what_is_no_histogram_is_none() {
        for text in [
            "",
            "No recorded values",
            "B1",
            "B1(1)",
            "B1(1,x)",
            "Binf(1,1)",
            "B2(0,0) B1(0,0)",
            "B1(-1,0)",
        ] {
            assert_eq!(Histogram::parse(text), None, "{text}");
        }
    }
}
