//! Asks the proxies again and again, each on its own, and tells what came.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::UnboundedSender;
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;
use tracing::debug;

use super::client::Client;
use super::fleet::{News, What};
use super::place::Place;
use super::pods::{self, Pods, Selection};
use crate::cli::cluster::Cluster;

/// Longest pause before a proxy that doesn't answer is asked again.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// Time between two looks at which Pods there are.
const LOOK: Duration = Duration::from_secs(15);

/// Where proxies come from.
pub enum Source {
    /// These.
    Places(Vec<Place>),
    /// Those in a cluster, which come and go.
    Cluster {
        /// The cluster.
        cluster: Box<Cluster>,
        /// Which of them.
        selection: Selection,
        /// Those that were there at first.
        first: Vec<Place>,
    },
}

/// Follows all proxies of `source` until nobody listens any more.
pub async fn follow(source: Source, interval: Duration, news: UnboundedSender<News>) {
    match source {
        Source::Places(places) => {
            let mut following = Following::new(interval, news, None);
            following.set(places);
            following.news.closed().await;
        }
        Source::Cluster {
            cluster,
            selection,
            first,
        } => {
            let mut following = Following::new(interval, news, Some(Pods::new(&cluster)));
            following.set(first);
            loop {
                tokio::select! {
                    () = following.news.closed() => return,
                    () = tokio::time::sleep(LOOK) => {}
                }
                match pods::find(&cluster, &selection).await {
                    Ok((places, _)) => following.set(places),
                    // Those that are known stay.
                    Err(error) => debug!("looking for proxies: {error:#}"),
                }
            }
        }
    }
}

struct Following {
    interval: Duration,
    news: UnboundedSender<News>,
    pods: Option<Pods>,
    tasks: BTreeMap<String, JoinHandle<()>>,
}

impl Following {
    fn new(interval: Duration, news: UnboundedSender<News>, pods: Option<Pods>) -> Self {
        Self {
            interval,
            news,
            pods,
            tasks: BTreeMap::new(),
        }
    }

    fn tell(&self, proxy: &str, what: What) {
        let _ = self.news.send(News {
            proxy: proxy.to_owned(),
            at: Instant::now(),
            what,
        });
    }

    fn set(&mut self, places: Vec<Place>) {
        let names: Vec<String> = places.iter().map(ToString::to_string).collect();
        let gone: Vec<String> = self
            .tasks
            .keys()
            .filter(|name| !names.contains(name))
            .cloned()
            .collect();
        for name in gone {
            if let Some(task) = self.tasks.remove(&name) {
                task.abort();
            }
            self.tell(&name, What::Gone);
        }
        for (name, place) in names.into_iter().zip(places) {
            if self.tasks.contains_key(&name) {
                continue;
            }
            self.tell(&name, What::Wanted);
            let client = Client::new(place, self.pods.as_ref().map(Pods::for_another));
            let task = tokio::spawn(ask(client, self.interval, self.news.clone()));
            self.tasks.insert(name, task);
        }
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        for task in self.tasks.values() {
            task.abort();
        }
    }
}

/// Asks one proxy at every tick; one that doesn't answer, more and more rarely.
async fn ask(mut client: Client, interval: Duration, news: UnboundedSender<News>) {
    let proxy = client.place().to_string();
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut introduced = false;
    let mut uptime = None;
    let mut pause = interval;
    loop {
        ticks.tick().await;
        let answer = client.sample().await;
        let at = Instant::now();
        let answers = answer.is_ok();
        let what = match answer {
            Ok(sample) => {
                // Another process may be another version.
                introduced &= sample.uptime >= uptime;
                uptime = sample.uptime;
                What::Stats(Box::new(sample))
            }
            Err(error) => What::Failed(format!("{error:#}")),
        };
        let tell = |what| {
            let proxy = proxy.clone();
            news.send(News { proxy, at, what }).is_ok()
        };
        if !tell(what) {
            return;
        }
        if answers {
            pause = interval;
            if !introduced && let Ok(about) = client.about().await {
                introduced = tell(What::About(about));
            }
        } else {
            introduced = false;
            tokio::time::sleep(pause.min(LONGEST_PAUSE)).await;
            pause = pause.saturating_mul(2);
            ticks.reset_immediately();
        }
    }
}
