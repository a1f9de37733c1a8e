use super::*;

fn sample(times: &ServiceTime) -> Vec<f64> {
    let mut dice = Dice::new(7);
    let mut drawn: Vec<f64> = (0..200_000)
        .map(|_| times.draw(&mut dice) as f64 / 1e6)
        .collect();
    drawn.sort_by(f64::total_cmp);
    drawn
}

fn mean(drawn: &[f64]) -> f64 {
    drawn.iter().sum::<f64>() / drawn.len() as f64
}

fn quantile(drawn: &[f64], q: f64) -> f64 {
    drawn[(drawn.len() as f64 * q) as usize]
}

#[test]
fn drawn_service_times_have_the_given_mean() {
    for times in [
        ServiceTime::Constant(3.0),
        ServiceTime::Exponential(3.0),
        LogNormal::new(3.0, 1.5).unwrap().into(),
        LogNormal::by_mean_and_p90(3.0, 6.0).unwrap().into(),
        LogNormal::by_median_and_p90(3.0, 9.0).unwrap().into(),
        ServiceTime::Hyperexponential(Branches::new(&[(9.0, 1.0), (1.0, 20.0)]).unwrap()),
        ServiceTime::Pareto(Pareto::new(3.0, 2.5).unwrap()),
        ServiceTime::Empirical(Empirical::of_values(&[1.0, 2.0, 9.0]).unwrap()),
        ServiceTime::Empirical(
            Empirical::of_histogram(&[(2.0, 5.0), (4.0, 0.0), (10.0, 5.0)]).unwrap(),
        ),
    ] {
        let drawn = mean(&sample(&times));
        let error = (drawn / times.mean_ms() - 1.0).abs();
        assert!(error < 0.03, "{times}: {drawn}");
    }
}

#[test]
fn lognormal_times_have_the_percentiles_they_were_made_by() {
    let by_mean = LogNormal::by_mean_and_p90(3.0, 6.0).unwrap();
    let by_median = LogNormal::by_median_and_p90(3.0, 9.0).unwrap();
    for (times, p90) in [(by_mean, 6.0), (by_median, 9.0)] {
        assert!((times.p90_ms() / p90 - 1.0).abs() < 1e-9);
        let drawn = sample(&times.into());
        assert!((quantile(&drawn, 0.9) / p90 - 1.0).abs() < 0.02);
        assert!((quantile(&drawn, 0.5) / times.median_ms() - 1.0).abs() < 0.02);
    }
    let again = LogNormal::by_median_and_p90(by_mean.median_ms(), by_mean.p90_ms()).unwrap();
    assert!((again.mean_ms() - 3.0).abs() < 1e-9);
}

#[test]
fn measured_times_come_back() {
    let drawn = sample(&ServiceTime::Empirical(
        Empirical::of_values(&[4.0, 1.0, 1.0, 2.0]).unwrap(),
    ));
    assert_eq!((drawn[0], drawn[drawn.len() - 1]), (1.0, 4.0));
    let ones = drawn.iter().filter(|t| **t == 1.0).count() as f64;
    assert!((ones / drawn.len() as f64 - 0.5).abs() < 0.01);
}

#[test]
fn a_tail_without_an_end_is_cut_at_a_day() {
    let times = ServiceTime::Pareto(Pareto::new(1e6, 1.000_1).unwrap());
    assert!(sample(&times).iter().all(|ms| *ms <= LONGEST_MS));
}

#[test]
fn impossible_distributions_are_refused() {
    for (mean, median) in [(1.0, 2.0), (0.0, 0.0), (f64::NAN, 1.0), (1.0, -1.0)] {
        assert!(LogNormal::new(mean, median).is_err(), "{mean} {median}");
    }
    for (mean, p90) in [(1.0, 2.4), (1.0, 0.9), (0.0, 0.0), (f64::NAN, 1.0)] {
        assert!(
            LogNormal::by_mean_and_p90(mean, p90).is_err(),
            "{mean} {p90}"
        );
    }
    assert!(LogNormal::by_median_and_p90(2.0, 1.0).is_err());
    assert!(Pareto::new(1.0, 1.0).is_err());
    assert!(Branches::new(&[]).is_err());
    assert!(Branches::new(&[(1.0, 0.0)]).is_err());
    assert!(Empirical::of_values(&[]).is_err());
    assert!(Empirical::of_values(&[0.0]).is_err());
    assert!(Empirical::of_values(&[-1.0, 5.0]).is_err());
    assert!(Empirical::of_histogram(&[(2.0, 1.0), (1.0, 1.0)]).is_err());
}
