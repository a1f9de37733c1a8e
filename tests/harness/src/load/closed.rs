//! Closed loops: clients that send the next request once they have an answer.
//!
//! Such a client sends less when the service is slow. So a closed loop is no measure of overload,
//! but it is the right model of a batch job that keeps a fixed number of requests in flight.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::join_all;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::record::Outcome;
use super::schedule::{Due, draw_type};
use super::sender::{Shared, one};
use super::spec::{Clients, LoadSpec};

/// Additional pause of a client whose request was not served. A refusal takes no time, so immediate
/// retries would flood the service.
const RETRY: Duration = Duration::from_millis(50);

/// The shared state of a load's clients.
struct Draw {
    next: Cell<u64>,
    rng: RefCell<SmallRng>,
}

/// Runs all clients to their end.
pub(super) async fn send(shared: &Rc<Shared>, spec: &LoadSpec, stop: &AtomicBool) {
    let draw = Draw {
        next: Cell::new(0),
        rng: RefCell::new(SmallRng::seed_from_u64(spec.seed)),
    };
    let groups = spec.clients.iter();
    let all = groups.flat_map(|group| std::iter::repeat_n(group, group.count));
    join_all(all.map(|group| client(shared, spec, group, &draw, stop))).await;
}

async fn client(
    shared: &Rc<Shared>,
    spec: &LoadSpec,
    group: &Clients,
    draw: &Draw,
    stop: &AtomicBool,
) {
    tokio::time::sleep_until((shared.start + group.from).into()).await;
    while shared.start.elapsed() < group.until && !stop.load(Ordering::Relaxed) {
        let due = draw.next(spec, shared.start.elapsed());
        {
            let mut recorder = super::lock(&shared.recorder);
            recorder.offer(&due, Duration::ZERO);
            shared.outstanding.set(shared.outstanding.get() + 1);
            recorder.max_outstanding = recorder.max_outstanding.max(shared.outstanding.get());
        }
        let served = match one(Rc::clone(shared), due).await {
            Outcome::Answered { status, .. } => status < 300,
            _ => false,
        };
        let pause = group.think + if served { Duration::ZERO } else { RETRY };
        if pause > Duration::ZERO {
            tokio::time::sleep(pause).await;
        }
    }
}

impl Draw {
    /// Returns a new request that is due now.
    fn next(&self, spec: &LoadSpec, at: Duration) -> Due {
        let seq = self.next.get();
        self.next.set(seq + 1);
        let total: f64 = spec.types.iter().map(|t| t.share).sum();
        let point = self.rng.borrow_mut().random_range(0.0..total);
        Due {
            at,
            kind: draw_type(spec, point),
            seq,
            attempt: 1,
            service: None,
        }
    }
}
