//! The lengths of a type's outputs, learnt from responses whose tokens were counted.
//!
//! A request states the maximum length of its output. Outputs are usually far shorter, so a
//! reservation of the maximum leaves a budget half empty. A simple remedy is to reserve a quantile
//! of the outputs so far. But an output that ends at its request's maximum, or because the client
//! leaves, only shows that the model would have written more. If such outputs counted as complete,
//! many requests with a small maximum would make the outputs of requests with a large maximum look
//! short.
//!
//! Lengths of such outputs are censored samples. The estimator for censored samples is E. Kaplan
//! and P. Meier's ("Nonparametric Estimation from Incomplete Observations", 1958). With d_k outputs
//! that end in interval k by themselves, and n_k outputs that reach interval k, it is
//!
//! ```text
//! S(k) = Π (1 − d_i / n_i), i ≤ k        the part of outputs that is longer than interval k
//! ```
//!
//! Intervals grow with the length, with four intervals in an octave. Each n includes [`PRIOR`]
//! assumed outputs without an end, so that no quantile follows from a few samples, or from lengths
//! that few requests may reach. Each new sample reduces the weight of the old ones.
//!
//! Each worker learns from its own responses, as in fair queues. While a type's lengths are not
//! known, each request counts with its maximum.

/// The number of intervals in an octave.
const STEPS: u32 = 4;
const OCTAVES: u32 = 20;
const INTERVALS: usize = (STEPS * OCTAVES) as usize;
/// The factor by which each new sample reduces the weight of the earlier ones.
const KEPT: f32 = 1.0 - 1.0 / 512.0;
/// The number of outputs without an end that are assumed in addition to the measured outputs.
const PRIOR: f32 = 2.0;
/// The part of the outputs that may exceed [`Lengths::usual`].
const LONGER: f32 = 0.05;

/// The output lengths of one type.
#[derive(Debug, Clone)]
pub(super) struct Lengths {
    /// The outputs that ended by themselves and the outputs that were cut off, by interval.
    outputs: [[f32; 2]; INTERVALS],
    usual: Option<u32>,
}

impl Default for Lengths {
    fn default() -> Self {
        Self {
            outputs: [[0.0; 2]; INTERVALS],
            usual: None,
        }
    }
}

impl Lengths {
    /// Records an output of `tokens`. `is_whole` is true if the output ended by itself.
    pub(super) fn learn(&mut self, tokens: u32, is_whole: bool) {
        self.outputs
            .as_flattened_mut()
            .iter_mut()
            .for_each(|n| *n *= KEPT);
        self.outputs[interval(tokens)][usize::from(!is_whole)] += 1.0;
        self.usual = self.quantile();
    }

    /// Returns the length that all but [`LONGER`] of the outputs don't exceed, or `None` while that
    /// length is not known.
    pub(super) fn usual(&self) -> Option<u32> {
        self.usual
    }

    /// Returns the mean output length of requests whose limit is `most` tokens. Outputs beyond all
    /// known lengths are assumed to end at the limit.
    pub(super) fn mean(&self, most: u32) -> u32 {
        let (mut longer, mut before, mut mean) = (1.0, 0, 0.0);
        for (at, (reach, [whole, _])) in self.reaching().iter().zip(&self.outputs).enumerate() {
            let next = match at + 1 {
                INTERVALS => most,
                _ => longest(at).min(most),
            };
            let part = if *reach > 0.0 {
                1.0 - whole / reach
            } else {
                1.0
            };
            // Outputs that end in an interval are assumed to end in its middle.
            mean += longer * 0.5 * (1.0 + part) * next.saturating_sub(before) as f32;
            longer *= part;
            before = next;
        }
        // The cast saturates.
        (mean.round() as u32).min(most)
    }

    fn quantile(&self) -> Option<u32> {
        let mut longer = 1.0;
        let exceeded = |(reach, [whole, _]): (&f32, &[f32; 2])| {
            longer *= 1.0 - whole / (reach + PRIOR);
            longer <= LONGER
        };
        let at = self.reaching().iter().zip(&self.outputs).position(exceeded);
        at.map(longest)
    }

    /// Returns the number of outputs that reach each interval.
    fn reaching(&self) -> [f32; INTERVALS] {
        let (mut all, mut sum) = ([0.0; INTERVALS], 0.0);
        for (reach, [whole, cut]) in all.iter_mut().zip(&self.outputs).rev() {
            sum += whole + cut;
            *reach = sum;
        }
        all
    }
}

/// Returns the interval of a length.
fn interval(tokens: u32) -> usize {
    let tokens = tokens.max(1);
    let octave = tokens.ilog2();
    let step = ((u64::from(tokens) * u64::from(STEPS)) >> octave) as u32 - STEPS;
    ((STEPS * octave + step) as usize).min(INTERVALS - 1)
}

