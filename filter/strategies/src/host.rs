//! The state that decisions share with other workers of the process ([`Shared`]), which the host
//! keeps.
//!
//! Envoy runs one WebAssembly VM per worker thread, and every decision needs the state of the whole
//! process. Three facilities of Envoy cross threads. Gauges are process-wide atomic numbers, shared
//! data is blobs with compare-and-swap, and shared queues can wake another worker. `Shared` has
//! these three and nothing more.

use std::time::Duration;

/// The id of a number, from [`Shared::number`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Number(pub u32);

/// The version of a blob in [`Shared::load`] and [`Shared::store`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Version(pub u32);

/// The reason why a host call failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HostError {
    /// The blob changed since it was loaded. The caller must load it again and retry.
    #[error("shared data changed since it was read")]
    Conflict,
    /// Gauges include the values of another process.
    #[error(
        "gauges include the values of the Envoy process before this one: start Envoy with \
         --skip-hot-restart-parent-stats or --disable-hot-restart"
    )]
    HotRestart,
    /// The host refused the call.
    #[error("host call {call} failed with status {status}")]
    Call {
        /// The call, e.g. `proxy_increment_metric`.
        call: &'static str,
        /// The status code of proxy-wasm.
        status: u32,
    },
}

/// State shared by all workers of one process. No call panics.
pub trait Shared {
    /// Returns the offset from this process's clock to a clock that all processes share, or zero
    /// without such a clock.
    fn wall_clock_offset(&self) -> Duration;

    /// Returns the id of the number `name`. The number's value is 0 at first. The same name gives
    /// the same number in every worker.
    ///
    /// # Errors
    /// [`HostError::Call`] when the host refuses the name.
    fn number(&self, name: &str) -> Result<Number, HostError>;

    /// Adds `delta` to a number atomically.
    ///
    /// # Errors
    /// [`HostError::Call`] for an unknown number.
    fn add_to(&self, number: Number, delta: i64) -> Result<(), HostError>;

    /// Sets a number.
    ///
    /// # Errors
    /// [`HostError::Call`] for an unknown number.
    fn set(&self, number: Number, value: u64) -> Result<(), HostError>;

    /// Reads a number.
    ///
    /// # Errors
    /// [`HostError::Call`] for an unknown number.
    fn get(&self, number: Number) -> Result<u64, HostError>;

    /// Loads a blob with its version. Returns `None` if the blob was never stored.
    ///
    /// # Errors
    /// [`HostError::Call`] when the host refuses.
    fn load(&self, key: &str) -> Result<Option<(Vec<u8>, Version)>, HostError>;

    /// Stores a blob if it still has the version that [`Shared::load`] returned, or with `None` if
    /// it is still absent. There is no unconditional store, because it would overwrite another
    /// worker's value.
    ///
    /// # Errors
    /// [`HostError::Conflict`] when the blob is not as expected, and [`HostError::Call`] when the
    /// host refuses.
    fn store(&self, key: &str, value: &[u8], expected: Option<Version>) -> Result<(), HostError>;

    /// Wakes worker `worker`, so that it soon gives free slots to requests that wait there. If the
    /// wake-up is lost, the worker's next tick replaces it.
    ///
    /// # Errors
    /// [`HostError::Call`] when that worker has ended.
    fn wake(&self, worker: u32) -> Result<(), HostError>;
}
