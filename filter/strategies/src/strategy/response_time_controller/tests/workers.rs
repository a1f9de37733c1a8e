//! One token bucket over several workers.

use proptest::prelude::*;

use super::*;

/// Returns the settings of a controller whose rate doesn't change.
fn fixed(rate: f64) -> ResponseTimeControllerConfig {
    ResponseTimeControllerConfig {
        min_rate: rate,
        max_rate: rate,
        ..settings()
    }
}

/// Sends arrivals to `workers`, and ticks each worker every `tick` ms. In each millisecond, the
/// workers that `arrivals` returns get a request. Returns the number of admitted requests for each
/// millisecond.
fn drive(
    workers: &mut [ResponseTimeController],
    (begin, end): (u64, u64),
    tick: u64,
    mut arrivals: impl FnMut(u64) -> Vec<usize>,
    record: &mut Record,
) -> Vec<usize> {
    let mut admitted = Vec::new();
    for now in begin..end {
        for (i, worker) in workers.iter_mut().enumerate() {
            if (now + 3 * i as u64).is_multiple_of(tick) {
                record.tick(worker, at(now));
            }
        }
        let to = arrivals(now);
        let count = to
            .into_iter()
            .filter(|&i| decide(&mut workers[i], at(now), 0));
        admitted.push(count.count());
    }
    admitted
}

#[test]
fn one_worker_has_a_token_bucket() {
    let mut worker = [controller(&fixed(20.0))];
    let mut record = Record::default();
    record.tick(&mut worker[0], at(0));
    // The full bucket has 1 + 20·0.1 tokens. After that there is one token in 50 ms, with or
    // without ticks.
    let admitted = drive(&mut worker, (0, 1_000), 100_000, |_| vec![0], &mut record);
    let times: Vec<usize> = (0..1_000).filter(|&i| admitted[i] > 0).collect();
    assert_eq!(times[..3], [0, 1, 2]);
    assert_eq!(times.len(), 22, "{times:?}");
    assert!(
        times[3..].windows(2).all(|w| w[1].abs_diff(w[0] + 50) <= 1),
        "{times:?}"
    );
    let ticked = drive(&mut worker, (1_000, 11_000), 10, |_| vec![0], &mut record);
    let total: usize = ticked.iter().sum();
    assert!((199..=201).contains(&total), "{total}");
}

#[test]
fn the_rate_follows_the_arrivals_to_another_worker() {
    let mut workers: Vec<_> = (0..4).map(|_| controller(&fixed(200.0))).collect();
    let mut record = Record::default();
    let total = |admitted: &[usize]| admitted.iter().sum::<usize>();
    let first = drive(&mut workers, (0, 2_000), 50, |_| vec![0; 2], &mut record);
    assert!((380..=425).contains(&total(&first)), "{}", total(&first));
    // In the second after the change, most of a second's tokens are spent. After that, all are
    // spent.
    let moved = drive(
        &mut workers,
        (2_000, 3_000),
        50,
        |_| vec![3; 2],
        &mut record,
    );
    assert!((150..=230).contains(&total(&moved)), "{}", total(&moved));
    let then = drive(
        &mut workers,
        (3_000, 5_000),
        50,
        |_| vec![3; 2],
        &mut record,
    );
    assert!((380..=420).contains(&total(&then)), "{}", total(&then));
}

#[test]
fn without_overload_no_worker_lacks_slots() {
    // The arrivals are a tenth of the rate, in bursts of 20. Each burst comes to another worker.
    let mut workers: Vec<_> = (0..8).map(|_| controller(&fixed(1_000.0))).collect();
    let mut record = Record::default();
    let burst = |now: u64| {
        let to = (now / 200 * 5 % 8) as usize;
        vec![to; if now.is_multiple_of(200) { 20 } else { 0 }]
    };
    let admitted = drive(&mut workers, (0, 10_000), 50, burst, &mut record);
    assert_eq!(admitted.iter().sum::<usize>(), 50 * 20);
}

proptest! {
    /// For any distribution of requests over workers and time, the process admits at most the rate
    /// plus the tokens in the workers' copies of the bucket. It admits at least the rate if all
    /// workers have requests.
    #[test]
    fn the_rate_is_kept_over_all_workers(
        rate in prop::sample::select(vec![0.5, 5.0, 50.0, 500.0]),
        workers in 1_usize..6,
        tick in prop::sample::select(vec![10_u64, 50]),
        spread in prop::collection::vec((0_usize..6, 0_usize..4, 1_u64..400), 1..40),
    ) {
        let mut all: Vec<_> = (0..workers).map(|_| controller(&fixed(rate))).collect();
        let mut record = Record::default();
        let (mut phase, mut left) = (0, spread[0].2);
        let arrivals = |_: u64| {
            if left == 0 {
                phase = (phase + 1) % spread.len();
                left = spread[phase].2;
            }
            left -= 1;
            vec![spread[phase].0 % workers; spread[phase].1]
        };
        let admitted: usize = drive(&mut all, (0, 8_000), tick, arrivals, &mut record).iter().sum();
        let most = rate * 8.0 + workers as f64 * bucket::depth(rate);
        prop_assert!(admitted as f64 <= most + 1.0, "{admitted} of {most}");
        // After that, all workers always have requests.
        let asked = drive(&mut all, (8_000, 24_000), tick, |_| (0..workers).collect(), &mut record);
        let later: usize = asked.iter().sum();
        let least = (rate * 16.0).min(16_000.0 * workers as f64) * 0.9;
        prop_assert!(
            later as f64 + workers as f64 * bucket::depth(rate) >= least,
            "{later} of {least}"
        );
    }
}
