//! Sleeping with an error far below a millisecond.
//!
//! Tokio's timers have a granularity of 1 ms, and the kernel delays an ordinary thread's timers by
//! up to 50 µs (its *timer slack*) to merge wake-ups. Service times of 380 µs and arrivals 300 µs
//! apart need better. A thread may set its slack to 1 ns; then a plain blocking sleep ends about 10
//! µs late. So nothing here spins, and the two threads that keep time (one in the backend, one in
//! the load generator) cost only their wake-ups.

use std::num::NonZeroU64;
use std::thread;
use std::time::{Duration, Instant};

/// Gives the calling thread exact timers. Threads it starts inherit them. A kernel that refuses
/// leaves the default slack of 50 µs, which the reported lateness then shows.
pub fn make_precise() {
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
}

/// Sleeps until `deadline`; returns at once if it has passed.
pub fn sleep_until(deadline: Instant) {
    let left = deadline.saturating_duration_since(Instant::now());
    if left > Duration::ZERO {
        thread::sleep(left);
    }
}
