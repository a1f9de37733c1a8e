//! Sleeping with an error far below a millisecond.
//!
//! Tokio's timers have a granularity of 1 ms, and the kernel delays an ordinary thread's timers by
//! up to 50 µs (its *timer slack*) to merge wake-ups. Service times of 380 µs and arrivals 300 µs
//! apart need a smaller error. A thread may set its slack to 1 ns, and a plain blocking sleep then
//! ends about 10 µs late. So no thread has to spin, and the two threads that keep time (one in the
//! backend, one in the load generator) cost only their wake-ups.

use std::num::NonZeroU64;
use std::thread;
use std::time::{Duration, Instant};

/// Gives the calling thread exact timers. Threads that it starts inherit them. If the kernel
/// refuses, the default slack of 50 µs stays, and the reported lateness shows it.
pub fn make_precise() {
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
}

/// Sleeps until `deadline`. Returns at once if the deadline has passed.
pub fn sleep_until(deadline: Instant) {
    let left = deadline.saturating_duration_since(Instant::now());
    if left > Duration::ZERO {
        thread::sleep(left);
    }
}
