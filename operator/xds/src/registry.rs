//! The registry of connected and recently disconnected proxies, with their answers.
//!
//! A record is one stream. A proxy with two slots, such as a sidecar with one for requests and one
//! for calls, has two records. They are combined when proxies are counted ([`super::tally`]). The
//! streams of one node over one connection are one proxy. It runs a policy once all slots with a
//! part of the policy run it. Records are small, bounded in number, and dropped some time after the
//! proxy has disconnected.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use headgate_core::config::Direction;
use tokio::sync::watch;
use tonic::{Code, Status};
use tracing::{info, warn};

use crate::direction;
use crate::metrics::XdsMetrics;
use crate::module::Kind;
use crate::node::{Identity, clip};
use crate::proxy::{Nack, Proxy, Push};
use crate::quota::Pace;
use crate::resource::Resource;
use crate::snapshot::Assignment;
use crate::sotw::Verdict;
use crate::tally::Tallies;

/// The largest number of bytes of Envoy's reason that are kept.
pub(crate) const MAX_REASON: usize = 2_048;

/// The registry of streams.
#[derive(Debug)]
pub struct Registry {
    records: Mutex<Records>,
    /// The counts of all policies as of the last call of [`Self::tallies`].
    counted: Mutex<Arc<Tallies>>,
    /// Notified at each change of a record.
    changed: watch::Sender<()>,
    /// The metrics that the registry updates.
    pub metrics: XdsMetrics,
    /// The pace of log lines about refused streams, by status code.
    refusals: Mutex<HashMap<Code, Pace>>,
    max_records: usize,
    keep: Duration,
}

#[derive(Debug, Default)]
struct Records {
    /// Readers share records. A change of a shared record copies it.
    by_id: BTreeMap<u64, Arc<Proxy>>,
    /// The ended records, the oldest first.
    ended: BTreeSet<(SystemTime, u64)>,
    /// The ended records of each node, so that a new connection doesn't search all records.
    ended_of: HashMap<String, BTreeSet<u64>>,
    last_id: u64,
    by_policy: ByPolicy,
}

/// The records of each policy, so that a change of one record is counted without a search through
/// all records.
#[derive(Debug, Default)]
struct ByPolicy {
    records: HashMap<String, BTreeSet<u64>>,
    /// Policies with a record that has changed since they were last counted.
    changed: BTreeSet<String>,
}

impl ByPolicy {
    fn remove(&mut self, id: u64, proxy: &Proxy) {
        for stage in proxy.stages() {
            self.mark(&stage.policy);
            if let Some(records) = self.records.get_mut(&stage.policy) {
                records.remove(&id);
                if records.is_empty() {
                    self.records.remove(&stage.policy);
                }
            }
        }
    }

    fn insert(&mut self, id: u64, proxy: &Proxy) {
        for stage in proxy.stages() {
            self.mark(&stage.policy);
            match self.records.get_mut(&stage.policy) {
                Some(records) => records.insert(id),
                None => { self.records.entry(stage.policy.clone()).or_default() }.insert(id),
            };
        }
    }

    fn mark(&mut self, policy: &str) {
        if !self.changed.contains(policy) {
            self.changed.insert(policy.to_owned());
        }
    }
}

impl Records {
    fn change<T>(&mut self, id: u64, change: impl FnOnce(&mut Proxy) -> T) -> Option<T> {
        let record = self.by_id.get_mut(&id)?;
        self.by_policy.remove(id, record);
        let changed = change(Arc::make_mut(record));
        self.by_policy.insert(id, record);
        Some(changed)
    }

    fn end(&mut self, id: u64, at: SystemTime) -> Option<Arc<Proxy>> {
        self.change(id, |proxy| {
            proxy.disconnected = Some(at);
            proxy.version = None;
            // The configuration is dropped, so that the record doesn't keep one of an old plan in
            // memory.
            proxy.assignment = Arc::new(Assignment {
                problem: proxy.assignment.problem.clone(),
                fallback: proxy.assignment.fallback.clone(),
                ..Assignment::default()
            });
        })?;
        let record = self.by_id.get(&id)?;
        self.ended.insert((at, id));
        let of_node = self.ended_of.entry(record.identity.id.clone());
        of_node.or_default().insert(id);
        Some(Arc::clone(record))
    }

