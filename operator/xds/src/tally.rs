//! The counts of proxies for each policy, at one replica or at all.
//!
//! A policy's `Programmed` condition covers every proxy that should enforce the policy, on any
//! replica. So each replica counts its own proxies. It recounts those of a policy when one of them
//! has changed. The leader adds up the counts of all replicas. Counts are small, unlike lists of
//! proxies.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::node::clip;
use crate::proxy::{Proxy, RunState};
use headgate_api::plan::TargetRef;

/// The longest texts of refusals in brief counts, in bytes.
const BRIEF: usize = 64;

/// The counts of all policies, by `namespace/name`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Tallies(BTreeMap<String, Counts>);

/// The changes of counts by policy. The counts of a policy replace its earlier counts as a whole,
/// unlike those in a JSON merge patch (RFC 7396), which would keep an absent `rejected`. `None`
/// removes a policy that no proxy should enforce any more.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Changes(BTreeMap<String, Option<Counts>>);

/// Counts of one policy.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
struct Counts {
    /// All proxies that should enforce any generation of the policy, each counted once.
    #[serde(flatten)]
    all: Tally,
    /// The same proxies by generation and target. A proxy that the policy reaches through two
    /// targets counts in both entries.
    by_target: Vec<Entry>,
}

/// The proxies that should enforce one generation of a policy, through one of its targets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    generation: i64,
    /// The target through which the policy reaches the proxies. If it is `None`, the target is
    /// unknown, and the proxies count for every target.
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<TargetRef>,
    #[serde(flatten)]
    tally: Tally,
}

/// The progress of proxies towards the version that they should enforce.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Tally {
    /// The number of proxies that should enforce the version.
    pub total: u64,
    /// The number of proxies that report that they run the version.
    pub running: u64,
    /// A refusal of the version. If there are several, it is the first by node id, so that equal
    /// refusals give equal texts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rejected: Option<Rejection>,
}

/// A proxy's refusal.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Rejection {
    /// The node id.
    pub node: String,
    /// Envoy's reason.
    pub message: String,
}

impl Tally {
    fn add(&mut self, other: &Self) {
        self.total += other.total;
        self.running += other.running;
        let refusals = [self.rejected.take(), other.rejected.clone()];
        self.rejected = refusals.into_iter().flatten().min();
    }

    fn shorten(&mut self) {
        if let Some(Rejection { node, message }) = &mut self.rejected {
            for text in [node, message] {
                // In JSON, a control character is an escape of six bytes.
                *text = clip(&text.replace(char::is_control, " "), BRIEF);
            }
        }
    }
}

impl Changes {
    /// Returns the changes with short texts of refusals.
    pub fn brief(&self) -> Self {
        let brief = |(policy, counts): (&String, &Option<Counts>)| {
            (policy.clone(), counts.as_ref().map(Counts::brief))
        };
        Self(self.0.iter().map(brief).collect())
    }
}

impl Tallies {
    /// Returns the counts with short texts of refusals.
    pub fn brief(&self) -> Self {
        let brief = |(policy, counts): (&String, &Counts)| (policy.clone(), counts.brief());
        Self(self.0.iter().map(brief).collect())
    }

    /// Recounts the proxies of `policy`. `streams` are all streams with a stage of the policy.
    /// Streams of one node over one connection belong to one proxy, which runs the policy once all
    /// of them do.
    pub fn count(&mut self, policy: &str, streams: &[Arc<Proxy>]) {
        let mut proxies: BTreeMap<(&str, &str), (i64, &Arc<Proxy>, Tally)> = BTreeMap::new();
        for stream in streams {
            let Some(stage) = stream.stages().find(|stage| stage.policy == policy) else {
                continue;
            };
            let (running, rejected) = match stream.run_state() {
                RunState::Running => (1, None),
                RunState::Pending => (0, None),
                RunState::Rejected(message) => {
                    let node = stream.identity.id.clone();
                    (0, Some(Rejection { node, message }))
                }
            };
            let one = Tally {
                total: 1,
                running: 1,
                rejected: None,
            };
            let proxy = (stream.identity.id.as_str(), stream.peer.as_str());
            let start = (stage.generation, stream, one);
            let (_, _, tally) = proxies.entry(proxy).or_insert(start);
            tally.running = tally.running.min(running);
            let refusals = [tally.rejected.take(), rejected];
            tally.rejected = refusals.into_iter().flatten().min();
        }
        let mut counts = Counts::default();
        for (generation, stream, one) in proxies.values() {
            counts.all.add(one);
            let mut targets = stream.targets_of(policy).peekable();
            if targets.peek().is_none() {
                counts.add(*generation, None, one);
            }
            for target in targets {
                counts.add(*generation, Some(target), one);
            }
        }
        match proxies.is_empty() {
            true => self.0.remove(policy),
            false => self.0.insert(policy.to_owned(), counts),
        };
    }

    /// Adds the counts of another replica.
    pub fn merge(&mut self, other: &Self) {
        for (policy, counts) in &other.0 {
            let sum = self.0.entry(policy.clone()).or_default();
            sum.all.add(&counts.all);
            for e in &counts.by_target {
                sum.add(e.generation, e.target.as_ref(), &e.tally);
            }
        }
    }

