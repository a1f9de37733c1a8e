//! The watched proxies, with their responses so far.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::client::About;
use super::history::History;
use super::sample::Sample;

/// Whether a proxy answers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Reach {
    /// It has not responded yet.
    #[default]
    Asked,
    /// It answers.
    Answers,
    /// It doesn't answer.
    Silent {
        /// The time of the first failure.
        since: Instant,
        /// The reason, in one line.
        why: String,
    },
}

/// A proxy.
#[derive(Debug, Clone, Default)]
pub struct Proxy {
    /// Its version and name, once they are known.
    pub about: About,
    /// Whether it answers.
    pub reach: Reach,
    /// Its answers.
    pub history: History,
}

/// All proxies, by place.
#[derive(Debug, Clone, Default)]
pub struct Fleet {
    /// By the name of its place.
    pub proxies: BTreeMap<String, Proxy>,
    window: Duration,
}

impl Fleet {
    /// Returns a fleet without proxies. Rates will be over `window`.
    #[must_use]
    pub fn new(window: Duration) -> Self {
        Self {
            proxies: BTreeMap::new(),
            window,
        }
    }

    /// Adds a proxy.
    pub fn add(&mut self, proxy: &str) {
        self.proxies.entry(proxy.to_owned()).or_default();
    }

    /// Records a response of a proxy, or the reason for its absence in one line. A response for a
    /// removed proxy is ignored.
    pub fn hear(&mut self, proxy: &str, at: Instant, answer: Result<Sample, String>) {
        let Some(proxy) = self.proxies.get_mut(proxy) else {
            return;
        };
        match answer {
            Ok(sample) => {
                proxy.reach = Reach::Answers;
                proxy.history.push(at, sample, self.window);
            }
            Err(why) => {
                let since = match &proxy.reach {
                    Reach::Silent { since, .. } => *since,
                    Reach::Asked | Reach::Answers => at,
                };
                proxy.reach = Reach::Silent { since, why };
            }
        }
    }

    /// Records a proxy's version and name.
    pub fn introduce(&mut self, proxy: &str, about: About) {
        if let Some(proxy) = self.proxies.get_mut(proxy) {
            proxy.about = about;
        }
    }

    /// Whether every proxy has answered twice, or failed to.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        let settled = |p: &Proxy| match p.reach {
            Reach::Silent { .. } => true,
            Reach::Answers => p.history.span().is_some_and(|s| s.before.is_some()),
            Reach::Asked => false,
        };
        self.proxies.values().all(settled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_has_a_beginning_and_an_end() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let mut fleet = Fleet::new(10 * second);
        fleet.hear("a", start, Ok(Sample::default()));
        assert!(fleet.proxies.is_empty(), "not added");
        fleet.add("a");
        assert!(!fleet.is_settled());
        fleet.hear("a", start, Err("x".into()));
        fleet.hear("a", start + second, Err("y".into()));
        let silent = Reach::Silent {
            since: start,
            why: "y".into(),
        };
        assert_eq!(fleet.proxies["a"].reach, silent);
        assert!(fleet.is_settled());
        fleet.hear("a", start + second, Ok(Sample::default()));
        assert!(!fleet.is_settled());
        fleet.hear("a", start + 2 * second, Ok(Sample::default()));
        assert!(fleet.is_settled());
        fleet.proxies.remove("a");
        fleet.hear("a", start, Ok(Sample::default()));
        assert!(fleet.proxies.is_empty());
    }
}
