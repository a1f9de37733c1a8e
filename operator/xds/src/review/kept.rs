//! A cache of the API server's answers about tokens. It stores hashes instead of tokens.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sha2::{Digest as _, Sha256};

use crate::quota::{Quota, Slot};

/// The SHA-256 of a token, or of a token and a path.
pub(super) type Key = [u8; 32];

/// Returns the key of `text`.
pub(super) fn key(text: &str) -> Key {
    Sha256::digest(text).into()
}

/// A cache of answers with an expiry. Their number is bounded, in total and for each owner.
#[derive(Debug)]
pub(super) struct Kept<T> {
    answers: Mutex<HashMap<Key, KeptAnswer<T>>>,
    shares: Quota<String>,
}

#[derive(Debug)]
struct KeptAnswer<T> {
    answer: T,
    until: Instant,
    _share: Slot,
}

impl<T: Clone> Kept<T> {
    /// Returns a cache of at most `max` answers, and at most `max_each` of one owner. Further
    /// answers aren't cached.
    pub(super) fn new(max: usize, max_each: usize) -> Self {
        let shares = Quota::new(max, max_each);
        let answers = Mutex::default();
        Self { answers, shares }
    }

    /// Returns the cached answer for `key`, if it is valid at `now`.
    pub(super) fn get(&self, key: &Key, now: Instant) -> Option<T> {
        let answers = self.lock();
        let found = answers.get(key)?;
        (now < found.until).then(|| found.answer.clone())
    }

    /// Caches `answer`, which belongs to `owner`, for `time`.
    pub(super) fn keep(&self, key: Key, owner: &str, answer: T, now: Instant, time: Duration) {
        let mut answers = self.lock();
        answers.remove(&key);
        let take = || self.shares.take(owner.to_owned(), 1);
        let share = take().or_else(|_| {
            answers.retain(|_, answer| now < answer.until);
            take()
        });
        if let Ok(_share) = share {
            let until = now + time;
            let answer = KeptAnswer {
                answer,
                until,
                _share,
            };
            answers.insert(key, answer);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, KeptAnswer<T>>> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIME: Duration = Duration::from_secs(60);

    #[test]
    fn an_answer_counts_for_a_while() {
        let (kept, now) = (Kept::new(2, 2), Instant::now());
        kept.keep(key("a"), "", 1, now, TIME);
        let almost = now + TIME - Duration::from_millis(1);
        assert_eq!(kept.get(&key("a"), almost), Some(1));
        assert_eq!(kept.get(&key("a"), now + TIME), None);
        assert_eq!(kept.get(&key("b"), now), None);
    }

    #[test]
    fn answers_are_bounded_and_those_that_ended_make_room() {
        let (kept, now) = (Kept::new(2, 2), Instant::now());
        for name in ["a", "b", "c"] {
            kept.keep(key(name), "", name, now, TIME);
        }
        assert_eq!(kept.lock().len(), 2);
        assert_eq!(kept.get(&key("c"), now), None);
        kept.keep(key("a"), "", "again", now, TIME);
        assert_eq!(kept.get(&key("a"), now), Some("again"), "full, but its own");
        kept.keep(key("c"), "", "c", now + TIME, TIME);
        assert_eq!(kept.get(&key("c"), now + TIME), Some("c"));
        assert_eq!(kept.lock().len(), 1);
    }

    #[test]
    fn an_owner_takes_no_more_than_its_share() {
        let (kept, now) = (Kept::new(4, 2), Instant::now());
        for number in 0..9 {
            kept.keep(key(&number.to_string()), "a", number, now, TIME);
        }
        assert_eq!(kept.lock().len(), 2);
        kept.keep(key("b"), "b", 0, now, TIME);
        assert_eq!(kept.get(&key("b"), now), Some(0));
        kept.keep(key("later"), "a", 1, now + TIME, TIME);
        assert_eq!(kept.get(&key("later"), now + TIME), Some(1));
    }
}