    /// Returns the changes from `before` to these counts.
    pub fn changes_since(&self, before: &Self) -> Changes {
        let changed = self
            .0
            .iter()
            .filter(|(policy, counts)| before.0.get(*policy) != Some(counts));
        let changed = changed.map(|(policy, counts)| (policy.clone(), Some(counts.clone())));
        let gone = before
            .0
            .keys()
            .filter(|policy| !self.0.contains_key(*policy));
        Changes(
            changed
                .chain(gone.map(|policy| (policy.clone(), None)))
                .collect(),
        )
    }

    /// Applies changes.
    pub fn change(&mut self, changes: Changes) {
        for (policy, counts) in changes.0 {
            match counts {
                Some(counts) => self.0.insert(policy, counts),
                None => self.0.remove(&policy),
            };
        }
    }

    /// Returns the counts for `generation` of `policy` at `target`. Proxies that are assigned
    /// another generation count only in the total.
    pub fn of_generation(&self, policy: &str, generation: i64, target: &TargetRef) -> Tally {
        let mut sum = Tally::default();
        for entry in self.by_target(policy, target) {
            if entry.generation == generation {
                sum.add(&entry.tally);
            } else {
                sum.total += entry.tally.total;
            }
        }
        sum
    }

    /// Returns the counts for any generation of `policy` at `target`.
    pub fn of_target(&self, policy: &str, target: &TargetRef) -> Tally {
        let mut sum = Tally::default();
        for entry in self.by_target(policy, target) {
            sum.add(&entry.tally);
        }
        sum
    }

    /// Whether both have the same counts of `policy`.
    pub fn is_same(&self, other: &Self, policy: &str) -> bool {
        self.0.get(policy) == other.0.get(policy)
    }

    fn by_target(&self, policy: &str, target: &TargetRef) -> impl Iterator<Item = &Entry> {
        let entries = self.0.get(policy).into_iter().flat_map(|c| &c.by_target);
        entries.filter(move |e| e.target.as_ref().is_none_or(|t| t == target))
    }

    /// Returns the counts for any generation of `policy` at any target.
    pub fn of_policy(&self, policy: &str) -> Tally {
        self.0
            .get(policy)
            .map(|c| c.all.clone())
            .unwrap_or_default()
    }
}

impl Counts {
    fn brief(&self) -> Self {
        let mut brief = self.clone();
        brief.all.shorten();
        for entry in &mut brief.by_target {
            entry.tally.shorten();
        }
        brief
    }

