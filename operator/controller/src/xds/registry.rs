//! The registry of proxies that are or recently were connected, with their answers.
//!
//! A record is one stream. A proxy with two slots, such as a sidecar's for requests and for calls,
//! has two. Their answers are combined when proxies are counted ([`super::tally`]): streams of one
//! node over one connection are one proxy, which runs a policy once all its slots with a part of
//! the policy do. Records are small, bounded in number, and dropped some time after the proxy has
//! disconnected.

use std::collections::{BTreeMap, BTreeSet, HashMap};
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
    /// Readers share the records that don't change meanwhile.
    by_id: BTreeMap<u64, Arc<Proxy>>,
    /// The ended records, the oldest first.
    ended: BTreeSet<(SystemTime, u64)>,
    /// The ended records of each node, so that a connection needn't look at all records.
    ended_of: HashMap<String, BTreeSet<u64>>,
    last_id: u64,
}

impl Records {
    fn end(&mut self, id: u64, at: SystemTime) -> Option<Arc<Proxy>> {
        let record = self.by_id.get_mut(&id)?;
        let proxy = Arc::make_mut(record);
        proxy.disconnected = Some(at);
        proxy.assigned = None;
        proxy.in_force.clear();
        self.ended.insert((at, id));
        let of_node = self.ended_of.entry(proxy.identity.id.clone());
        of_node.or_default().insert(id);
        Some(Arc::clone(record))
    }

    fn forget(&mut self, at: SystemTime, id: u64) {
        self.ended.remove(&(at, id));
        let Some(proxy) = self.by_id.remove(&id) else {
            return;
        };
        if let Some(of_node) = self.ended_of.get_mut(&proxy.identity.id) {
            of_node.remove(&id);
            if of_node.is_empty() {
                self.ended_of.remove(&proxy.identity.id);
            }
        }
    }

    fn forget_older(&mut self, keep: Duration, now: SystemTime) {
        while let Some((at, id)) = self.ended.first().copied()
            && now.duration_since(at).unwrap_or_default() >= keep
        {
            self.forget(at, id);
        }
    }

    fn forget_node(&mut self, node: &str) {
        for id in self.ended_of.remove(node).unwrap_or_default() {
            if let Some(at) = self.by_id.get(&id).and_then(|p| p.disconnected) {
                self.forget(at, id);
            }
        }
    }
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
        records.forget_older(self.keep, now);
        records.forget_node(&identity.id);
        if records.by_id.len() >= self.max_records {
            let (at, gone) = records.ended.first().copied()?;
            records.forget(at, gone);
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
        records.by_id.insert(id, Arc::new(proxy));
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

    /// Returns all records, connected ones first, then by node id.
    #[must_use]
    pub fn proxies(&self, now: SystemTime) -> Vec<Arc<Proxy>> {
        let mut records = self.lock();
        records.forget_older(self.keep, now);
        let mut proxies: Vec<Arc<Proxy>> = records.by_id.values().cloned().collect();
        drop(records);
        proxies.sort_by(|a, b| {
            let ended = a.disconnected.is_some().cmp(&b.disconnected.is_some());
            ended
                .then_with(|| a.identity.id.cmp(&b.identity.id))
                .then_with(|| a.connected.cmp(&b.connected))
        });
        proxies
    }

    fn lock(&self) -> MutexGuard<'_, Records> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
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
        let mut records = self.registry.lock();
        let record = records.by_id.get_mut(&self.id);
        let changed = record.map(|record| change(Arc::make_mut(record)));
        drop(records);
        self.registry.changed.send_replace(());
        changed
    }

    /// Records the version that the proxy should run now.
    pub fn assigned(&self, offer: &Offer, assignment: &Assignment) {
        if self.is_assigned(offer, assignment) {
            return;
        }
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

    /// Whether the record already has this assignment. Most changes of the plan leave most proxies
    /// unchanged, and readers of the records needn't be notified then.
    fn is_assigned(&self, offer: &Offer, assignment: &Assignment) -> bool {
        let records = self.registry.lock();
        records.by_id.get(&self.id).is_some_and(|p| {
            let assigned = match (&p.assigned, offer.resources.is_empty()) {
                (None, true) => true,
                (Some((version, config)), false) => {
                    *version == offer.version && Arc::ptr_eq(config, &assignment.config)
                }
                _ => false,
            };
            assigned
                && p.slots.iter().eq(offer.resources.iter().map(|r| &r.name))
                && p.in_force == assignment.in_force
                && p.fallback == assignment.fallback
                && p.problem == assignment.problem
        })
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

    /// Records that the proxy gets a reduced form of `version`, because it has refused a field of
    /// this or an earlier version. Its last refusal then counts for `version`.
    pub fn withheld(&self, version: &str) {
        self.update(|p| {
            if let Some(nack) = &mut p.nack {
                version.clone_into(&mut nack.push.version);
            }
        });
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
        let ended = self.registry.lock().end(self.id, SystemTime::now());
        self.registry.changed.send_replace(());
        if let Some(proxy) = ended {
            info!(
                node = proxy.identity.id,
                peer = proxy.peer,
                "proxy disconnected"
            );
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
            .map(|p| p.identity.id.clone())
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
    fn a_reader_shares_the_records_that_do_not_change() {
        let registry = Arc::new(Registry::new(10, Duration::from_secs(60), Metrics::new()));
        let _stay = connect(&registry, "a");
        let ends = connect(&registry, "b");
        let before = registry.proxies(SystemTime::now());
        drop(ends);
        let after = registry.proxies(SystemTime::now());
        let same: Vec<bool> = { before.iter().zip(&after) }
            .map(|(before, after)| Arc::ptr_eq(before, after))
            .collect();
        assert_eq!(same, [true, false]);
        assert!(before.iter().all(|p| p.disconnected.is_none()));
    }

    /// An ended record is found by its node and by its age. After its removal, no index has it.
    #[test]
    fn no_index_keeps_what_is_forgotten() {
        let registry = Arc::new(Registry::new(4, Duration::from_secs(60), Metrics::new()));
        for round in 0..20 {
            let node = format!("{}", round % 7);
            drop((connect(&registry, &node), connect(&registry, &node)));
            let records = registry.lock();
            let mut ended: Vec<u64> = records.ended.iter().map(|(_, id)| *id).collect();
            ended.sort_unstable();
            let mut of_nodes: Vec<u64> = records.ended_of.values().flatten().copied().collect();
            of_nodes.sort_unstable();
            let all: Vec<u64> = records.by_id.keys().copied().collect();
            assert_eq!((&ended, &of_nodes), (&all, &all), "{round}");
        }
        let later = SystemTime::now() + Duration::from_secs(61);
        assert!(registry.proxies(later).is_empty());
        assert!(registry.lock().ended_of.is_empty());
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
