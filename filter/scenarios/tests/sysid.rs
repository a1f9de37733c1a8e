//! Checks that system identification finds the system that produced a trace, for any system.

// Clippy doesn't recognize helpers outside of `#[test]` functions as test code.
#![allow(clippy::unwrap_used)]

use headgate_scenarios::sysid::{
    ControlLaw, Design, Gains, Goal, IdentifyError, Plant, Segment, Transform, choose_order,
    closed_loop, design, identify, place, polynomial::Polynomial,
};
use headgate_strategies::rng::Rng;
use num_complex::Complex64;
use proptest::prelude::*;

/// Returns a trace of `plant` around a delay of 2 s and a backlog of 300. The noise of the delays
/// is uniform and `noise` s wide.
fn trace(plant: &Plant, samples: usize, noise: f64, seed: u64) -> Segment {
    let mut rng = Rng::new(seed);
    let n = plant.order();
    let (mut delays, mut backlogs) = (vec![0.0; n], vec![0.0; n]);
    let mut trace = Segment::default();
    for _ in 0..samples {
        let delay = plant.next(&delays, &backlogs) + noise * (rng.next_f64() - 0.5);
        let backlog = 200.0 * (rng.next_f64() - 0.5);
        delays.rotate_right(1);
        delays[0] = delay;
        backlogs.rotate_right(1);
        backlogs[0] = backlog;
        trace.delays.push(2.0 + delay);
        trace.backlogs.push(300.0 + backlog);
    }
    trace
}

/// Returns the polynomial with these roots and the leading coefficient 1. Complex roots must be
/// given with their conjugates.
fn from_roots(roots: &[Complex64]) -> Polynomial {
    let mut product = vec![Complex64::new(1.0, 0.0)];
    for root in roots {
        let mut next = product.clone();
        next.push(Complex64::new(0.0, 0.0));
        for (to, from) in next[1..].iter_mut().zip(&product) {
            *to -= root * from;
        }
        product = next;
    }
    Polynomial::new(product.iter().map(|c| c.re).collect::<Vec<_>>())
}

/// Returns a stable plant of this order with a complex pair of poles.
fn plant(radius: f64, angle: f64, third: f64, b: [f64; 3], order: usize) -> Plant {
    let pole = Complex64::from_polar(radius, angle);
    let poles = [Complex64::new(third, 0.0), pole, pole.conj()];
    let poles = match order {
        1 => &poles[..1],
        2 => &poles[1..],
        _ => &poles[..],
    };
    let denominator = from_roots(poles);
    let a = denominator.coefficients()[1..].iter().map(|c| -c).collect();
    Plant::new(a, b[..order].to_vec()).unwrap()
}

proptest! {
    #[test]
    fn coefficients_of_a_clean_trace_come_back(
        radius in 0.1..0.95, angle in 0.1..3.0, third in -0.9..0.9_f64,
        b in prop::array::uniform3(0.001..0.05), order in 1_usize..=3, seed: u64,
    ) {
        let truth = plant(radius, angle, third, b, order);
        let segment = trace(&truth, 400, 0.0, seed);
        let fit = identify(&[segment], order, Transform::None).unwrap();
        prop_assert!(fit.r_squared > 1.0 - 1e-9, "{fit:?}");
        for (found, truth) in fit.plant.a().iter().zip(truth.a()) {
            prop_assert!((found - truth).abs() < 1e-6, "{fit:?} {truth:?}");
        }
        for (found, truth) in fit.plant.b().iter().zip(truth.b()) {
            prop_assert!((found - truth).abs() < 1e-8, "{fit:?} {truth:?}");
        }
    }

    #[test]
    fn placed_poles_are_where_they_were_asked_for(
        radius in 0.1..0.95, angle in 0.1..3.0, third in -0.9..0.9_f64,
        b in prop::array::uniform3(0.001..0.05), order in 1_usize..=3,
        wanted in 0.2..0.95, shape in 0.1..1.5,
    ) {
        let plant = plant(radius, angle, third, b, order);
        let pole = Complex64::from_polar(wanted, shape);
        for law in [ControlLaw::Bound, ControlLaw::Adjustment] {
            let Some(gains) = place(&plant, law, [pole, pole.conj()]) else { continue };
            let polynomial = closed_loop(&plant, law, gains);
            let roots = polynomial.roots();
            let extra = 1 + usize::from(law == ControlLaw::Adjustment);
            prop_assert_eq!(roots.len(), plant.order() + extra);
            for pole in [pole, pole.conj()] {
                let least = roots.iter().map(|r| (r - pole).norm()).fold(f64::MAX, f64::min);
                prop_assert!(least < 1e-4, "{} {:?} {:?}", pole, roots, gains);
            }
            // The roots and the leading coefficient must determine the original polynomial.
            let again = from_roots(&roots);
            let lead = polynomial.coefficients()[0];
            let size = polynomial.coefficients().iter()
                .fold(1.0_f64, |m, c| m.max((c / lead).abs()));
            for (a, b) in again.coefficients().iter().zip(polynomial.coefficients()) {
                prop_assert!((a - b / lead).abs() < 1e-6 * size, "{again:?} {polynomial:?}");
            }
        }
    }

    #[test]
    fn a_design_keeps_to_its_goal_in_the_loop_that_it_was_made_for(
        third in 0.0..0.8, b in prop::array::uniform3(0.001..0.05),
        overshoot in 0.15..0.5, settling in 20.0..60.0,
    ) {
        let plant = plant(0.5, 1.0, third, b, 1);
        let goal = Goal { overshoot, settling };
        let found = design(&plant, ControlLaw::Bound, goal).unwrap();
        prop_assert!(found.is_stable() && found.meets(&goal));
        prop_assert!(found.gains.proportional > 0.0 && found.gains.integral > 0.0);
    }
}

