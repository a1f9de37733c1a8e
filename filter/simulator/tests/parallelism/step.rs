//! Steps from a calm load to an overload, with P found.

use std::cell::Cell;

use crate::service::network::Resource;
use crate::service::paced::Paced;
use crate::service::{Found, Kind, NATURAL, PAPER, PAPER_NATURAL, Peak, Service, UNFILTERED};
use crate::{CORES, SLEEP};

fn run(service: &Service, slots: Option<u32>) -> (u32, Found) {
    let most = Cell::new(0);
    let backend = Peak::new(Paced::new(service.network(), &[], &[]), &most);
    let found = service.run_on(slots, backend);
    (most.get(), found)
}

/// A name, the types, the workers, the steps, the capacity, and the least allowed goodput with P
/// found, relative to the goodput with P given.
type Row = (
    &'static str,
    &'static [Kind],
    u32,
    &'static [(f64, Resource)],
    f64,
    f64,
);
const ROWS: &[Row] = &[
    (
        "20 workers, own objectives",
        PAPER_NATURAL,
        20,
        SLEEP,
        20.0,
        0.88,
    ),
    ("16 workers, natural", NATURAL, 16, SLEEP, 16.0, 0.935),
    ("16 workers, paper", PAPER, 16, SLEEP, 16.0, 0.925),
    ("4 cores, natural", NATURAL, u32::MAX, CORES, 4.0, 0.86),
];

/// After 3 s at 0.6 of the capacity, P found is compared with P given for 5 s. The number of
/// requests that the backend has before P is limited is bounded, relative to the number without a
/// filter.
#[test]
fn a_step_to_overload_keeps_most_of_the_goodput() {
    for &(name, kinds, workers, steps, capacity, least) in ROWS {
        for load in [1.5, 2.0, 3.0] {
            let (mut good, mut most) = ([0.0; 2], [0; 2]);
            for seed in 0..8 {
                let service = Service {
                    load,
                    calm: 3,
                    seconds: 8,
                    warm_up: 3,
                    seed,
                    shed_by_value: true,
                    ..Service::new(kinds, workers, steps, capacity)
                };
                let (peak, found) = run(&service, None);
                good[0] += found.goodput;
                good[1] += service.run(Some(capacity as u32)).goodput;
                most[0] += peak;
                most[1] += run(&service, Some(UNFILTERED)).0;
            }
            let part = good[0] / good[1];
            let peak = f64::from(most[0]) / f64::from(most[1]);
            println!("{name} at {load}: {part:.3} of P given, {peak:.3} of the peak");
            assert!(part >= least, "{name} at {load}: {part:.3}");
            assert!(peak <= 0.25, "{name} at {load}: {peak:.3} of the peak");
        }
    }
}
