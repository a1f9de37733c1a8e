//! The proxies that are looked at, with what each has answered so far.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::client::About;
use super::history::History;
use super::sample::Sample;

/// News of one proxy, by the name of its place.
#[derive(Debug, Clone)]
pub struct News {
    /// Its place.
    pub proxy: String,
    /// When the answer came, or failed to.
    pub at: Instant,
    /// What there is to tell.
    pub what: What,
}

/// What there is to tell of a proxy.
#[derive(Debug, Clone)]
pub enum What {
    /// It is to be looked at.
    Wanted,
    /// It is no longer to be looked at: its Pod is gone.
    Gone,
    /// Who it is.
    About(About),
    /// Its stats.
    Stats(Box<Sample>),
    /// Why there is no answer, in one line.
    Failed(String),
}

/// Whether a proxy answers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Reach {
    /// It has not been heard of yet.
    #[default]
    Asked,
    /// It answers.
    Answers,
    /// It doesn't.
    Silent {
        /// Since when.
        since: Instant,
        /// Why, in one line.
        why: String,
    },
}

/// A proxy.
#[derive(Debug, Clone, Default)]
pub struct Proxy {
    /// Who it is, once it has said so.
    pub about: About,
    /// Whether it answers.
    pub reach: Reach,
    /// What it has answered.
    pub history: History,
}

/// All of them, by place.
#[derive(Debug, Clone, Default)]
pub struct Fleet {
    /// By the name of its place.
    pub proxies: BTreeMap<String, Proxy>,
    window: Duration,
}

impl Fleet {
    /// Nobody yet. Rates will be over `window`.
    #[must_use]
    pub fn new(window: Duration) -> Self {
        Self {
            proxies: BTreeMap::new(),
            window,
        }
    }

    /// The time that rates are over.
    #[must_use]
    pub fn window(&self) -> Duration {
        self.window
    }

    /// Takes note of what came.
    pub fn hear(&mut self, news: News) {
        if matches!(news.what, What::Gone) {
            self.proxies.remove(&news.proxy);
            return;
        }
        let proxy = match news.what {
            What::Wanted => self.proxies.entry(news.proxy).or_default(),
            // An answer that was under way when its proxy went.
            _ => match self.proxies.get_mut(&news.proxy) {
                Some(proxy) => proxy,
                None => return,
            },
        };
        match news.what {
            What::Wanted | What::Gone => {}
            What::About(about) => proxy.about = about,
            What::Stats(sample) => {
                proxy.reach = Reach::Answers;
                proxy.history.push(news.at, *sample, self.window);
            }
            What::Failed(why) => {
                let since = match &proxy.reach {
                    Reach::Silent { since, .. } => *since,
                    Reach::Asked | Reach::Answers => news.at,
                };
                proxy.reach = Reach::Silent { since, why };
            }
        }
    }

    /// Whether every proxy has answered twice, or failed to.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.proxies.values().all(|p| match p.reach {
            Reach::Silent { .. } => true,
            Reach::Answers => p.history.span().is_some_and(|s| s.before.is_some()),
            Reach::Asked => false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn news(proxy: &str, at: Instant, what: What) -> News {
        News {
            proxy: proxy.to_owned(),
            at,
            what,
        }
    }

    #[test]
    fn silence_has_a_beginning_and_an_end() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let mut fleet = Fleet::new(10 * second);
        let stats = || What::Stats(Box::default());
        fleet.hear(news("a", start, stats()));
        assert!(fleet.proxies.is_empty(), "nobody asked for it");
        fleet.hear(news("a", start, What::Wanted));
        assert!(!fleet.is_settled());
        fleet.hear(news("a", start, What::Failed("x".into())));
        fleet.hear(news("a", start + second, What::Failed("y".into())));
        let silent = Reach::Silent {
            since: start,
            why: "y".into(),
        };
        assert_eq!(fleet.proxies["a"].reach, silent);
        assert!(fleet.is_settled());
        fleet.hear(news("a", start + second, stats()));
        assert!(!fleet.is_settled());
        fleet.hear(news("a", start + 2 * second, stats()));
        assert!(fleet.is_settled());
        fleet.hear(news("a", start, What::Gone));
        assert!(fleet.proxies.is_empty());
    }
}
