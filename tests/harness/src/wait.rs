//! Waiting for a condition. Tests never sleep for a fixed time and hope; they wait until something is so, and fail with
//! what was so instead when the deadline passes.

use std::fs::File;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// How long a condition may take to become true before a test fails. Far above what any should need, since a slow
/// machine is no bug.
pub const DEADLINE: Duration = Duration::from_secs(20);

/// Asks again and again, with growing pauses of 1 to 50 ms, until `probe` gives a value.
///
/// # Errors
/// If it doesn't within [`DEADLINE`]: `what`, and the reason that `probe` gave last.
pub fn until<T>(what: &str, probe: impl FnMut() -> Result<T, String>) -> Result<T> {
    until_within(DEADLINE, what, probe)
}

/// As [`until`], with a deadline of its own.
///
/// # Errors
/// As [`until`].
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

/// As [`until`], for a condition without a value.
///
/// # Errors
/// As [`until`].
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) -> Result<()> {
    until(what, || {
        if condition() {
            Ok(())
        } else {
            Err("not so".to_owned())
        }
    })
}

/// Held by whoever runs a real system: two at once on a small machine would disturb each other's queues. Where
/// `HEADGATE_MACHINE` is `shared`, the tests judge no load and bear others like them beside them.
#[derive(Debug)]
pub struct MachineLock {
    _file: File,
}

/// Waits until no other process on this machine holds the lock, or only those that share it.
///
/// # Errors
/// If the lock file in the temporary directory can't be opened or locked.
pub fn lock_machine() -> Result<MachineLock> {
    let path = std::env::temp_dir().join("headgate-tests.lock");
    // Who comes second may be another user, who can read it.
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
