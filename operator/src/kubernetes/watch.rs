//! Follows the objects of one kind, as small plain values.
//!
//! The obvious tool, a reflector's store of whole objects, would keep megabytes of what nobody reads. Each
//! object is cut down to what a plan needs the moment it arrives, and what is kept is the caller's.

use std::fmt::Debug;
use std::time::Duration;

use futures::{StreamExt as _, pin_mut};
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{self, Config, Event};
use kube::runtime::{WatchStreamExt as _, watcher as watch_stream};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;
use tracing::{info, warn};

/// How long the API server lets one watch last. A connection that died without a word is noticed no later.
pub const WATCH_SECONDS: u32 = 60;
/// First pause after a failure.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
/// Longest pause after failures.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// What a watch tells.
#[derive(Debug, Clone, PartialEq)]
pub enum Seen<V> {
    /// All there is. What isn't in here is gone.
    All(Vec<V>),
    /// One is new or has changed.
    Applied(V),
    /// One is gone.
    Deleted(V),
    /// The watch failed and will be tried again.
    Failed {
        /// The API server knows no such kind.
        unknown_kind: bool,
    },
}

impl<V> Seen<V> {
    /// The same with other values.
    pub fn map<W>(self, f: impl FnMut(V) -> W) -> Seen<W> {
        let mut f = f;
        match self {
            Self::All(all) => Seen::All(all.into_iter().map(f).collect()),
            Self::Applied(v) => Seen::Applied(f(v)),
            Self::Deleted(v) => Seen::Deleted(f(v)),
            Self::Failed { unknown_kind } => Seen::Failed { unknown_kind },
        }
    }
}

/// Sends what `api` has and what becomes of it, until the receiver is gone. `read` cuts an object down.
///
/// After a failed watch that the API server can't resume, everything is listed again and told as
/// [`Seen::All`] at once, so nobody sees half a list.
pub async fn follow<K, V, M>(
    api: Api<K>,
    what: &'static str,
    read: impl Fn(K) -> V + Send,
    wrap: impl Fn(Seen<V>) -> M + Send,
    out: mpsc::Sender<M>,
) where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    V: Send,
    M: Send,
{
    let events = watch_stream(api, Config::default().timeout(WATCH_SECONDS))
        .backoff(Pauses::new(FIRST_PAUSE, LONGEST_PAUSE));
    pin_mut!(events);
    let mut listed: Vec<V> = Vec::new();
    let mut failing = false;
    while let Some(event) = events.next().await {
        if event.is_ok() && failing && !matches!(event, Ok(Event::Init)) {
            failing = false;
            info!(resource = what, "the watch is back");
        }
        let seen = match event {
            Ok(Event::Init) => {
                listed.clear();
                continue;
            }
            Ok(Event::InitApply(object)) => {
                listed.push(read(object));
                continue;
            }
            Ok(Event::InitDone) => Seen::All(std::mem::take(&mut listed)),
            Ok(Event::Apply(object)) => Seen::Applied(read(object)),
            Ok(Event::Delete(object)) => Seen::Deleted(read(object)),
            Err(error) => {
                let unknown_kind = is_unknown_kind(&error);
                if !failing && !unknown_kind {
                    warn!(
                        resource = what,
                        "the watch failed; what was seen stays in force and it is tried again: {error}"
                    );
                }
                failing |= !unknown_kind;
                Seen::Failed { unknown_kind }
            }
        };
        if out.send(wrap(seen)).await.is_err() {
            return;
        }
    }
}

fn is_unknown_kind(error: &watcher::Error) -> bool {
    matches!(
        error,
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status)) if status.code == 404
    )
}

/// Pauses that double, each shortened by a random part of up to a half: a thousand clients that lost one
/// API server must not come back at the same moment.
#[derive(Debug, Clone)]
pub struct Pauses {
    first: Duration,
    longest: Duration,
    next: Duration,
}

impl Pauses {
    /// Pauses from `first` to `longest`.
    #[must_use]
    pub fn new(first: Duration, longest: Duration) -> Self {
        Self {
            first,
            longest,
            next: first,
        }
    }
}

impl Iterator for Pauses {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let pause = self.next.min(self.longest);
        self.next = pause.saturating_mul(2);
        Some(shortened(pause, random()))
    }
}

impl Backoff for Pauses {
    fn reset(&mut self) {
        self.next = self.first;
    }
}

/// `pause` without up to a half of it, as `random` has it.
fn shortened(pause: Duration, random: u64) -> Duration {
    let part = (random % 1_024) as u32;
    pause - pause / 2 * part / 1_024
}

/// A number that differs between processes and calls; good enough to spread retries.
pub(crate) fn random() -> u64 {
    use std::hash::{BuildHasher as _, Hasher as _, RandomState};
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_start_again() {
        let (first, longest) = (Duration::from_millis(100), Duration::from_millis(300));
        let mut pauses = Pauses::new(first, longest);
        for full in [100, 200, 300, 300] {
            let pause = pauses.next().unwrap().as_millis();
            assert!((full / 2..=full).contains(&pause), "{pause} of {full}");
        }
        pauses.reset();
        assert!(pauses.next().unwrap() <= first);
    }

    #[test]
    fn a_pause_is_shortened_by_less_than_half() {
        let pause = Duration::from_millis(1_024);
        assert_eq!(shortened(pause, 0), pause);
        assert!(shortened(pause, 1_023) > pause / 2);
        assert_eq!(shortened(pause, 512), Duration::from_millis(768));
    }
}
