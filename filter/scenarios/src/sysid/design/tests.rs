use super::*;

fn of_the_paper() -> (Plant, Gains) {
    let plant = Plant::new(vec![-0.003, -0.104], vec![0.015, 0.006]).unwrap();
    let gains = Gains {
        proportional: 2.77,
        integral: 5.28,
    };
    (plant, gains)
}

fn assert_poles(found: &[Complex64], expected: &[(f64, f64)], tolerance: f64) {
    assert_eq!(found.len(), expected.len());
    for (re, im) in expected {
        let pole = Complex64::new(*re, *im);
        let near = found.iter().any(|p| (p - pole).norm() < tolerance);
        assert!(near, "{pole} is not among {found:?}");
    }
}

/// The paper writes in §4: "The selected closed loop poles are −0.308 and 0.52 ± 0.106i. The
/// corresponding K_P = 2.77 and K_I = 5.28." With Eq. 6 as printed, these gains have other poles,
/// which are stable, too.
#[test]
fn gains_of_the_paper_do_not_give_its_poles_with_equation_6_as_printed() {
    let (plant, gains) = of_the_paper();
    let design = Design::of(&plant, ControlLaw::Bound, gains);
    assert_poles(
        &design.poles,
        &[(0.7353, 0.0), (0.0004, 0.405), (0.0004, -0.405)],
        1e-3,
    );
    assert!(design.is_stable());
}

/// The paper's poles are those of Eq. 6 with the opposite sign of 0.104, that is, with s(k) =
/// −0.003 s(k−1) + 0.104 s(k−2) + …. They agree within the precision of b₁ = 0.015 and b₂ = 0.006,
/// since half a unit of their last digit moves the imaginary part by 0.03.
#[test]
fn poles_of_the_paper_belong_to_the_other_sign_of_a_2() {
    let (_, gains) = of_the_paper();
    let plant = Plant::new(vec![-0.003, 0.104], vec![0.015, 0.006]).unwrap();
    let design = Design::of(&plant, ControlLaw::Bound, gains);
    assert_poles(
        &design.poles,
        &[(-0.308, 0.0), (0.52, 0.106), (0.52, -0.106)],
        0.025,
    );
}

/// With one more integration, the paper's gains hardly damp. A step overshoots by 100% and
/// oscillates for minutes, but Table 1 requires 25% and 10 s. So the paper's controller can't
/// integrate twice.
#[test]
fn taken_by_the_letter_equation_1_integrates_once_more_and_rings() {
    let (plant, gains) = of_the_paper();
    let design = Design::of(&plant, ControlLaw::Adjustment, gains);
    assert_eq!(design.poles.len(), 4);
    assert!((design.poles[0].norm() - 0.991).abs() < 1e-3);
    assert!(design.response.overshoot > 1.0);
    assert!(design.response.settling.is_some_and(|k| k > 200));
    let once = Design::of(&plant, ControlLaw::Bound, gains);
    assert!(once.response.overshoot < 0.25);
    assert!(once.response.settling.is_some_and(|k| k <= 15), "{once:?}");
}

#[test]
fn placed_poles_are_roots_of_the_closed_loop() {
    let (plant, _) = of_the_paper();
    for law in [ControlLaw::Bound, ControlLaw::Adjustment] {
        for pair in [
            [Complex64::new(0.6, 0.3), Complex64::new(0.6, -0.3)],
            [Complex64::new(0.8, 0.0), Complex64::new(0.3, 0.0)],
        ] {
            let gains = place(&plant, law, pair).unwrap();
            let poles = closed_loop(&plant, law, gains).roots();
            for pole in pair {
                let near = poles.iter().any(|p| (p - pole).norm() < 1e-8);
                assert!(near, "{pole} is not among {poles:?}");
            }
        }
    }
}

#[test]
fn a_design_goal_is_met_or_refused() {
    let (plant, _) = of_the_paper();
    let goal = Goal {
        overshoot: 0.25,
        settling: 10.0,
    };
    assert!((goal.pole().norm() - (-0.4_f64).exp()).abs() < 1e-12);
    let found = design(&plant, ControlLaw::Bound, goal).unwrap();
    assert!(found.meets(&goal) && found.gains.are_usable(), "{found:?}");
    for (overshoot, settling) in [(0.26, Some(10)), (0.25, Some(11)), (0.25, None)] {
        let response = Response {
            overshoot,
            settling,
        };
        let worse = Design {
            response,
            ..found.clone()
        };
        assert!(!worse.meets(&goal), "{response:?}");
    }
    let hasty = Goal {
        overshoot: 0.01,
        settling: 1.0,
    };
    assert!(matches!(
        design(&plant, ControlLaw::Bound, hasty),
        Err(DesignError::Unreachable { .. })
    ));
    let backwards = Plant::new(vec![0.5], vec![-1.0]).unwrap();
    assert_eq!(
        design(&backwards, ControlLaw::Bound, goal),
        Err(DesignError::NegativeGain(-2.0))
    );
    let none = Goal {
        overshoot: 0.0,
        settling: 10.0,
    };
    assert!(matches!(
        design(&plant, ControlLaw::Bound, none),
        Err(DesignError::Goal { .. })
    ));
}