    /// Returns all records of each policy with a record that has changed since the last call.
    fn changed_policies(&mut self) -> Vec<(String, Vec<Arc<Proxy>>)> {
        let changed = std::mem::take(&mut self.by_policy.changed).into_iter();
        let of = |policy: String| {
            let ids = self.by_policy.records.get(&policy).into_iter().flatten();
            let records = ids.filter_map(|id| self.by_id.get(id).cloned()).collect();
            (policy, records)
        };
        changed.map(of).collect()
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
    /// Returns a registry of at most `max_records` streams. It drops a record `keep` after the
    /// stream has ended.
    pub fn new(max_records: usize, keep: Duration, metrics: XdsMetrics) -> Self {
        Self {
            records: Mutex::default(),
            counted: Mutex::default(),
            changed: watch::Sender::new(()),
            metrics,
            refusals: Mutex::default(),
            max_records,
            keep,
        }
    }

    /// Starts a record, which replaces the ended records of the same node. In a full registry, it
    /// replaces the oldest ended record.
    pub fn connect(
        self: &Arc<Self>,
        identity: &Identity,
        peer: &str,
        now: SystemTime,
    ) -> Connection {
        let mut records = self.lock();
        records.forget_older(self.keep, now);
        records.forget_node(&identity.id);
        // Connected proxies alone never fill the registry, because the limit of streams is lower.
        if records.by_id.len() >= self.max_records
            && let Some((at, gone)) = records.ended.first().copied()
        {
            records.forget(at, gone);
        }
        records.last_id += 1;
        let id = records.last_id;
        let proxy = Proxy {
            identity: identity.clone(),
            peer: peer.to_owned(),
            slot: None,
            connected: now,
            disconnected: None,
            version: None,
            assignment: Arc::default(),
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
        self.metrics.streams.inc();
        Connection {
            registry: Arc::clone(self),
            id,
        }
    }

    /// Counts a refused stream, and logs the reason if no stream was refused with the same status
    /// code shortly before. Returns `status`.
    pub(crate) fn refuse(&self, node: Option<&str>, peer: SocketAddr, status: Status) -> Status {
        self.metrics.streams_refused.inc();
        let mut paces = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = paces.entry(status.code()).or_default().is_due();
        drop(paces);
        if is_due {
            warn!(node, %peer, "stream refused: {}", status.message());
        }
        status
    }

    /// Returns a receiver that is notified of each change of a record. Such a change is a
    /// connection, disconnection, assignment or answer.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// Returns the counts of the connected proxies. Recounts only policies with a record that has
    /// changed since the last call.
    pub fn tallies(&self) -> Arc<Tallies> {
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = self.lock().changed_policies();
        if !changed.is_empty() {
            // The lock on the records has been released, so proxies can report during the count.
            let tallies = Arc::make_mut(&mut counted);
            for (policy, streams) in changed {
                tallies.count(&policy, &streams);
            }
        }
        Arc::clone(&counted)
    }

    /// Returns all records, connected ones first, then by node id.
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
    /// Changes the record. Callers log the returned value after the lock is released, because a
    /// slow log must not delay other proxies.
    fn update<T>(&self, change: impl FnOnce(&mut Proxy) -> T) -> Option<T> {
        let changed = self.registry.lock().change(self.id, change);
        self.registry.changed.send_replace(());
        changed
    }

    /// Records the resource that the proxy should run now, if any.
    pub(crate) fn assigned(&self, resource: Option<&Resource>, assignment: &Arc<Assignment>) {
        let (slot, version) = resource.map(|r| (&r.name, &r.version)).unzip();
        // Most changes of the plan don't affect most proxies. Readers aren't notified then.
        let is_known = self.registry.lock().by_id.get(&self.id).is_some_and(|p| {
            p.version.as_ref() == version
                && p.slot.as_ref() == slot
                && p.assignment.is_same(assignment)
        });
        if is_known {
            return;
        }
        let news = self.update(|p| {
            p.slot = slot.cloned();
            p.version = version.cloned();
            let before = std::mem::replace(&mut p.assignment, Arc::clone(assignment));
            (before.problem != assignment.problem).then(|| p.identity.id.clone())
        });
        if let (Some(Some(node)), Some(problem)) = (news, &assignment.problem) {
            warn!(node, "policies of this proxy: {problem}");
        }
    }

    /// Records that `resource` was sent.
    pub(crate) fn sent(&self, resource: &Resource, assignment: &Assignment, now: SystemTime) {
        self.registry.metrics.pushes.inc();
        self.update(|p| p.sent = Some(push(resource, assignment, now)));
    }

    /// Records that the proxy runs `resource`, possibly since before it connected.
    pub(crate) fn held(&self, resource: &Resource, assignment: &Assignment, now: SystemTime) {
        let news = self.update(|p| {
            let acked = p.acked.as_ref();
            let is_new = acked.is_none_or(|a| a.version != resource.version);
            is_new.then(|| {
                p.acked = Some(push(resource, assignment, now));
                p.identity.id.clone()
            })
        });
        if let Some(Some(node)) = news {
            info!(
                node,
                revision = revision(resource, assignment),
                "proxy runs the current configuration"
            );
        }
    }

    /// Records that the proxy gets a reduced form of `version`, because it has refused a field of
    /// this or an earlier version. Its last refusal then counts as a refusal of `version`.
    pub(crate) fn withheld(&self, version: &str) {
        self.update(|p| {
            if let Some(nack) = &mut p.nack {
                version.clone_into(&mut nack.push.version);
            }
        });
    }

    /// Records the proxy's answer.
    pub(crate) fn answered(&self, verdict: Verdict, now: SystemTime) {
        let metrics = &self.registry.metrics;
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
                        "proxy refused the configuration and keeps the previous one; the proxy's \
                         log has the reason (components wasm and dynamic_modules); the proxy gets \
                         the next change of a policy or of the module"
                    );
                }
            }
        }
    }
}

