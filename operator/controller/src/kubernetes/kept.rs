//! A cache of the API server's answers about tokens. It doesn't keep the tokens themselves.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sha2::{Digest as _, Sha256};

/// The SHA-256 of a token, or of a token and a path.
pub(super) type Key = [u8; 32];

/// Returns the key of `text`.
pub(super) fn key(text: &str) -> Key {
    Sha256::digest(text).into()
}

/// A bounded number of answers, each with its expiry.
#[derive(Debug)]
pub(super) struct Kept<T> {
    answers: Mutex<HashMap<Key, (T, Instant)>>,
    max: usize,
}

impl<T: Clone> Kept<T> {
    /// Returns a cache of at most `max` answers. Further ones aren't kept.
    pub(super) fn new(max: usize) -> Self {
        let answers = Mutex::default();
        Self { answers, max }
    }

    /// Returns the answer for `key`, if it is valid at `now`.
    pub(super) fn get(&self, key: &Key, now: Instant) -> Option<T> {
        let answers = self.lock();
        let (answer, until) = answers.get(key)?;
        (now < *until).then(|| answer.clone())
    }

    /// Keeps `answer` for `time`.
    pub(super) fn keep(&self, key: Key, answer: T, now: Instant, time: Duration) {
        let mut answers = self.lock();
        if answers.len() >= self.max && !answers.contains_key(&key) {
            answers.retain(|_, (_, until)| now < *until);
        }
        if answers.len() < self.max || answers.contains_key(&key) {
            answers.insert(key, (answer, now + time));
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, (T, Instant)>> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIME: Duration = Duration::from_secs(60);

    #[test]
    fn an_answer_counts_for_a_while() {
        let (kept, now) = (Kept::new(2), Instant::now());
        kept.keep(key("a"), 1, now, TIME);
        let almost = now + TIME - Duration::from_millis(1);
        assert_eq!(kept.get(&key("a"), almost), Some(1));
        assert_eq!(kept.get(&key("a"), now + TIME), None);
        assert_eq!(kept.get(&key("b"), now), None);
    }

    #[test]
    fn answers_are_bounded_and_those_that_ended_make_room() {
        let (kept, now) = (Kept::new(2), Instant::now());
        for name in ["a", "b", "c"] {
            kept.keep(key(name), name, now, TIME);
        }
        assert_eq!(kept.lock().len(), 2);
        assert_eq!(kept.get(&key("c"), now), None);
        kept.keep(key("a"), "again", now, TIME);
        assert_eq!(kept.get(&key("a"), now), Some("again"), "full, but its own");
        kept.keep(key("c"), "c", now + TIME, TIME);
        assert_eq!(kept.get(&key("c"), now + TIME), Some("c"));
        assert_eq!(kept.lock().len(), 1);
    }
}