#[test]
fn noise_lowers_r_squared_by_its_part_of_the_variance() {
    let truth = Plant::new(vec![0.5], vec![0.01]).unwrap();
    // Without noise, var(s) is 0.01² · 200²/12 / (1 − 0.5²) = 0.444. The variance of the noise is
    // σ²/12.
    let noise = 0.8_f64;
    let fit = identify(&[trace(&truth, 200_000, noise, 3)], 1, Transform::None).unwrap();
    let noise = noise * noise / 12.0;
    let spread = (0.01_f64 * 0.01 * 200.0 * 200.0 / 12.0 + noise) / 0.75;
    assert!(
        (fit.r_squared - (1.0 - noise / spread)).abs() < 0.01,
        "{fit:?}"
    );
    assert!((fit.plant.a()[0] - 0.5).abs() < 0.01 && (fit.plant.b()[0] - 0.01).abs() < 1e-4);
    assert!((fit.mean_delay - 2.0).abs() < 0.02 && (fit.mean_backlog - 300.0).abs() < 1.0);
}

#[test]
fn the_order_of_the_system_is_the_one_that_is_chosen() {
    let truth = Plant::new(vec![0.2, 0.5], vec![0.01, 0.02]).unwrap();
    let segment = trace(&truth, 3_000, 0.3, 5);
    let fits: Vec<_> = (1..=4)
        .map(|order| identify(std::slice::from_ref(&segment), order, Transform::None).unwrap())
        .collect();
    assert_eq!(choose_order(&fits).unwrap().plant.order(), 2);
    assert!(fits[0].r_squared + 0.05 < fits[1].r_squared);
}

#[test]
fn a_gap_in_a_trace_is_not_read_as_one_period() {
    let truth = Plant::new(vec![0.7], vec![0.01]).unwrap();
    let whole = trace(&truth, 2_000, 0.0, 9);
    let part = |from: usize, to: usize| Segment {
        delays: whole.delays[from..to].to_vec(),
        backlogs: whole.backlogs[from..to].to_vec(),
    };
    let split = identify(&[part(0, 900), part(1_000, 2_000)], 1, Transform::None).unwrap();
    assert_eq!(split.samples, 899 + 999);
    assert!((split.plant.a()[0] - 0.7).abs() < 1e-2, "{split:?}");
}

#[test]
fn traces_that_tell_nothing_are_refused() {
    let flat = Segment {
        delays: vec![1.0; 100],
        backlogs: vec![5.0; 100],
    };
    let flat = identify(&[flat], 1, Transform::None);
    assert_eq!(flat, Err(IdentifyError::Flat));
    let short = identify(&[Segment::default()], 2, Transform::None).unwrap_err();
    assert!(short.to_string().contains("order 2 needs 20"), "{short}");
    let order = identify(&[], 5, Transform::None);
    assert_eq!(order, Err(IdentifyError::Order(5)));
}

#[test]
fn gains_can_be_looked_at_without_any_design() {
    let plant = Plant::new(vec![0.9], vec![0.1]).unwrap();
    let wild = Gains {
        proportional: 40.0,
        integral: 1.0,
    };
    let found = Design::of(&plant, ControlLaw::Bound, wild);
    assert!(!found.is_stable());
    assert_eq!(found.response.settling, None);
}
