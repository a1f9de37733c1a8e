//! Q, which computes one rate from the rates of all processes of a downstream service (Wisp Alg. 1
//! line 5).
//!
//! With the rates in ascending order, x₀ ≤ … ≤ xₙ₋₁, the q-quantile lies at position `h = q · (n −
//! 1)` and is interpolated between its neighbours (definition 7 of R. Hyndman and Y. Fan, "Sample
//! Quantiles in Statistical Packages", The American Statistician 50, 1996):
//!
//! ```text
//! Q(x, q) = x[⌊h⌋] + (h − ⌊h⌋) · (x[⌊h⌋ + 1] − x[⌊h⌋])
//! ```
//!
//! q = 0 is the minimum, q = 1 the maximum, q = 0.5 the median. Unlike definitions that select one
//! of the rates, this Q is continuous in the rates and in q. When a process's rate crosses its
//! neighbour's, the caller's rate doesn't jump. Q never decreases when q increases, on which §4.1.3
//! depends.
//!
//! The infinite rates of processes without a limit can't be interpolated. Between a finite and an
//! infinite rate, the result is the finite rate. The result is infinite only from the position of
//! the first infinite rate on.

/// Returns the q-quantile of `rates`, or `None` if there are no rates. Sorts `rates`, which must be
/// 0 or more, or infinite. A `q` outside of 0..=1 counts as the nearer end.
pub(crate) fn quantile(rates: &mut [f64], q: f64) -> Option<f64> {
    let last = rates.len().checked_sub(1)?;
    rates.sort_unstable_by(f64::total_cmp);
    let q = if q.is_nan() { 0.0 } else { q };
    let position = q.clamp(0.0, 1.0) * last as f64;
    let below = (position.floor() as usize).min(last);
    let part = position - below as f64;
    let (low, high) = (rates[below], rates[(below + 1).min(last)]);
    if part <= 0.0 || high.is_infinite() {
        return Some(low);
    }
    // Rounding must not move the result beyond one of the two rates.
    Some((low + part * (high - low)).clamp(low, high))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn q(rates: &[f64], q: f64) -> f64 {
        quantile(&mut rates.to_vec(), q).unwrap()
    }

    #[test]
    fn ends_and_medians_are_exact() {
        let rates = [30.0, 10.0, 50.0, 20.0, 40.0];
        assert_eq!(q(&rates, 0.0), 10.0);
        assert_eq!(q(&rates, 1.0), 50.0);
        assert_eq!(q(&rates, 0.5), 30.0);
        assert_eq!(q(&rates, 0.25), 20.0);
        assert_eq!(q(&rates, 0.9), 46.0);
        assert_eq!(q(&[150.0, 200.0], 0.5), 175.0);
        assert_eq!(q(&[7.0], 0.3), 7.0);
        assert_eq!(quantile(&mut [], 0.5), None);
        assert_eq!(q(&rates, f64::NAN), 10.0);
        assert_eq!(q(&rates, 2.0), 50.0);
    }

    #[test]
    fn no_limit_is_adopted_only_where_the_quantile_meets_one() {
        let inf = f64::INFINITY;
        assert_eq!(q(&[150.0, inf], 0.5), 150.0);
        assert_eq!(q(&[150.0, inf], 0.99), 150.0);
        assert_eq!(q(&[150.0, inf], 1.0), inf);
        assert_eq!(q(&[150.0, inf, inf], 0.5), inf);
        assert_eq!(q(&[inf, inf], 0.3), inf);
    }

    fn rate() -> impl Strategy<Value = f64> {
        prop_oneof![8 => 0.0..1e9_f64, 1 => Just(f64::INFINITY), 1 => Just(0.0)]
    }

    proptest! {
        #[test]
        fn lies_among_the_rates_and_never_falls_as_q_rises(
            mut rates in prop::collection::vec(rate(), 1..40),
            mut qs in prop::collection::vec(0.0..=1.0_f64, 2..10),
        ) {
            qs.sort_unstable_by(f64::total_cmp);
            let found: Vec<f64> = qs.iter().map(|&q| quantile(&mut rates, q).unwrap()).collect();
            for pair in found.windows(2) {
                prop_assert!(pair[0] <= pair[1], "{:?} of {:?}", pair, rates);
            }
            for value in found {
                prop_assert!(value >= rates[0] && value <= rates[rates.len() - 1]);
            }
        }

        #[test]
        fn never_falls_when_a_rate_rises(
            rates in prop::collection::vec(rate(), 1..20),
            q in 0.0..=1.0_f64,
            at in 0..20_usize,
            by in 0.0..1e6_f64,
        ) {
            let mut more = rates.clone();
            let at = at % more.len();
            more[at] += by;
            let mut rates = rates;
            let before = quantile(&mut rates, q).unwrap();
            prop_assert!(quantile(&mut more, q).unwrap() >= before);
        }
    }
}
