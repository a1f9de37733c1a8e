//! Asks the proxies repeatedly, each on its own, and records their responses.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch::Sender;
use tokio::time::MissedTickBehavior;
use tokio_util::task::AbortOnDropHandle;
use tracing::debug;

use super::client::Client;
use super::fleet::Fleet;
use super::place::Place;
use super::pods::{self, Selection};
use crate::cluster::Cluster;

/// Longest pause before a proxy that doesn't answer is asked again.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// Time between two lists of the cluster's Pods.
const LOOK: Duration = Duration::from_secs(15);

/// The source of proxies.
pub enum Source {
    /// A fixed list.
    Places(Vec<Place>),
    /// The proxies in a cluster, which change.
    Cluster {
        /// The cluster.
        cluster: Box<Cluster>,
        /// The proxies of it.
        selection: Selection,
        /// The proxies at the start.
        first: Vec<Place>,
    },
}

/// Follows all proxies of `source` until the fleet's last receiver is dropped.
pub async fn follow(source: Source, interval: Duration, fleet: Sender<Fleet>) {
    let fleet = Arc::new(fleet);
    let mut following = Following {
        interval,
        fleet: Arc::clone(&fleet),
        pods: None,
        tasks: BTreeMap::new(),
    };
    let (cluster, selection) = match source {
        Source::Places(places) => {
            following.set(places);
            return fleet.closed().await;
        }
        Source::Cluster {
            cluster,
            selection,
            first,
        } => {
            following.pods = Some(cluster.client());
            following.set(first);
            (cluster, selection)
        }
    };
    loop {
        tokio::select! {
            () = fleet.closed() => return,
            () = tokio::time::sleep(LOOK) => {}
        }
        match pods::find(&cluster, &selection).await {
            Ok((places, _)) => following.set(places),
            // Known proxies are kept.
            Err(error) => debug!("looking for proxies: {error:#}"),
        }
    }
}

struct Following {
    interval: Duration,
    fleet: Arc<Sender<Fleet>>,
    /// The client for proxies in Pods.
    pods: Option<kube::Client>,
    tasks: BTreeMap<String, AbortOnDropHandle<()>>,
}

impl Following {
    fn set(&mut self, places: Vec<Place>) {
        let named = places.into_iter().map(|place| (place.to_string(), place));
        let wanted: BTreeMap<String, Place> = named.collect();
        self.tasks.retain(|name, _| wanted.contains_key(name));
        self.fleet.send_modify(|fleet| {
            fleet.proxies.retain(|name, _| wanted.contains_key(name));
            wanted.keys().for_each(|name| fleet.add(name));
        });
        for (name, place) in wanted {
            self.tasks.entry(name).or_insert_with(|| {
                let client = Client::new(place, self.pods.clone());
                let asking = ask(client, self.interval, Arc::clone(&self.fleet));
                AbortOnDropHandle::new(tokio::spawn(asking))
            });
        }
    }
}

/// Asks one proxy at every tick; one that doesn't answer, more and more rarely.
async fn ask(mut client: Client, interval: Duration, fleet: Arc<Sender<Fleet>>) {
    let proxy = client.place().to_string();
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut introduced = false;
    let mut uptime = None;
    let mut pause = interval;
    loop {
        ticks.tick().await;
        let answer = client.sample().await.map_err(|error| format!("{error:#}"));
        let now = Instant::now();
        let sampled = answer.as_ref().ok().map(|sample| sample.uptime);
        fleet.send_modify(|fleet| fleet.hear(&proxy, now, answer));
        let Some(age) = sampled else {
            introduced = false;
            tokio::time::sleep(pause.min(LONGEST_PAUSE)).await;
            pause = pause.saturating_mul(2);
            ticks.reset_immediately();
            continue;
        };
        // Another process may be another version.
        introduced &= age >= uptime;
        uptime = age;
        pause = interval;
        if !introduced && let Ok(about) = client.about().await {
            fleet.send_modify(|fleet| fleet.introduce(&proxy, about));
            introduced = true;
        }
    }
}