/// Returns the longest length in an interval.
fn longest(interval: usize) -> u32 {
    let (octave, step) = (interval as u32 / STEPS, interval as u32 % STEPS);
    let next = ((STEPS + step + 1) << octave).div_ceil(STEPS);
    (next - 1).max(1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn learned(outputs: impl IntoIterator<Item = (u32, bool)>) -> Lengths {
        let mut lengths = Lengths::default();
        outputs
            .into_iter()
            .for_each(|(tokens, is_whole)| lengths.learn(tokens, is_whole));
        lengths
    }

    #[test]
    fn intervals_have_a_quarter_of_an_octave() {
        for tokens in (0..5_000).chain([1 << 20, 1 << 31, u32::MAX]) {
            let at = interval(tokens);
            let is_last = at == INTERVALS - 1;
            let bounds = tokens..=(tokens.max(1) / 4).saturating_mul(5).saturating_add(3);
            assert!(is_last || bounds.contains(&longest(at)), "{tokens}");
            assert!(at == 0 || longest(at - 1) < tokens, "{tokens}");
        }
    }

    #[test]
    fn a_quantile_needs_some_samples() {
        assert_eq!(learned([]).usual(), None);
        assert_eq!(learned([(60, true); 37]).usual(), None);
        assert_eq!(learned([(60, true); 40]).usual(), Some(63));
    }

    #[test]
    fn outputs_that_were_cut_off_show_no_length() {
        assert_eq!(learned([(16, false); 10_000]).usual(), None);
        // Nine in ten requests ask for 16 tokens at most, and the others get 200.
        let mixed = (0..5_000).map(|n| {
            if n % 10 == 0 {
                (200, true)
            } else {
                (16, false)
            }
        });
        assert_eq!(learned(mixed).usual(), Some(223));
        // Too few requests reach 200 tokens for an estimate of that length.
        let mixed = (0..5_000).map(|n| {
            if n % 50 == 0 {
                (200, true)
            } else {
                (16, false)
            }
        });
        assert_eq!(learned(mixed).usual(), None);
    }

    #[test]
    fn a_mean_length_is_bounded_by_the_most() {
        let means = |lengths: &Lengths| [0, 5, 60, 1_000, u32::MAX].map(|most| lengths.mean(most));
        assert_eq!(means(&learned([])), [0, 5, 60, 1_000, u32::MAX]);
        let alike = learned((0..5_000).map(|_| (60, true)));
        // The estimate is at most the middle of the interval from 56 to 63.
        assert_eq!(means(&alike)[..4], [0, 5, 58, 59]);
        // Half of the requests ask for 16 tokens at most, and the others get 200.
        let mixed = (0..5_000).map(|n| [(200, true), (16, false)][n % 2]);
        let mixed = learned(mixed);
        assert_eq!((mixed.mean(16), mixed.mean(1_000)), (16, 207));
        assert_eq!(learned([(16, false); 5_000]).mean(500), 500);
    }

    #[test]
    fn lengths_follow_a_change() {
        let mut lengths = learned([(60, true); 10_000]);
        (0..100).for_each(|_| lengths.learn(600, true));
        assert_eq!(lengths.usual(), Some(639));
        (0..2_000).for_each(|_| lengths.learn(60, true));
        assert_eq!(lengths.usual(), Some(63));
    }

    proptest! {
        #[test]
        fn all_but_a_twentieth_of_the_outputs_are_not_longer(
            scale in 2_f64..5_000.0,
            parts in prop::collection::vec(0_f64..1.0, 4_000),
            most in prop::option::of(1_u32..10_000),
        ) {
            // Exponential lengths, of which some are cut off at `most`. Each eighth occurs in turn.
            let length = |n: usize, part: f64| {
                let part = ((n % 8) as f64 + part) / 8.0;
                (-scale * (1.0 - part).ln()).ceil() as u32
            };
            let all = parts.iter().enumerate().map(|(n, &part)| {
                let (length, most) = (length(n, part), most.filter(|_| n % 3 > 0));
                let most = most.unwrap_or(u32::MAX);
                (length.min(most), length < most)
            });
            let lengths = learned(all);
            let usual = f64::from(lengths.usual().unwrap());
            let mean = f64::from(lengths.mean((20.0 * scale) as u32));
            prop_assert!((0.6..1.6).contains(&((mean + 1.0) / (scale + 1.0))), "{mean}");
            let longer = (-usual / scale).exp();
            prop_assert!((0.003..0.12).contains(&longer), "{longer} are longer than {usual}");
        }

        #[test]
        fn any_lengths_cause_no_panic(
            outputs in prop::collection::vec((any::<u32>(), any::<bool>()), 0..2_000),
        ) {
            let lengths = learned(outputs);
            prop_assert!(lengths.outputs.iter().flatten().all(|n| (0.0..=512.1).contains(n)));
            prop_assert!(lengths.usual().is_none_or(|tokens| tokens > 0));
        }
    }
}
