//! The watched proxies, with their responses over the last few seconds. Rates are the differences
//! between the oldest and the newest response.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use tokio::sync::watch::{Receiver, Sender, channel};
use tokio::time::{MissedTickBehavior, interval, sleep};
use tokio_util::task::AbortOnDropHandle;
use tracing::debug;

use crate::client::{self, AdminAddress};
use crate::pods::Selection;
use crate::sample::Sample;

/// The time between two lists of the cluster's Pods.
const LOOK: Duration = Duration::from_secs(15);

/// All proxies, by their addresses.
#[derive(Default)]
pub(crate) struct Fleet {
    pub(crate) proxies: BTreeMap<String, Proxy>,
    /// The time over which rates are computed.
    pub(crate) window: Duration,
}

/// A proxy. If it has neither responses nor failures, its first response is pending.
#[derive(Default)]
pub(crate) struct Proxy {
    /// The time of the first of the latest consecutive failures, and the reason for the last
    /// failure, in one line.
    pub(crate) silent: Option<(Instant, String)>,
    /// The number of observed restarts of the proxy's process.
    pub(crate) restarts: u32,
    /// The age of the proxy's process at the last response.
    pub(crate) uptime: Option<Duration>,
    /// Responses of one process. No request between them failed.
    samples: VecDeque<(Instant, Sample)>,
    /// The task that queries the proxy. It is aborted when the proxy is removed.
    _queries: Option<AbortOnDropHandle<()>>,
}

/// Two responses of one process.
pub(crate) struct Span<'a> {
    pub(crate) before: &'a Sample,
    pub(crate) after: &'a Sample,
    /// The time between the responses, s. It is 0 if only one response exists.
    pub(crate) seconds: f64,
}

impl Fleet {
    /// Replaces the set of proxies by `wanted`. Known proxies keep their state, and `new` creates
    /// the others.
    fn set(
        &mut self,
        wanted: BTreeMap<String, AdminAddress>,
        new: impl Fn(&str, AdminAddress) -> Proxy,
    ) {
        self.proxies.retain(|name, _| wanted.contains_key(name));
        for (name, place) in wanted {
            let entry = self.proxies.entry(name);
            entry.or_insert_with_key(|name| new(name, place));
        }
    }

    /// Records a proxy's response or, in one line, the reason for a failure. Ignores proxies that
    /// have been removed.
    pub(crate) fn hear(&mut self, proxy: &str, at: Instant, answer: Result<Sample, String>) {
        let Some(proxy) = self.proxies.get_mut(proxy) else {
            return;
        };
        match answer {
            Err(why) => {
                let since = proxy.silent.as_ref().map_or(at, |(since, _)| *since);
                proxy.silent = Some((since, why));
                proxy.samples.clear();
            }
            Ok(sample) => {
                proxy.silent = None;
                // The counters of a new process started at 0.
                if sample.uptime.is_some() && sample.uptime < proxy.uptime {
                    proxy.restarts += 1;
                    proxy.samples.clear();
                }
                proxy.uptime = sample.uptime;
                proxy.samples.push_back((at, sample));
                // One response at least as old as the window is kept for comparison.
                let old = |(then, _): &(Instant, Sample)| at - *then >= self.window;
                while proxy.samples.get(1).is_some_and(old) {
                    proxy.samples.pop_front();
                }
            }
        }
    }

    /// Whether every proxy has answered twice, or has failed.
    pub(crate) fn is_settled(&self) -> bool {
        let settled = |p: &Proxy| p.silent.is_some() || p.samples.len() > 1;
        self.proxies.values().all(settled)
    }
}

impl Proxy {
    /// Returns the oldest and the newest response, or `None` before the first response.
    pub(crate) fn span(&self) -> Option<Span<'_>> {
        let (first, before) = self.samples.front()?;
        let (last, after) = self.samples.back()?;
        Some(Span {
            before,
            after,
            seconds: (*last - *first).as_secs_f64(),
        })
    }
}

