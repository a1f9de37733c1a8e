//! Requests that wait in Headgate's queue in a known order of arrival, on connections of all
//! workers. Tests of the order of service use them.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};

use super::Rig;
use crate::http::Pending;
use crate::wait;

/// Time between two arrivals. If requests arrive within 1 ms of each other, workers serve them in
/// either order.
const APART: Duration = Duration::from_millis(2);

/// A request that waits in the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiter {
    /// The path of the request, a `GET`.
    pub path: &'static str,
    /// The headers of the request.
    pub headers: Vec<(&'static str, String)>,
}

/// Requests that wait for slots, while all slots are in use. Dropping this value closes their
/// connections.
#[derive(Debug)]
pub struct Lineup {
    held: Vec<Pending>,
    waiting: Vec<Pending>,
    costs_us: Vec<u64>,
}

impl Rig {
    /// Occupies all `slots` with requests that don't end, then sends `waiters` one by one. Each is
    /// sent when the one before is in the queue.
    ///
    /// # Errors
    /// If a request isn't queued, or all requests wait on one worker.
    /// [`RigBuilder::balanced`](super::RigBuilder::balanced) prevents the latter.
    pub fn line_up(&self, slots: usize, waiters: &[Waiter]) -> Result<Lineup> {
        self.wait_until_idle()?;
        self.backend.reset();
        let held = self.occupy("/held", slots)?;
        let held_by_worker = self.connections_by_worker()?;
        let mut lineup = Lineup {
            held,
            waiting: Vec::with_capacity(waiters.len()),
            costs_us: Vec::with_capacity(waiters.len()),
        };
        let mut work_us = 0;
        for (seq, waiter) in waiters.iter().enumerate() {
            let number = seq.to_string();
            let mut headers = vec![("x-seq", number.as_str())];
            headers.extend(waiter.headers.iter().map(|(n, v)| (*n, v.as_str())));
            let sent = Instant::now();
            let pending = self.request(waiter.path, &headers)?;
            lineup.waiting.push(pending);
            self.wait_for_stat("queue_length", seq as u64 + 1)?;
            let now_us = wait::until("the work of the request that was queued", || {
                // The filter publishes the work after the length.
                match self.policy_stat("queued_work_us") {
                    Ok(now) if now > work_us => Ok(now),
                    Ok(now) => Err(format!("queued_work_us = {now}, as before")),
                    Err(error) => Err(error.to_string()),
                }
            })?;
            lineup.costs_us.push(now_us - work_us);
            work_us = now_us;
            wait::wait_until("a later time of arrival", || sent.elapsed() >= APART)?;
        }
        let by_worker = self.connections_by_worker()?;
        let waiting = by_worker.iter().zip(&held_by_worker);
        ensure!(
            waiting.filter(|(now, held)| now > held).count() > 1,
            "connections by worker: {held_by_worker:?}, then {by_worker:?}; on one worker an order \
             shows little"
        );
        Ok(lineup)
    }
}

impl Rig {
    /// Serves requests of types with different service times, from the shortest to the longest,
    /// `count` of each at once, until all workers know the types' own mean processing times.
    ///
    /// # Errors
    /// If the workers don't learn them.
    pub fn learn(&self, slots: usize, paths: &[&'static str], count: usize) -> Result<()> {
        const ROUNDS: usize = 20;
        // Each path has two probes, one on each worker.
        let probes: Vec<Waiter> = paths
            .iter()
            .flat_map(|path| [Waiter::at(path), Waiter::at(path)])
            .collect();
        let mut seen = Vec::new();
        for _ in 0..ROUNDS {
            for path in paths {
                for pending in self.send(path, count)? {
                    let answer = pending.answer()?;
                    ensure!(answer.status == 200, "{path}: {answer:?}");
                }
            }
            let lineup = self.line_up(slots, &probes)?;
            seen = lineup.costs_us().to_vec();
            lineup.withdraw(self)?;
            // The estimate of an unknown type is the mean of all types. Such estimates are not in
            // order.
            let in_order = seen.chunks(2).is_sorted_by(|a, b| {
                let (slowest, fastest) = (a.iter().max(), b.iter().min());
                slowest.zip(fastest).is_some_and(|(a, b)| 3 * a < 2 * b)
            });
            if in_order {
                return Ok(());
            }
        }
        bail!("after {ROUNDS} rounds the workers take the types to cost {seen:?} µs")
    }
}

impl Waiter {
    /// Returns a request without headers.
    pub fn at(path: &'static str) -> Self {
        Self {
            path,
            headers: Vec::new(),
        }
    }

    /// Returns the request with an additional header.
    #[must_use]
    pub fn header(mut self, name: &'static str, value: &str) -> Self {
        self.headers.push((name, value.to_owned()));
        self
    }
}

impl Lineup {
    /// Returns the work that each request added to the queue, µs. It is the mean processing time of
    /// the request's type, as estimated when the request was queued.
    pub fn costs_us(&self) -> &[u64] {
        &self.costs_us
    }

    /// Frees the slots and returns the numbers of the waiters in the order in which they reached
    /// the backend.
    ///
    /// # Errors
    /// If a request isn't served.
    pub fn release(self, rig: &Rig) -> Result<Vec<usize>> {
        rig.backend.release();
        for pending in self.held.into_iter().chain(self.waiting) {
            let answer = pending.answer()?;
            ensure!(answer.status == 200, "{answer:?}");
        }
        let order = rig.backend.arrivals();
        order.iter().map(|a| Ok(usize::try_from(a.seq)?)).collect()
    }

    /// Closes the connections of all waiting requests, so that none of them is served, and frees
    /// the slots.
    ///
    /// # Errors
    /// If a request stays in the queue.
    pub fn withdraw(self, rig: &Rig) -> Result<()> {
        drop(self.waiting);
        rig.wait_for_stat("queue_length", 0)?;
        rig.backend.release();
        for pending in self.held {
            let answer = pending.answer()?;
            ensure!(answer.status == 200, "{answer:?}");
        }
        rig.wait_until_idle()
    }
}

/// Returns Kendall's distance between two orders of the same numbers: the number of pairs that are
/// in opposite order.
pub fn inversions(a: &[usize], b: &[usize]) -> usize {
    let places = |order: &[usize]| {
        let mut places = vec![0; order.len()];
        order.iter().enumerate().for_each(|(at, &n)| places[n] = at);
        places
    };
    let (a, b) = (places(a), places(b));
    let pairs = (0..a.len()).flat_map(|i| (0..i).map(move |j| (i, j)));
    pairs
        .filter(|&(i, j)| (a[i] < a[j]) != (b[i] < b[j]))
        .count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inversions_count_pairs() {
        assert_eq!(inversions(&[0, 1, 2], &[0, 1, 2]), 0);
        assert_eq!(inversions(&[0, 1, 2], &[1, 0, 2]), 1);
        assert_eq!(inversions(&[0, 1, 2, 3], &[3, 2, 1, 0]), 6);
    }
}
