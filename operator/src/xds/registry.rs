//! The proxies that are or recently were connected, and what each said about its configuration.
//!
//! A record is one stream: a proxy with two slots has two over plain ECDS and one over ADS. Records are
//! small, bounded in number, and dropped some time after the proxy went away.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use tracing::{info, warn};

use super::dialect::{Offer, Verdict};
use super::node::{Identity, clip};
use super::proxy::{Nack, Proxy, Push, Transport, Variant};
use super::snapshot::Assignment;

/// Longest part of Envoy's reason that is kept, in bytes.
const MAX_REASON: usize = 2_048;

/// What has happened since the start, for metrics.
#[derive(Debug, Default)]
pub struct Counters {
    /// Responses sent.
    pub pushes: AtomicU64,
    /// Responses accepted.
    pub acks: AtomicU64,
    /// Responses refused.
    pub nacks: AtomicU64,
    /// Streams accepted.
    pub streams: AtomicU64,
    /// Streams turned away at a limit.
    pub refused_streams: AtomicU64,
}

impl Counters {
    /// Adds one.
    pub fn increment(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// All records.
#[derive(Debug)]
pub struct Registry {
    records: Mutex<Records>,
    /// Counts since the start.
    pub counters: Counters,
    max_records: usize,
    keep: Duration,
}

#[derive(Debug, Default)]
struct Records {
    by_id: BTreeMap<u64, Proxy>,
    last_id: u64,
}

impl Registry {
    /// A registry of at most `max_records` streams, that forgets a proxy `keep` after it left.
    #[must_use]
    pub fn new(max_records: usize, keep: Duration) -> Self {
        Self {
            records: Mutex::default(),
            counters: Counters::default(),
            max_records,
            keep,
        }
    }

    /// Starts a record. It takes the place of records of the same node that have ended; `None` when the
    /// registry is full of connected proxies.
    pub fn connect(
        self: &Arc<Self>,
        identity: &Identity,
        peer: &str,
        transport: Transport,
        variant: Variant,
        now: SystemTime,
    ) -> Option<Connection> {
        let mut records = self.lock();
        let keep = self.keep;
        records.by_id.retain(|_, p| {
            p.disconnected
                .is_none_or(|at| p.identity.id != identity.id && !is_older(at, keep, now))
        });
        if records.by_id.len() >= self.max_records {
            let gone = records
                .by_id
                .iter()
                .filter_map(|(id, p)| Some((p.disconnected?, *id)))
                .min();
            records.by_id.remove(&gone?.1);
        }
        records.last_id += 1;
        let id = records.last_id;
        let proxy = Proxy {
            identity: identity.clone(),
            peer: peer.to_owned(),
            transport,
            variant,
            slots: BTreeSet::new(),
            connected: now,
            disconnected: None,
            assigned: None,
            problem: None,
            sent: None,
            acked: None,
            nack: None,
        };
        records.by_id.insert(id, proxy);
        drop(records);
        info!(
            node = identity.id,
            cluster = identity.cluster,
            peer,
            protocol = %format_args!("{} {}", transport.as_str(), variant.as_str()),
            "proxy connected"
        );
        Counters::increment(&self.counters.streams);
        Some(Connection {
            registry: Arc::clone(self),
            id,
        })
    }

    /// Copies of all records, connected ones first, then by node id.
    #[must_use]
    pub fn proxies(&self, now: SystemTime) -> Vec<Proxy> {
        let mut records = self.lock();
        let keep = self.keep;
        records
            .by_id
            .retain(|_, p| p.disconnected.is_none_or(|at| !is_older(at, keep, now)));
        let mut proxies: Vec<Proxy> = records.by_id.values().cloned().collect();
        drop(records);
        proxies.sort_by(|a, b| {
            let key = |p: &Proxy| (p.disconnected.is_some(), p.identity.id.clone(), p.connected);
            key(a).cmp(&key(b))
        });
        proxies
    }

    fn lock(&self) -> MutexGuard<'_, Records> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_older(at: SystemTime, keep: Duration, now: SystemTime) -> bool {
    now.duration_since(at).unwrap_or_default() >= keep
}

/// A record's stream. Dropping it ends the record.
#[derive(Debug)]
pub struct Connection {
    registry: Arc<Registry>,
    id: u64,
}

impl Connection {
    /// Changes the record. Whoever logs does so with what this returns: a slow log must not hold up the
    /// other proxies.
    fn update<T>(&self, change: impl FnOnce(&mut Proxy) -> T) -> Option<T> {
        self.registry.lock().by_id.get_mut(&self.id).map(change)
    }

    /// Notes what the proxy should run now.
    pub fn assigned(&self, offer: &Offer, assignment: &Assignment) {
        let news = self.update(|p| {
            p.slots = offer.resources.iter().map(|r| r.name.clone()).collect();
            p.assigned = match offer.resources.is_empty() {
                true => None,
                false => Some((offer.version.clone(), Arc::clone(&assignment.config))),
            };
            let is_new = p.problem != assignment.problem;
            p.problem.clone_from(&assignment.problem);
            is_new.then(|| (p.identity.id.clone(), p.problem.clone()))
        });
        if let Some(Some((node, Some(problem)))) = news {
            warn!(node, "no policy applies to this proxy: {problem}");
        }
    }

    /// Notes that `offer` was sent.
    pub fn sent(&self, offer: &Offer, assignment: &Assignment, now: SystemTime) {
        Counters::increment(&self.registry.counters.pushes);
        self.update(|p| p.sent = Some(push(offer, assignment, now)));
    }

    /// Notes that the proxy runs `offer`, perhaps since before it connected.
    pub fn held(&self, offer: &Offer, assignment: &Assignment, now: SystemTime) {
        let news = self.update(|p| {
            let is_new = p.acked.as_ref().is_none_or(|a| a.version != offer.version);
            is_new.then(|| {
                p.acked = Some(push(offer, assignment, now));
                p.identity.id.clone()
            })
        });
        if let Some(Some(node)) = news {
            info!(
                node,
                revision = assignment.config.revision,
                "proxy runs the current configuration"
            );
        }
    }

    /// Notes the proxy's answer.
    pub fn answered(&self, verdict: Verdict, now: SystemTime) {
        let counters = &self.registry.counters;
        match verdict {
            Verdict::Ack(version) => {
                Counters::increment(&counters.acks);
                let news = self.update(|p| {
                    let sent = p.sent.clone().filter(|s| s.version == version)?;
                    let revision = sent.revision.clone();
                    p.acked = Some(Push { at: now, ..sent });
                    Some((p.identity.id.clone(), revision))
                });
                if let Some(Some((node, revision))) = news {
                    info!(node, revision, version, "proxy accepted the configuration");
                }
            }
            Verdict::Nack { version, message } => {
                Counters::increment(&counters.nacks);
                let reason = clip(&message, MAX_REASON);
                let news = self.update(|p| {
                    let revision = p
                        .sent
                        .as_ref()
                        .map(|s| s.revision.clone())
                        .unwrap_or_default();
                    let push = Push {
                        version: version.clone(),
                        revision: revision.clone(),
                        at: now,
                    };
                    p.nack = Some(Nack {
                        push,
                        message: reason.clone(),
                    });
                    (p.identity.id.clone(), revision)
                });
                if let Some((node, revision)) = news {
                    warn!(
                        node,
                        revision,
                        version,
                        reason,
                        "proxy refused the configuration and keeps the one before; its own log says why \
                         (component wasm); the next change of a policy or of the module is tried again"
                    );
                }
            }
        }
    }
}

fn push(offer: &Offer, assignment: &Assignment, at: SystemTime) -> Push {
    Push {
        version: offer.version.clone(),
        revision: assignment.config.revision.clone(),
        at,
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let news = self.update(|p| {
            p.disconnected = Some(SystemTime::now());
            p.assigned = None;
            (p.identity.id.clone(), p.peer.clone())
        });
        if let Some((node, peer)) = news {
            info!(node, peer, "proxy disconnected");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connect(registry: &Arc<Registry>, id: &str) -> Option<Connection> {
        let identity = Identity {
            id: id.into(),
            ..Identity::default()
        };
        let (transport, variant) = (Transport::Ecds, Variant::Delta);
        registry.connect(
            &identity,
            "127.0.0.1:1",
            transport,
            variant,
            SystemTime::now(),
        )
    }

    fn ids(registry: &Registry, now: SystemTime) -> Vec<String> {
        registry
            .proxies(now)
            .into_iter()
            .map(|p| p.identity.id)
            .collect()
    }

    #[test]
    fn a_proxy_that_comes_back_has_one_record() {
        let registry = Arc::new(Registry::new(10, Duration::from_secs(60)));
        drop(connect(&registry, "a"));
        let again = connect(&registry, "a");
        let other = connect(&registry, "a");
        assert!(again.is_some() && other.is_some());
        assert_eq!(
            ids(&registry, SystemTime::now()),
            ["a", "a"],
            "two streams, none of them old"
        );
    }

    #[test]
    fn proxies_are_forgotten_after_a_while() {
        let registry = Arc::new(Registry::new(10, Duration::from_secs(60)));
        drop(connect(&registry, "a"));
        let now = SystemTime::now();
        assert_eq!(ids(&registry, now), ["a"]);
        assert!(ids(&registry, now + Duration::from_secs(61)).is_empty());
    }

    #[test]
    fn a_full_registry_makes_room_only_where_a_proxy_has_left() {
        let registry = Arc::new(Registry::new(2, Duration::from_secs(60)));
        let a = connect(&registry, "a").unwrap();
        let b = connect(&registry, "b").unwrap();
        assert!(connect(&registry, "c").is_none());
        drop(b);
        let c = connect(&registry, "c").unwrap();
        assert_eq!(ids(&registry, SystemTime::now()), ["a", "c"]);
        drop((a, c));
    }
}
