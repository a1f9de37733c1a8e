use proptest::prelude::*;

use super::*;

/// Yields factors of times, with mean 1 and a coefficient of variation of 0.3.
fn scatter() -> impl Strategy<Value = f64> {
    let half = 3_f64.sqrt() * 0.3;
    1.0 - half..1.0 + half
}

fn seconds(time: f64) -> Duration {
    Duration::from_secs_f64(time)
}

/// Returns the amounts of a request of this size, without output.
fn of(size: u32) -> Amounts {
    Amounts { size, output: 0 }
}

fn planned(samples: impl IntoIterator<Item = (Amounts, f64)>) -> Plane {
    let mut plane = Plane::default();
    for (amounts, time) in samples {
        plane.learn(amounts, seconds(time));
    }
    plane
}

fn learned(samples: impl IntoIterator<Item = (u32, f64)>) -> Plane {
    planned(samples.into_iter().map(|(size, time)| (of(size), time)))
}

fn is_sound(plane: &Plane) -> bool {
    let p = plane.covariance;
    let pairs = (0..FACTORS).flat_map(|row| (0..FACTORS).map(move |at| (row, at)));
    let is_covariance = pairs.into_iter().all(|(row, at)| {
        let most = p[row][row] * p[at][at] * (1.0 + 1e-9);
        p[row][at].powi(2) <= most && (p[row][at] - p[at][row]).abs() <= 1e-9
    });
    let coefficients = plane.coefficients.iter();
    let variances = (0..FACTORS).map(|at| p[at][at]);
    is_covariance
        && coefficients.copied().all(|of| (0.0..=TIME.1).contains(&of))
        && variances
            .into_iter()
            .all(|of| (VARIANCE.0..=VARIANCE.1).contains(&of))
        && plane.usual.iter().all(|of| *of >= 1.0 && of.is_finite())
}

/// Yields samples of two small requests and a large one in turn. They take 3 ms for size 1, and 102
/// ms for size 100.
fn both(samples: usize) -> impl Iterator<Item = (u32, f64)> {
    let turn = [(1, 0.003), (1, 0.003), (100, 0.102)];
    turn.into_iter().cycle().take(samples)
}

/// A client that states a huge size, and is answered at once, doesn't spoil the estimates of other
/// requests.
#[test]
fn one_far_size_moves_no_estimate() {
    let far = [(u32::MAX, 0.002)];
    let plane = learned(both(999).chain(far).chain(both(60)));
    for (size, time) in [(1, 0.003), (100, 0.102)] {
        let estimate = plane.estimate(of(size)).unwrap();
        assert!((estimate / time - 1.0).abs() < 0.1, "{size}: {estimate}");
    }
}

#[test]
fn a_first_sample_of_a_far_size_is_soon_forgotten() {
    let plane = learned([(1_000_000, 0.003)].into_iter().chain(both(300)));
    for (size, time) in [(1, 0.003), (100, 0.102)] {
        let estimate = plane.estimate(of(size)).unwrap();
        assert!((estimate / time - 1.0).abs() < 0.25, "{size}: {estimate}");
    }
}

fn amount() -> impl Strategy<Value = u32> {
    prop_oneof![0..3_u32, Just(u32::MAX), any::<u32>()]
}

/// If outputs are always the same, or a multiple of the sizes, samples can't separate the
/// coefficients.
#[test]
fn alike_outputs_leave_the_estimates_of_such_requests() {
    type Output = fn(u32) -> u32;
    for output in [(|_| 64) as Output, |size| 2 * size, |_| 0] {
        let amounts = |size| Amounts {
            size,
            output: output(size),
        };
        let time = |of: Amounts| 0.01 + 1e-5 * f64::from(of.size) + 1e-4 * f64::from(of.output);
        let sizes = (0..100_000_u32).map(|n| amounts(100 + 7 * (n % 100)));
        let plane = planned(sizes.map(|of| (of, time(of))));
        assert!(is_sound(&plane), "{plane:?}");
        for size in [100, 400, 793] {
            let (of, exact) = (amounts(size), time(amounts(size)));
            let estimate = plane.estimate(of).unwrap();
            assert!(
                (estimate / exact - 1.0).abs() < 0.02,
                "{of:?}: {estimate} for {exact}"
            );
        }
        let unlike = Amounts {
            size: 400,
            output: 4_000,
        };
        assert_eq!(plane.estimate(unlike), None, "{plane:?}");
    }
}

