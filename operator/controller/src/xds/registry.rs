//! The registry of proxies that are or recently were connected, with their answers.
//!
//! A record is one stream. A proxy with two slots, such as a sidecar's for requests and for calls,
//! has two. Their answers are combined when proxies are counted ([`super::tally`]): streams of one
//! node over one connection are one proxy, which runs a policy once all its slots with a part of
//! the policy do. Records are small, bounded in number, and dropped some time after the proxy has
//! disconnected.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::sync::watch;
use tracing::{info, warn};

use super::module::Kind;
use super::node::{Identity, clip};
use super::proxy::{Nack, Proxy, Push, is_outbound};
use super::snapshot::Assignment;
use super::sotw::{Offer, Verdict};
use crate::metrics::Metrics;

/// The longest part of Envoy's reason that is kept, in bytes.
pub(super) const MAX_REASON: usize = 2_048;

/// All records.
#[derive(Debug)]
pub struct Registry {
    records: Mutex<Records>,
    /// Marked at each change of a record.
    changed: watch::Sender<()>,
    /// The metrics that it updates.
    pub metrics: Metrics,
    max_records: usize,
    keep: Duration,
}

#[derive(Debug, Default)]
struct Records {
    by_id: BTreeMap<u64, Proxy>,
    last_id: u64,
}

impl Registry {
    /// Returns a registry of at most `max_records` streams, which drops a proxy `keep` after it
    /// disconnected.
    #[must_use]
    pub fn new(max_records: usize, keep: Duration, metrics: Metrics) -> Self {
        Self {
            records: Mutex::default(),
            changed: watch::Sender::new(()),
            metrics,
            max_records,
            keep,
        }
    }

    /// Starts a record, which replaces the ended records of the same node. `None` if the registry
    /// is full of connected proxies.
    pub fn connect(
        self: &Arc<Self>,
        identity: &Identity,
        peer: &str,
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
            slots: BTreeSet::new(),
            connected: now,
            disconnected: None,
            assigned: None,
            in_force: Vec::new(),
            problem: None,
            fallback: None,
            sent: None,
            acked: None,
            nack: None,
        };
        records.by_id.insert(id, proxy);
        drop(records);
        self.changed.send_replace(());
        info!(
            node = identity.id,
            cluster = identity.cluster,
            peer,
            "proxy connected"
        );
        self.metrics.xds.streams.inc();
        Some(Connection {
            registry: Arc::clone(self),
            id,
        })
    }

    /// Returns a receiver that is notified of each change of a record: connection, disconnection,
    /// assignment or answer.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// Returns copies of all records, connected ones first, then by node id.
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
    /// Changes the record. Callers log from the returned value, outside the lock: a slow log must
    /// not delay the other proxies.
    fn update<T>(&self, change: impl FnOnce(&mut Proxy) -> T) -> Option<T> {
        let changed = self.registry.lock().by_id.get_mut(&self.id).map(change);
        self.registry.changed.send_replace(());
        changed
    }

    /// Records the version that the proxy should run now.
    pub fn assigned(&self, offer: &Offer, assignment: &Assignment) {
        let news = self.update(|p| {
            p.slots = offer.resources.iter().map(|r| r.name.clone()).collect();
            p.assigned = match offer.resources.is_empty() {
                true => None,
                false => Some((offer.version.clone(), Arc::clone(&assignment.config))),
            };
            p.in_force.clone_from(&assignment.in_force);
            p.fallback.clone_from(&assignment.fallback);
            let is_new = p.problem != assignment.problem;
            p.problem.clone_from(&assignment.problem);
            is_new.then(|| (p.identity.id.clone(), p.problem.clone()))
        });
        if let Some(Some((node, Some(problem)))) = news {
            warn!(node, "no policy applies to this proxy: {problem}");
        }
    }

    /// Records that `offer` was sent.
    pub fn sent(&self, offer: &Offer, assignment: &Assignment, now: SystemTime) {
        self.registry.metrics.xds.pushes.inc();
        self.update(|p| p.sent = Some(push(offer, assignment, now)));
    }

    /// Records that the proxy runs `offer`, perhaps since before it connected.
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
                revision = revision(offer, assignment),
                "proxy runs the current configuration"
            );
        }
    }

    /// Records the proxy's answer.
    pub fn answered(&self, verdict: Verdict, now: SystemTime) {
        let metrics = &self.registry.metrics.xds;
        match verdict {
            Verdict::Ack(version) => {
                metrics.acks.inc();
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
                metrics.nacks.inc();
                let news = self.update(|p| {
                    let skew = p.identity.skew().map(|skew| format!("; {skew}"));
                    let reason = clip(&message, MAX_REASON) + &skew.unwrap_or_default();
                    let sent = p.sent.as_ref();
                    let revision = sent.map(|s| s.revision.clone()).unwrap_or_default();
                    let push = Push {
                        version: version.clone(),
                        revision: revision.clone(),
                        filter: sent.map(|s| s.filter).unwrap_or_default(),
                        at: now,
                    };
                    p.nack = Some(Nack {
                        push,
                        message: reason.clone(),
                    });
                    (p.identity.id.clone(), revision, reason)
                });
                if let Some((node, revision, reason)) = news {
                    warn!(
                        node,
                        revision,
                        version,
                        reason,
                        "proxy refused the configuration and keeps the one before; its own log \
                         says why (components wasm and dynamic_modules); the next change of a \
                         policy or of the module is tried again"
                    );
                }
            }
        }
    }
}

fn revision<'a>(offer: &Offer, assignment: &'a Assignment) -> &'a str {
    match is_outbound(offer.resources.iter().map(|r| &r.name)) {
        true => &assignment.outbound.revision,
        false => &assignment.config.revision,
    }
}

fn push(offer: &Offer, assignment: &Assignment, at: SystemTime) -> Push {
    Push {
        version: offer.version.clone(),
        revision: revision(offer, assignment).to_owned(),
        filter: Kind::of(&assignment.module),
        at,
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let news = self.update(|p| {
            p.disconnected = Some(SystemTime::now());
            p.assigned = None;
            p.in_force.clear();
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
        registry.connect(&identity, "127.0.0.1:1", SystemTime::now())
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
        let registry = Arc::new(Registry::new(10, Duration::from_secs(60), Metrics::new()));
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
    fn changes_of_records_are_told() {
        let registry = Arc::new(Registry::new(10, Duration::from_secs(60), Metrics::new()));
        let mut changes = registry.changes();
        assert!(!changes.has_changed().unwrap());
        let a = connect(&registry, "a").unwrap();
        assert!(changes.has_changed().unwrap());
        changes.borrow_and_update();
        drop(a);
        assert!(changes.has_changed().unwrap());
    }

    #[test]
    fn proxies_are_forgotten_after_a_while() {
        let registry = Arc::new(Registry::new(10, Duration::from_secs(60), Metrics::new()));
        drop(connect(&registry, "a"));
        let now = SystemTime::now();
        assert_eq!(ids(&registry, now), ["a"]);
        assert!(ids(&registry, now + Duration::from_secs(61)).is_empty());
    }

    #[test]
    fn a_full_registry_makes_room_only_where_a_proxy_has_left() {
        let registry = Arc::new(Registry::new(2, Duration::from_secs(60), Metrics::new()));
        let a = connect(&registry, "a").unwrap();
        let b = connect(&registry, "b").unwrap();
        assert!(connect(&registry, "c").is_none());
        drop(b);
        let c = connect(&registry, "c").unwrap();
        assert_eq!(ids(&registry, SystemTime::now()), ["a", "c"]);
        drop((a, c));
    }
}
