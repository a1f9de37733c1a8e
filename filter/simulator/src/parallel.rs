//! Independent jobs on several threads.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::simulation::SimulationError;

/// Runs `jobs` jobs, numbered from 0, and returns their results in this order, independent of
/// threads and timing.
///
/// # Errors
/// The error of the first failed job, in this order. After an error, jobs that have not begun may
/// be skipped.
pub(crate) fn in_parallel<T: Send>(
    threads: Option<NonZeroUsize>,
    jobs: usize,
    job: impl Fn(usize) -> Result<T, SimulationError> + Sync,
) -> Result<Vec<T>, SimulationError> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut results = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            if at >= jobs {
                return results;
            }
            let result = job(at);
            if result.is_err() {
                next.store(jobs, Ordering::Relaxed);
            }
            results.push((at, result));
        }
    };
    let threads = threads
        .or_else(|| thread::available_parallelism().ok())
        .map_or(1, NonZeroUsize::get);
    let results = thread::scope(|scope| {
        let threads: Vec<_> = (0..threads.min(jobs)).map(|_| scope.spawn(work)).collect();
        let results = threads.into_iter().map(|thread| thread.join());
        results.collect::<Result<Vec<_>, _>>()
    });
    let results = results.map_err(|_| SimulationError::Lost)?;
    let mut results: Vec<_> = results.into_iter().flatten().collect();
    results.sort_unstable_by_key(|(at, _)| *at);
    results.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_order_and_the_error_that_explains_comes_first() {
        let squares =
            |threads| in_parallel(NonZeroUsize::new(threads), 50, |at| Ok(at * at)).unwrap();
        assert_eq!(squares(1), squares(7));
        let failing = in_parallel(NonZeroUsize::new(3), 50, |at| match at {
            20 => Err(SimulationError::Results("20".into())),
            at => Ok(at),
        });
        assert_eq!(
            failing.unwrap_err().to_string(),
            "results can't be kept: 20"
        );
        assert!(in_parallel(None, 0, Ok).unwrap().is_empty());
    }
}