/// Queries the proxies at `places` every `interval`, and records the responses. With a `selection`,
/// the Pods are listed again every few seconds.
pub(crate) fn follow(
    places: Vec<AdminAddress>,
    selection: Option<Selection>,
    interval: Duration,
    window: Duration,
) -> Receiver<Fleet> {
    let (sender, fleet) = channel(Fleet {
        window,
        ..Fleet::default()
    });
    let follow = move |places: Vec<AdminAddress>| {
        let new = |name: &str, place| {
            let queries = ask(name.to_owned(), place, interval, sender.clone());
            Proxy {
                _queries: Some(AbortOnDropHandle::new(tokio::spawn(queries))),
                ..Proxy::default()
            }
        };
        let named = places.into_iter().map(|place| (place.to_string(), place));
        sender.send_modify(|fleet| fleet.set(named.collect(), new));
    };
    follow(places);
    tokio::spawn(async move {
        while let Some(selection) = &selection {
            sleep(LOOK).await;
            match selection.find().await {
                Ok((places, _)) => follow(places),
                // The known proxies are kept.
                Err(error) => debug!("looking for proxies: {error:#}"),
            }
        }
    });
    fleet
}

async fn ask(proxy: String, place: AdminAddress, every: Duration, fleet: Sender<Fleet>) {
    let mut connection = None;
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let answer = client::sample(&place, &mut connection).await;
        let answer = answer.map_err(|error| format!("{error:#}"));
        fleet.send_modify(|fleet| fleet.hear(&proxy, Instant::now(), answer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Duration = Duration::from_secs(10);

    fn up(seconds: u64) -> Result<Sample, String> {
        Ok(Sample {
            uptime: Some(Duration::from_secs(seconds)),
            ..Sample::default()
        })
    }

    /// Makes `proxy` the only proxy of the fleet.
    fn set(fleet: &mut Fleet, proxy: &str) {
        let place = "127.0.0.1:9901".parse().unwrap();
        let wanted = BTreeMap::from([(proxy.to_owned(), place)]);
        fleet.set(wanted, |_, _| Proxy::default());
    }

    fn fleet() -> Fleet {
        let mut fleet = Fleet {
            window: WINDOW,
            ..Fleet::default()
        };
        set(&mut fleet, "a");
        fleet
    }

    #[test]
    fn silence_has_a_beginning_and_an_end() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        let mut fleet = Fleet::default();
        fleet.hear("a", start, up(1));
        assert!(fleet.proxies.is_empty(), "not added");
        let mut fleet = self::fleet();
        assert!(!fleet.is_settled());
        fleet.hear("a", start, Err("x".into()));
        fleet.hear("a", start + second, Err("y".into()));
        assert_eq!(fleet.proxies["a"].silent, Some((start, "y".into())));
        assert!(fleet.is_settled());
        fleet.hear("a", start + second, up(1));
        assert!(fleet.proxies["a"].silent.is_none() && !fleet.is_settled());
        fleet.hear("a", start + 2 * second, up(2));
        set(&mut fleet, "a");
        assert!(fleet.is_settled(), "a known one is kept");
        set(&mut fleet, "b");
        fleet.hear("a", start, up(3));
        assert_eq!(fleet.proxies.keys().collect::<Vec<_>>(), ["b"]);
    }

    #[test]
    fn the_window_slides() {
        let start = Instant::now();
        let mut fleet = fleet();
        assert!(fleet.proxies["a"].span().is_none());
        for seconds in (0..=30).step_by(2) {
            let at = start + Duration::from_secs(seconds);
            fleet.hear("a", at, up(100 + seconds));
            let span = fleet.proxies["a"].span().unwrap();
            assert!((span.seconds - seconds.min(10) as f64).abs() < 1e-9);
        }
        assert_eq!(fleet.proxies["a"].samples.len(), 6);
        assert_eq!(fleet.proxies["a"].restarts, 0);
    }

    #[test]
    fn a_restart_and_a_silence_begin_anew() {
        let start = Instant::now();
        let mut fleet = fleet();
        for (second, answer, compares, restarts) in [
            (0, up(100), false, 0),
            (2, up(0), false, 1),
            (4, up(0), true, 1),
            (6, Err("x".to_owned()), false, 1),
            (60, up(55), false, 1),
            (62, up(55), true, 1),
            (64, Err("x".to_owned()), false, 1),
            (66, up(0), false, 2),
        ] {
            fleet.hear("a", start + Duration::from_secs(second), answer);
            let proxy = &fleet.proxies["a"];
            let two = proxy.span().filter(|s| s.seconds > 0.0);
            assert_eq!(
                (two.is_some(), proxy.restarts),
                (compares, restarts),
                "{second}"
            );
        }
    }
}