fn revision<'a>(resource: &Resource, assignment: &'a Assignment) -> &'a str {
    match direction(&resource.name) {
        Direction::Inbound => &assignment.config.revision,
        Direction::Outbound => &assignment.outbound.revision,
    }
}

fn push(resource: &Resource, assignment: &Assignment, at: SystemTime) -> Push {
    Push {
        version: resource.version.clone(),
        revision: revision(resource, assignment).to_owned(),
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
    use headgate_core::config::FilterConfig;
    use serde_json::json;

    use super::*;

    fn connect(registry: &Arc<Registry>, id: &str) -> Connection {
        let identity = Identity {
            id: id.into(),
            ..Identity::default()
        };
        registry.connect(&identity, "127.0.0.1:1", SystemTime::now())
    }

    /// Returns an assignment with a stage of each policy.
    fn assignment(policies: &[&str]) -> Arc<Assignment> {
        let stage = |policy: &&str| {
            let stage = json!({
                "policy": policy, "parallelism": 1, "queue": {"max_length": 1, "timeout_us": 1},
                "strategy": {"type": "MaxQueueLength"}, "types": [{"name": "default"}],
            });
            serde_json::from_value(stage).unwrap()
        };
        let config = FilterConfig {
            stages: policies.iter().map(stage).collect(),
            ..FilterConfig::default()
        };
        Arc::new(Assignment {
            config: Arc::new(config),
            ..Assignment::default()
        })
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
        let registry = Arc::new(Registry::new(
            10,
            Duration::from_secs(60),
            XdsMetrics::default(),
        ));
        drop(connect(&registry, "a"));
        let _again = connect(&registry, "a");
        let _other = connect(&registry, "a");
        assert_eq!(
            ids(&registry, SystemTime::now()),
            ["a", "a"],
            "two streams, none of them old"
        );
    }

    #[test]
    fn a_reader_shares_the_records_that_do_not_change() {
        let registry = Arc::new(Registry::new(
            10,
            Duration::from_secs(60),
            XdsMetrics::default(),
        ));
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
        let registry = Arc::new(Registry::new(
            4,
            Duration::from_secs(60),
            XdsMetrics::default(),
        ));
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

    /// Each record belongs to a changing policy, and at times also to a policy common to all
    /// records.
    #[test]
    fn counts_are_those_of_all_records_after_any_change() {
        let registry = Arc::new(Registry::new(
            20,
            Duration::from_secs(60),
            XdsMetrics::default(),
        ));
        let mut connections: Vec<Connection> = Vec::new();
        let mut random = 7_u32;
        for step in 0..500 {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let draw = (random >> 16) as usize;
            let policy = format!("a/{}", draw % 3);
            let node = format!("{}", draw % 5);
            match connections.get(draw % connections.len().max(1)) {
                None => connections.push(connect(&registry, &node)),
                Some(one) => match draw % 7 {
                    0 if connections.len() < 10 => {
                        connections.push(connect(&registry, &node));
                    }
                    1 => drop(connections.swap_remove(draw % connections.len())),
                    2 => drop(one.update(|p| p.version = None)),
                    3 => drop(one.update(|p| {
                        p.acked = p.version.clone().map(|version| Push {
                            version,
                            revision: String::new(),
                            filter: Kind::Wasm,
                            at: SystemTime::now(),
                        });
                    })),
                    _ => drop(one.update(|p| {
                        p.version = Some(step.to_string());
                        p.assignment = assignment(&["a/all", &policy]);
                    })),
                },
            }
            if draw.is_multiple_of(2) {
                let all = Tallies::of(&registry.proxies(SystemTime::now()));
                assert_eq!(*registry.tallies(), all, "{step}");
            }
        }
        drop(connections);
        assert_eq!(*registry.tallies(), Tallies::default());
        assert!(registry.lock().by_policy.records.is_empty());
    }

    /// Prints the time of counting many proxies, each with a policy of its own.
    #[test]
    #[ignore = "a measurement; run it with --release"]
    fn time_of_counting() {
        const PROXIES: usize = 10_000;
        let keep = Duration::from_secs(60);
        let registry = Arc::new(Registry::new(PROXIES, keep, XdsMetrics::default()));
        let mut connections = Vec::new();
        for n in 0..PROXIES {
            let one = connect(&registry, &format!("proxy-{}", n * 7_919 % PROXIES));
            let policy = format!("scale-{}/service-{n}", n % 20);
            one.update(|p| {
                p.version = Some("1".to_owned());
                p.assignment = assignment(&[&policy]);
            });
            connections.push(one);
        }
        let _first = registry.tallies();
        for one in connections.iter().step_by(PROXIES / 5) {
            one.update(|p| p.sent = None);
            let begun = std::time::Instant::now();
            let all = Tallies::of(&registry.proxies(SystemTime::now()));
            let (of_all, begun) = (begun.elapsed(), std::time::Instant::now());
            let changed = registry.tallies();
            eprintln!("all: {of_all:?}, what changed: {:?}", begun.elapsed());
            assert_eq!(*changed, all);
        }
    }

    #[test]
    fn changes_of_records_are_detected() {
        let registry = Arc::new(Registry::new(
            10,
            Duration::from_secs(60),
            XdsMetrics::default(),
        ));
        let mut changes = registry.changes();
        assert!(!changes.has_changed().unwrap());
        let a = connect(&registry, "a");
        assert!(changes.has_changed().unwrap());
        changes.borrow_and_update();
        drop(a);
        assert!(changes.has_changed().unwrap());
    }

    #[test]
    fn proxies_are_forgotten_after_a_while() {
        let registry = Arc::new(Registry::new(
            10,
            Duration::from_secs(60),
            XdsMetrics::default(),
        ));
        drop(connect(&registry, "a"));
        let now = SystemTime::now();
        assert_eq!(ids(&registry, now), ["a"]);
        assert!(ids(&registry, now + Duration::from_secs(61)).is_empty());
    }

    #[test]
    fn a_full_registry_makes_room_only_where_a_proxy_has_left() {
        let registry = Arc::new(Registry::new(
            2,
            Duration::from_secs(60),
            XdsMetrics::default(),
        ));
        let a = connect(&registry, "a");
        let b = connect(&registry, "b");
        drop(b);
        let c = connect(&registry, "c");
        assert_eq!(ids(&registry, SystemTime::now()), ["a", "c"]);
        drop((a, c));
    }
}