proptest! {
    #[test]
    fn finds_the_plane(
        // Each term is at least a tenth of the usual time, because smaller ones converge slowly.
        coefficients in [-2.5_f64..-1.5, -5_f64..-4.3, -4_f64..-3.3],
        samples in prop::collection::vec((0.0_f64..1.0, 0.0_f64..1.0, scatter()), 2_000),
    ) {
        let exact = coefficients.map(|exponent| 10_f64.powf(exponent));
        // The samples are stratified: each eighth of the range of sizes occurs with each eighth of
        // the range of outputs. Each sample has an antithetic one.
        let amounts = samples.iter().enumerate().flat_map(|(n, &(size, output, scatter))| {
            let at = |n: usize, part: f64, most: f64| {
                most.powf(((n % 8) as f64 + part) / 8.0) as u32
            };
            let amounts = Amounts {
                size: at(n, size, 8_000.0),
                output: at(3 * n + n / 8, output, 1_000.0),
            };
            [(amounts, scatter), (amounts, 2.0 - scatter)]
        });
        let time = |of: Amounts| dot(&exact, &of.factors());
        let plane = planned(amounts.map(|(of, scatter)| (of, time(of) * scatter)));
        for size in [100, 1_000, 8_000] {
            for output in [10, 100, 1_000] {
                let of = Amounts { size, output };
                let (estimate, exact) = (plane.estimate(of).unwrap(), time(of));
                prop_assert!((estimate / exact - 1.0).abs() < 0.3, "{of:?}: {estimate}, {exact}");
            }
        }
    }

    #[test]
    fn converges(
        (fixed, per_size, largest) in (-4_f64..-1.0, -4_f64..-1.0, 1_u32..4),
        samples in prop::collection::vec((0.0_f64..1.0, scatter()), 2_000),
    ) {
        let (a, b) = (10_f64.powf(fixed), 10_f64.powf(per_size));
        // Sizes are uniform on a logarithmic scale.
        let size = |at: f64| 10_f64.powf(at * f64::from(largest)) as u32;
        // The samples are stratified over the range of sizes, and each has an antithetic one. So
        // the error is that of the method, not of a rare draw.
        let turns = samples.iter().enumerate();
        let turns = turns.map(|(n, &(at, scatter))| (((n % 8) as f64 + at) / 8.0, scatter));
        let mirrored = turns.flat_map(|(at, scatter)| [(at, scatter), (at, 2.0 - scatter)]);
        let plane = learned(mirrored.map(|(at, scatter)| {
            let size = size(at);
            (size, (a + b * f64::from(size)) * scatter)
        }));
        for at in [0.0, 0.25, 0.5, 0.75, 1.0] {
            let size = size(at);
            let exact = a + b * f64::from(size);
            let estimate = plane.estimate(of(size)).unwrap();
            prop_assert!((estimate / exact - 1.0).abs() < 0.3, "{size}: {estimate} for {exact}");
        }
    }

    #[test]
    fn any_samples_leave_it_bounded(
        samples in prop::collection::vec(
            (amount(), amount(), prop_oneof![
                Just(0), Just(u64::MAX), 0..1_000_u64, any::<u64>(),
            ]),
            0..300,
        ),
        (asked, most) in (amount(), amount()),
    ) {
        let mut plane = Plane::default();
        for (size, output, nanos) in samples {
            plane.learn(Amounts { size, output }, Duration::from_nanos(nanos));
            prop_assert!(is_sound(&plane), "{plane:?}");
            let estimate = plane.estimate(Amounts { size: asked, output: most });
            prop_assert!(estimate.is_none_or(|time| time > 0.0 && time <= TIME.1), "{plane:?}");
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
        let plane = learned(samples.iter().enumerate().map(|(n, &(large, scatter))| {
            (size(large), time(n, size(large)) * scatter)
        }));
        for size in [1, 100] {
            let (estimate, exact) = (plane.estimate(of(size)).unwrap(), time(1_499, size));
            prop_assert!((estimate / exact - 1.0).abs() < 0.3, "{size}: {estimate} for {exact}");
        }
    }
}

#[test]
fn one_size_says_nothing_about_others() {
    let mut plane = learned((0..100_000).map(|_| (7, 0.05)));
    assert!(is_sound(&plane));
    assert!((plane.estimate(of(7)).unwrap() - 0.05).abs() < 1e-6);
    assert_eq!(plane.estimate(of(700)), None);
    // The estimate still follows a change.
    (0..500).for_each(|_| plane.learn(of(7), seconds(0.5)));
    assert!((plane.estimate(of(7)).unwrap() / 0.5 - 1.0).abs() < 0.01);
}

#[test]
fn a_size_that_comes_no_more_keeps_its_estimate() {
    let both = (0..400).map(|n| [(1, 0.003), (100, 0.102)][n % 2]);
    let plane = learned(both.chain((0..100_000).map(|_| (1, 0.003))));
    let estimate = plane.estimate(of(100)).unwrap();
    assert!((estimate - 0.102).abs() < 0.002, "{estimate}");
}

#[test]
fn an_estimate_needs_some_samples() {
    let few = learned((0..10).map(|_| (7, 0.05)));
    assert_eq!(few.estimate(of(7)), None);
    assert_eq!(Plane::default().estimate(of(7)), None);
}
