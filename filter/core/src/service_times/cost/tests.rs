use proptest::prelude::*;

use super::*;

/// A factor of times, with mean 1 and a coefficient of variation of 0.3.
fn scatter() -> impl Strategy<Value = f64> {
    let half = 3_f64.sqrt() * 0.3;
    1.0 - half..1.0 + half
}

fn seconds(time: f64) -> Duration {
    Duration::from_secs_f64(time)
}

fn learned(samples: impl IntoIterator<Item = (u32, f64)>) -> Line {
    let mut line = Line::default();
    for (size, time) in samples {
        line.learn(size, seconds(time));
    }
    line
}

fn is_sound(line: &Line) -> bool {
    let [p, q, s] = line.covariance;
    let bounded = |x: f64| (0.0..=TIME.1).contains(&x);
    let variance = |x: f64| (VARIANCE.0..=VARIANCE.1).contains(&x);
    bounded(line.fixed)
        && bounded(line.per_size)
        && line.size >= 1.0
        && line.size.is_finite()
        && variance(p)
        && variance(s)
        && q * q <= p * s * (1.0 + 1e-9)
}

/// Yields samples of two small requests and a large one in turn: 3 ms for size 1, 102 ms for size
/// 100.
fn both(samples: usize) -> impl Iterator<Item = (u32, f64)> {
    let turn = [(1, 0.003), (1, 0.003), (100, 0.102)];
    turn.into_iter().cycle().take(samples)
}

/// A client that states a huge size, and is answered at once, doesn't spoil the estimates of
/// others.
#[test]
fn one_far_size_moves_no_estimate() {
    let far = [(u32::MAX, 0.002)];
    let line = learned(both(999).chain(far).chain(both(60)));
    for (size, time) in [(1, 0.003), (100, 0.102)] {
        let estimate = line.estimate(size).unwrap();
        assert!((estimate / time - 1.0).abs() < 0.1, "{size}: {estimate}");
    }
}

#[test]
fn a_first_sample_of_a_far_size_is_soon_forgotten() {
    let line = learned([(1_000_000, 0.003)].into_iter().chain(both(300)));
    for (size, time) in [(1, 0.003), (100, 0.102)] {
        let estimate = line.estimate(size).unwrap();
        assert!((estimate / time - 1.0).abs() < 0.25, "{size}: {estimate}");
    }
}

proptest! {
    #[test]
    fn converges(
        (fixed, per_size, largest) in (-4_f64..-1.0, -4_f64..-1.0, 1_u32..4),
        samples in prop::collection::vec((0.0_f64..1.0, scatter()), 2_000),
    ) {
        let (a, b) = (10_f64.powf(fixed), 10_f64.powf(per_size));
        // Sizes are uniform on a logarithmic scale.
        let size = |at: f64| 10_f64.powf(at * f64::from(largest)) as u32;
        // Each eighth of the sizes occurs in turn, and each sample has a mirror image. So the error
        // is that of the method, not of a rare draw.
        let turns = samples.iter().enumerate();
        let turns = turns.map(|(n, &(at, scatter))| (((n % 8) as f64 + at) / 8.0, scatter));
        let mirrored = turns.flat_map(|(at, scatter)| [(at, scatter), (at, 2.0 - scatter)]);
        let line = learned(mirrored.map(|(at, scatter)| {
            let size = size(at);
            (size, (a + b * f64::from(size)) * scatter)
        }));
        for at in [0.0, 0.25, 0.5, 0.75, 1.0] {
            let size = size(at);
            let exact = a + b * f64::from(size);
            let estimate = line.estimate(size).unwrap();
            prop_assert!((estimate / exact - 1.0).abs() < 0.3, "{size}: {estimate} for {exact}");
        }
    }

    #[test]
    fn any_samples_leave_it_bounded(
        samples in prop::collection::vec(
            (prop_oneof![0..3_u32, Just(u32::MAX), any::<u32>()], prop_oneof![
                Just(0), Just(u64::MAX), 0..1_000_u64, any::<u64>(),
            ]),
            0..300,
        ),
        asked in any::<u32>(),
    ) {
        let mut line = Line::default();
        for (size, nanos) in samples {
            line.learn(size, Duration::from_nanos(nanos));
            prop_assert!(is_sound(&line), "{line:?}");
            let estimate = line.estimate(asked);
            prop_assert!(estimate.is_none_or(|time| time > 0.0 && time <= TIME.1), "{line:?}");
        }
    }

    #[test]
    fn follows_a_change_within_500_samples_of_each_size(
        factors in (0.1_f64..10.0, 0.1_f64..10.0),
        samples in prop::collection::vec((any::<bool>(), scatter()), 1_500),
    ) {
        let time = |n: usize, size: u32| {
            let (a, b) = if n < 500 { (1.0, 1.0) } else { factors };
            0.002 * a + 0.001 * b * f64::from(size)
        };
        let size = |large| if large { 100 } else { 1 };
        let line = learned(samples.iter().enumerate().map(|(n, &(large, scatter))| {
            (size(large), time(n, size(large)) * scatter)
        }));
        for size in [1, 100] {
            let (estimate, exact) = (line.estimate(size).unwrap(), time(1_499, size));
            prop_assert!((estimate / exact - 1.0).abs() < 0.3, "{size}: {estimate} for {exact}");
        }
    }
}

#[test]
fn one_size_tells_nothing_about_others() {
    let mut line = learned((0..100_000).map(|_| (7, 0.05)));
    assert!(is_sound(&line));
    assert!((line.estimate(7).unwrap() - 0.05).abs() < 1e-6);
    assert_eq!(line.estimate(700), None);
    // The estimate still follows a change.
    (0..500).for_each(|_| line.learn(7, seconds(0.5)));
    assert!((line.estimate(7).unwrap() / 0.5 - 1.0).abs() < 0.01);
}

#[test]
fn a_size_that_comes_no_more_keeps_its_estimate() {
    let both = (0..400).map(|n| [(1, 0.003), (100, 0.102)][n % 2]);
    let line = learned(both.chain((0..100_000).map(|_| (1, 0.003))));
    let estimate = line.estimate(100).unwrap();
    assert!((estimate - 0.102).abs() < 0.002, "{estimate}");
}

#[test]
fn an_estimate_needs_some_samples() {
    let few = learned((0..10).map(|_| (7, 0.05)));
    assert_eq!(few.estimate(7), None);
    assert_eq!(Line::default().estimate(7), None);
}
