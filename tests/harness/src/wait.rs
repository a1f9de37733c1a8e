//! Waits for conditions. Instead of sleeping for a fixed time, a test waits until a condition
//! holds. If the deadline passes first, the error contains the actual state.

use std::fs::File;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// The time after which a test fails if a condition doesn't hold. It is far longer than any
/// condition should need, because a slow machine is no bug: three API servers that start at once
/// on two cores beside other tests need more than 20 s to serve Istio's CRDs.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// Calls `probe` repeatedly, with growing pauses of 1 to 50 ms, until it returns a value.
///
/// # Errors
/// If `probe` returns no value within [`DEADLINE`]. The error contains `what`, and the last reason
/// that `probe` returned.
pub fn until<T>(what: &str, probe: impl FnMut() -> Result<T, String>) -> Result<T> {
    until_within(DEADLINE, what, probe)
}

/// Waits as [`until`] does, with another deadline.
///
/// # Errors
/// The errors of [`until`].
pub fn until_within<T>(
    deadline: Duration,
    what: &str,
    mut probe: impl FnMut() -> Result<T, String>,
) -> Result<T> {
    let started = Instant::now();
    let mut pause = Duration::from_millis(1);
    loop {
        match probe() {
            Ok(value) => return Ok(value),
            Err(reason) if started.elapsed() >= deadline => {
                bail!("waited {deadline:?} for {what}; still: {reason}");
            }
            Err(_) => std::thread::sleep(pause),
        }
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}

/// Waits as [`until`] does, for a condition without a value.
///
/// # Errors
/// The errors of [`until`].
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) -> Result<()> {
    until(what, || {
        if condition() {
            Ok(())
        } else {
            Err("not so".to_owned())
        }
    })
}

/// A lock on the machine. Each run of a real system holds it, because two runs on a small machine
/// would disturb each other's queues. If `HEADGATE_MACHINE` is `shared`, tests don't judge load,
/// and several runs may hold the lock.
#[derive(Debug)]
pub struct MachineLock {
    _file: File,
}

/// Waits for the lock on the machine and takes it. With `HEADGATE_MACHINE=shared`, other processes
/// may share the lock.
///
/// # Errors
/// If the lock file in the temporary directory can't be opened or locked.
pub fn lock_machine() -> Result<MachineLock> {
    let path = std::env::temp_dir().join("headgate-tests.lock");
    // The lock file may belong to another user. Then this process can only read it.
    let create = |_| {
        let mut options = File::options();
        options.create(true).truncate(false).write(true).open(&path)
    };
    let file = File::open(&path).or_else(create);
    let file = file.with_context(|| format!("cannot open {}", path.display()))?;
    let shared = std::env::var_os("HEADGATE_MACHINE").is_some_and(|machine| machine == "shared");
    let locked = if shared {
        file.lock_shared()
    } else {
        file.lock()
    };
    locked.with_context(|| format!("cannot lock {}", path.display()))?;
    Ok(MachineLock { _file: file })
}