    fn add(&mut self, generation: i64, target: Option<&TargetRef>, more: &Tally) {
        let known = self
            .by_target
            .iter_mut()
            .find(|e| e.generation == generation && e.target.as_ref() == target);
        match known {
            Some(entry) => entry.tally.add(more),
            None => self.by_target.push(Entry {
                generation,
                target: target.cloned(),
                tally: more.clone(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Borrow;
    use std::time::SystemTime;

    use headgate_core::config::FilterConfig;

    use super::*;
    use crate::node::Identity;
    use crate::proxy::{Nack, Push};
    use crate::snapshot::Assignment;

    const SEARCH: &str = "Service/a/search";

    impl Tallies {
        /// Returns the counts of the proxies with these streams.
        pub(crate) fn of<'a, P: Borrow<Proxy> + 'a>(
            streams: impl IntoIterator<Item = &'a P>,
        ) -> Self {
            let mut of_policy: BTreeMap<&str, Vec<Arc<Proxy>>> = BTreeMap::new();
            for stream in streams.into_iter().map(Borrow::<Proxy>::borrow) {
                for stage in stream.stages().filter(|_| stream.disconnected.is_none()) {
                    let of_it = of_policy.entry(&stage.policy).or_default();
                    of_it.push(Arc::new(stream.clone()));
                }
            }
            let mut tallies = Self::default();
            for (policy, streams) in of_policy {
                tallies.count(policy, &streams);
            }
            tallies
        }
    }

    fn target(text: &str) -> TargetRef {
        text.parse().unwrap()
    }

    fn tally(running: u64, total: u64, rejected: Option<&str>) -> Tally {
        Tally {
            total,
            running,
            rejected: rejected.map(|node| Rejection {
                node: node.to_owned(),
                message: "why".to_owned(),
            }),
        }
    }

    fn one(generation: i64, by: Option<&str>, counted: &Tally) -> Tallies {
        let mut tallies = Tallies::default();
        let counts = tallies.0.entry("a/p".to_owned()).or_default();
        counts.all.add(counted);
        counts.add(generation, by.map(target).as_ref(), counted);
        tallies
    }

    /// Returns a stream of the proxy `node` at `peer` for `slot`, of a policy with workflows.
    fn stream(node: &str, peer: &str, slot: &str, acked: bool, refused: bool) -> Proxy {
        let json = r#"{"stages": [{"policy": "a/p", "parallelism": 1,
            "queue": {"max_length": 1, "timeout_us": 1}, "types": [{"name": "default"}],
            "strategy": {"type": "MaxQueueLength"}, "workflows": {"identify": [{"type": "Type"}],
            "quantile": 0.5, "interval_us": 100000, "rate_ttl_us": 1000000, "max_workflows": 1,
            "sharing": {"type": "StaticGuarantees"}, "max_queue_length": 1}}]}"#;
        let config = Arc::new(FilterConfig::from_json(json.as_bytes()).unwrap());
        let push = || Push {
            version: "2".to_owned(),
            revision: String::new(),
            filter: Default::default(),
            at: SystemTime::UNIX_EPOCH,
        };
        Proxy {
            identity: Identity {
                id: node.to_owned(),
                ..Identity::default()
            },
            peer: peer.to_owned(),
            slot: Some(slot.to_owned()),
            connected: SystemTime::UNIX_EPOCH,
            disconnected: None,
            version: Some("2".to_owned()),
            assignment: Arc::new(Assignment {
                config,
                ..Assignment::default()
            }),
            sent: None,
            acked: acked.then(push),
            nack: refused.then(|| Nack {
                push: push(),
                message: "why".to_owned(),
            }),
        }
    }

    #[test]
    fn a_proxy_with_two_slots_is_one_proxy_and_runs_what_both_run() {
        let inbound = stream("x", "1", "headgate", true, false);
        let outbound = |acked, refused| stream("x", "1", "headgate-outbound", acked, refused);
        let counted = |streams: &[Proxy]| Tallies::of(streams).of_policy("a/p");
        let both = |calls: Proxy| counted(&[inbound.clone(), calls]);
        assert_eq!(both(outbound(true, false)), tally(1, 1, None));
        assert_eq!(both(outbound(false, false)), tally(0, 1, None));
        assert_eq!(both(outbound(false, true)), tally(0, 1, Some("x")));
        let elsewhere = stream("x", "2", "headgate", true, false);
        assert_eq!(
            counted(&[inbound.clone(), outbound(true, false), elsewhere]),
            tally(2, 2, None),
            "two Envoys of one name"
        );
    }

    #[test]
    fn replicas_add_up() {
        let mut all = one(3, Some(SEARCH), &tally(2, 2, None));
        all.merge(&one(3, Some(SEARCH), &tally(1, 3, Some("b"))));
        all.merge(&one(3, Some(SEARCH), &tally(0, 1, Some("a"))));
        assert_eq!(
            all.of_generation("a/p", 3, &target(SEARCH)),
            tally(3, 6, Some("a"))
        );
        assert_eq!(all.of_policy("a/other"), Tally::default());
    }

    #[test]
    fn a_replica_that_lags_does_not_count_as_running() {
        let mut all = one(3, Some(SEARCH), &tally(2, 2, None));
        all.merge(&one(2, Some(SEARCH), &tally(4, 4, Some("old"))));
        assert_eq!(
            all.of_generation("a/p", 3, &target(SEARCH)),
            tally(2, 6, None)
        );
    }

    #[test]
    fn targets_are_counted_apart() {
        let mut all = one(1, Some(SEARCH), &tally(1, 1, None));
        all.merge(&one(1, Some("Gateway/a/edge"), &tally(0, 2, None)));
        assert_eq!(
            all.of_generation("a/p", 1, &target(SEARCH)),
            tally(1, 1, None)
        );
        assert_eq!(all.of_policy("a/p"), tally(1, 3, None));
    }

    #[test]
    fn changes_have_what_changed_and_no_more() {
        let named = |policies: &[(&str, u64)]| {
            let of = |(policy, total): &(&str, u64)| {
                let all = tally(0, *total, None);
                let counts = Counts {
                    all,
                    by_target: Vec::new(),
                };
                ((*policy).to_owned(), counts)
            };
            Tallies(policies.iter().map(of).collect())
        };
        let before = named(&[("a/goes", 1), ("a/same", 2), ("b/changes", 3)]);
        let after = named(&[("a/comes", 4), ("a/same", 2), ("b/changes", 5)]);
        let text = serde_json::to_string(&after.changes_since(&before)).unwrap();
        assert_eq!(
            text,
            r#"{"a/comes":{"total":4,"running":0,"by_target":[]},"a/goes":null,"b/changes":{"total":5,"running":0,"by_target":[]}}"#
        );
        let mut there = before;
        there.change(serde_json::from_str(&text).unwrap());
        assert_eq!(there, after);
        assert_eq!(after.changes_since(&after), Changes::default());
    }

    #[test]
    fn counts_survive_the_wire() {
        let all = one(1, Some(SEARCH), &tally(1, 2, Some("x")));
        let text = serde_json::to_string(&all).unwrap();
        assert_eq!(serde_json::from_str::<Tallies>(&text).unwrap(), all);
        assert_eq!(
            text,
            r#"{"a/p":{"total":2,"running":1,"rejected":{"node":"x","message":"why"},"by_target":[{"generation":1,"target":"Service/a/search","total":2,"running":1,"rejected":{"node":"x","message":"why"}}]}}"#
        );
    }
}
