//! The answers of an oracle, with which a trial is compared.
//!
//! The oracle knows all future arrivals and needs no queue, so slot time is its only limit. The
//! value of its answers is maximal if the slots are filled in the order of value per slot time (the
//! fractional knapsack):
//!
//! ```text
//! w_k = λ_k m_k      f_k = min(1, (P − Σ_j<k w_j) / w_k)      k in descending order of v_k / m_k
//! ```

/// The arriving requests of a type.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Demand {
    /// The value of one answer.
    pub(super) value: f64,
    /// Requests per second.
    pub(super) per_second: f64,
    /// Mean service time, ms.
    pub(super) mean_ms: f64,
}

/// Returns the ratio of each type's requests that is answered. Types with the same value per slot
/// time have the same ratio.
pub(super) fn ideal(types: &[Demand], slots: u32) -> Vec<f64> {
    let density = |at: usize| types[at].value / types[at].mean_ms;
    let work = |at: usize| types[at].per_second * types[at].mean_ms / 1e3;
    let mut order: Vec<usize> = (0..types.len()).collect();
    order.sort_by(|&a, &b| density(b).total_cmp(&density(a)));
    let mut left = f64::from(slots);
    let mut answered = vec![1.0; types.len()];
    for equals in order.chunk_by(|&a, &b| density(a) == density(b)) {
        let wanted: f64 = equals.iter().map(|&at| work(at)).sum();
        let part = if wanted > left { left / wanted } else { 1.0 };
        // A rounding error must not leave less than nothing, or a type without requests would get
        // an infinite ratio.
        left = (left - part * wanted).max(0.0);
        for &at in equals {
            answered[at] = part;
        }
    }
    answered
}

#[cfg(test)]
mod tests {
    use super::*;

    fn demand(value: f64, per_second: f64, mean_ms: f64) -> Demand {
        Demand {
            value,
            per_second,
            mean_ms,
        }
    }

    #[test]
    fn slots_go_to_what_is_worth_most_of_their_time() {
        // The types need 10, 4 and 20 slots.
        let types = [
            demand(1.0, 100.0, 100.0),
            demand(1.0, 1_000.0, 4.0),
            demand(40.0, 20.0, 1_000.0),
        ];
        assert_eq!(ideal(&types, 34), [1.0, 1.0, 1.0]);
        assert_eq!(ideal(&types, 29), [0.5, 1.0, 1.0]);
        assert_eq!(ideal(&types, 9), [0.0, 1.0, 0.25]);
        assert_eq!(ideal(&types, 2), [0.0, 0.5, 0.0]);
        let equal = [demand(1.0, 10.0, 100.0), demand(2.0, 5.0, 200.0)];
        assert_eq!(ideal(&equal, 1), [0.5, 0.5]);
        // 3 − 3 / 17.7 · 17.7 is less than 0 in floating point.
        let unused = [demand(1.0, 590.0, 30.0), demand(1.0, 0.0, 100.0)];
        assert_eq!(ideal(&unused, 3), [3.0 / 17.7, 1.0]);
    }
}
