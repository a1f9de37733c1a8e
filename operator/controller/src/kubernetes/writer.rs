//! Writes policies' statuses, on the leader.
//!
//! A thousand proxies that answer within a second change one policy's status a thousand times, but
//! cause only one or two writes. The task wakes on any relevant change, computes all statuses in
//! one pass, and writes those that differ. It writes each policy at most once in [`INTERVAL`], and
//! always writes the last state. A write carries the `resourceVersion` from which the status was
//! computed. So the API server refuses a write that is based on an old version, including the write
//! of a replica that no longer leads.
//!
//! After an operator starts, or a replica stops, proxies reconnect one by one. So within [`SETTLE`]
//! of such a change, a programmed policy doesn't lose its condition because proxies are missing,
//! unless some of its proxies have already reconnected in this time.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};
use tracing::{debug, warn};

use super::events::{self, News, transitions};
use super::leader::{Leadership, WRITE_TIMEOUT, may_write};
use super::peers::Peers;
use super::resource::{AdmissionPolicyStatus, PolicyResource};
use super::status::{Facts, wanted};
use super::store::{Observations, Observed};
use crate::conditions::Condition;
use crate::metrics::{Metrics, WriteResult};
use headgate_api::plan::{Plan, PolicyState};
use headgate_api::{API_VERSION, KIND};
use headgate_deliver::Delivered;
use headgate_deliver::cluster::ObjectKey;
use headgate_deliver::object::FIELD_MANAGER;
use headgate_deliver::readable::Readable;
use headgate_xds::registry::Registry;
use headgate_xds::tally::Tallies;

/// The shortest interval between two writes of one policy's status.
pub const INTERVAL: Duration = Duration::from_secs(1);
/// The time for which a status waits for pending answers of proxies, so that most edits cause only
/// one write.
const ANSWERS: Duration = Duration::from_millis(200);
/// The shortest interval between two passes over all policies.
const PASS: Duration = Duration::from_millis(50);
/// The settling time. Proxies have this time to reconnect after this operator starts, becomes the
/// leader, or observes a change of replicas. Envoy retries after 5 s at the latest with the
/// settings of `headgate bootstrap`, and after 30 s with its own settings.
const SETTLE: Duration = Duration::from_secs(60);
/// The longest interval between attempts at a write that keeps failing, for example because of a
/// missing permission.
const MAX_INTERVAL: Duration = Duration::from_secs(64);
/// The largest number of writes in flight.
const CONCURRENT: usize = 32;

/// The inputs of statuses.
pub struct Inputs {
    /// The newest plan.
    pub plans: watch::Receiver<Arc<Plan>>,
    /// The observed statuses.
    pub observations: Arc<Observations>,
    /// Notified when an observed status has changed.
    pub observed: watch::Receiver<()>,
    /// This replica's proxies.
    pub registry: Arc<Registry>,
    /// Other replicas' proxies.
    pub peers: watch::Receiver<Peers>,
    /// The outcomes of deliveries.
    pub deliveries: watch::Receiver<Arc<Delivered>>,
    /// The time until which this replica leads, and so writes.
    pub leadership: Leadership,
}

/// The task that writes statuses.
pub struct Writer {
    client: Client,
    inputs: Inputs,
    events: mpsc::Sender<News>,
    metrics: Metrics,
    /// Policies with a pending or recent write.
    pace: BTreeMap<ObjectKey, Pace>,
    writes: JoinSet<Written>,
    /// The replicas whose proxies were counted in the last pass. `None` before the first pass as
    /// leader.
    heard: Option<BTreeSet<SocketAddr>>,
    /// The end of the settling time.
    settled: Instant,
    /// Policies that had a proxy during the settling time.
    seen: BTreeSet<ObjectKey>,
    /// The last pass.
    last: Option<Pass>,
    /// The number of statuses computed so far.
    considered: u64,
}

/// The inputs of a pass, and the statuses that it found to be current.
struct Pass {
    plan: Arc<Plan>,
    tallies: Arc<Tallies>,
    deliveries: Arc<Delivered>,
    /// Whether the pass was in the settling time.
    settling: bool,
    /// The policies whose observed status was current, by name, each with that status.
    right: HashMap<String, Arc<Observed>>,
}

impl Pass {
    /// Whether the status of `state` was current in the pass `before` and none of its inputs has
    /// changed since. Then it is still current and isn't computed again.
    fn stays_right(&self, before: &Self, state: &PolicyState, observed: &Arc<Observed>) -> bool {
        let right = before.right.get(&state.name);
        right.is_some_and(|right| Arc::ptr_eq(right, observed))
            && self.settling == before.settling
            && (Arc::ptr_eq(&self.plan, &before.plan) || before.knows(state))
            && (Arc::ptr_eq(&self.tallies, &before.tallies)
                || self.tallies.is_same(&before.tallies, &state.name))
            && (Arc::ptr_eq(&self.deliveries, &before.deliveries)
                || self.deliveries.programmed(&state.name)
                    == before.deliveries.programmed(&state.name))
    }

    fn knows(&self, state: &PolicyState) -> bool {
        let policies = &self.plan.policies;
        let at = policies.binary_search_by(|known| known.name.cmp(&state.name));
        at.is_ok_and(|at| policies.get(at) == Some(state))
    }
}

/// The pace of a policy's writes.
#[derive(Debug, Clone, Copy, Default)]
struct Pace {
    in_flight: bool,
    /// The start of the last write.
    last: Option<Instant>,
    /// The time since which the status differs. `None` if it doesn't.
    differs_since: Option<Instant>,
    /// The number of consecutive failures, other than conflicts.
    failures: u32,
}

impl Pace {
    /// Returns the time from which a differing status may be written. `pending` means that proxies
    /// haven't answered yet.
    fn due(&self, pending: bool, now: Instant) -> Instant {
        let patience = if pending { ANSWERS } else { Duration::ZERO };
        let ready = self.differs_since.unwrap_or(now) + patience;
        self.last
            .map_or(ready, |last| ready.max(last + self.interval()))
    }

    /// Returns the interval to the next write, which doubles with each consecutive failure.
    fn interval(&self) -> Duration {
        let doubled = INTERVAL.saturating_mul(1 << self.failures.min(16));
        doubled.min(MAX_INTERVAL)
    }

    fn is_over(&self, now: Instant) -> bool {
        !self.in_flight
            && self.differs_since.is_none()
            && self.last.is_none_or(|last| last + self.interval() <= now)
    }
}

/// The time at which a status must be computed again.
enum Next {
    /// After a change of an input, because the status is current.
    Right,
    /// After the end of a write, or a change of an input.
    Event,
    /// At this time at the latest.
    At(Instant),
}

/// The outcome of a write.
struct Written {
    key: ObjectKey,
    before: Arc<Observed>,
    status: AdmissionPolicyStatus,
    result: Result<Observed, Failure>,
}

enum Failure {
    /// The write was based on an old version of the policy, or the policy was deleted.
    Conflict,
    Other(String),
}

impl Writer {
    /// Returns a writer that hasn't started.
    pub fn new(
        client: Client,
        inputs: Inputs,
        events: mpsc::Sender<News>,
        metrics: Metrics,
    ) -> Self {
        Self {
            client,
            inputs,
            events,
            metrics,
            pace: BTreeMap::new(),
            writes: JoinSet::new(),
            heard: None,
            settled: Instant::now(),
            seen: BTreeSet::new(),
            last: None,
            considered: 0,
        }
    }

    /// Writes until `shutdown` holds `true`. Returns once no write is in flight.
    pub async fn run(mut self, mut shutdown: watch::Receiver<bool>) {
        let mut proxies = self.inputs.registry.changes();
        loop {
            let now = Instant::now();
            let next_pass = now + PASS;
            let wake = match may_write(&self.inputs.leadership, now) {
                true => self.pass(now),
                false => {
                    self.heard = None;
                    self.last = None;
                    None
                }
            };
            let inputs = &mut self.inputs;
            let sleep = async {
                match wake {
                    Some(wake) => sleep_until(wake.max(next_pass)).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                _ = shutdown.wait_for(|stop| *stop) => break,
                Some(Ok(written)) = self.writes.join_next() => self.written(written),
                Ok(()) = inputs.plans.changed() => {}
                Ok(()) = inputs.observed.changed() => {}
                Ok(()) = proxies.changed() => {}
                Ok(()) = inputs.peers.changed() => {}
                Ok(()) = inputs.deliveries.changed() => {}
                Ok(()) = inputs.leadership.changed() => {}
                () = sleep => {}
            }
            // The next pass handles all changes that arrive before it.
            tokio::select! {
                _ = shutdown.wait_for(|stop| *stop) => break,
                () = sleep_until(next_pass) => {}
            }
            self.collect();
        }
        while self.writes.join_next().await.is_some() {}
    }

    /// Computes all statuses and starts the writes that are due. Returns the time of the next pass.
    fn pass(&mut self, now: Instant) -> Option<Instant> {
        let peers = self.inputs.peers.borrow().clone();
        if !peers.complete {
            // A replica that hasn't answered must not count as one without proxies.
            return Some(now + INTERVAL);
        }
        let heard: BTreeSet<SocketAddr> = peers.tallies.keys().copied().collect();
        if self.heard.as_ref() != Some(&heard) {
            self.heard = Some(heard);
            self.settled = now + SETTLE;
            self.seen.clear();
            self.last = None;
        }
        let plan = Arc::clone(&self.inputs.plans.borrow());
        let deliveries = Arc::clone(&self.inputs.deliveries.borrow());
        let is_delivering = self.inputs.deliveries.has_changed().is_ok();
        if is_delivering && !deliveries.complete {
            // Before the first round of deliveries, a missing delivery doesn't mean "not
            // delivered".
            return Some(now + INTERVAL);
        }
        let mut tallies = self.inputs.registry.tallies();
        for of_peer in peers.tallies.values() {
            Arc::make_mut(&mut tallies).merge(of_peer);
        }
        let mut pass = Pass {
            plan,
            tallies,
            deliveries,
            settling: now < self.settled,
            right: HashMap::new(),
        };
        let mut before = self.last.take();
        let mut wake: Option<Instant> = None;
        let plan = Arc::clone(&pass.plan);
        for state in &plan.policies {
            let Ok(key) = state.name.parse() else {
                continue;
            };
            // If the generations differ, the plan or the observation is outdated, and will change
            // soon.
            let observed = self.inputs.observations.get(&key);
            let Some(observed) = observed.filter(|o| o.generation == state.generation) else {
                continue;
            };
            if let Some(before) = &mut before
                && pass.stays_right(before, state, &observed)
                && let Some((name, right)) = before.right.remove_entry(&state.name)
            {
                pass.right.insert(name, right);
                continue;
            }
            match self.consider(state, &key, &observed, &pass, now) {
                Next::Right => {
                    pass.right.insert(state.name.clone(), observed);
                }
                Next::Event => {}
                Next::At(due) => wake = Some(wake.map_or(due, |w| w.min(due))),
            }
        }
        self.last = Some(pass);
        let observations = &self.inputs.observations;
        self.pace.retain(|key, pace| {
            pace.in_flight || !pace.is_over(now) && observations.get(key).is_some()
        });
        wake
    }

    /// Starts the write of one status if it differs and a write is due.
    fn consider(
        &mut self,
        state: &PolicyState,
        key: &ObjectKey,
        before: &Arc<Observed>,
        pass: &Pass,
        now: Instant,
    ) -> Next {
        self.considered += 1;
        let tallies = &pass.tallies;
        let delivered = { pass.deliveries.programmed(&state.name) }
            .map(|(status, reason, message)| Condition::new(status, reason, message));
        let settling = pass.settling.then(|| {
            if tallies.of_policy(&state.name).total > 0 {
                self.seen.insert(key.clone());
            }
            self.seen.contains(key)
        });
        let facts = Facts {
            state,
            tallies,
            delivered: delivered.as_ref(),
            settling,
        };
        let time = Time(second(Timestamp::now()));
        let wanted = wanted(&facts, before.status.as_ref(), &time);
        // A kept condition is computed again at the end of the settling time. It doesn't delay
        // other conditions.
        let looks_again = match wanted.holds {
            true => Next::At(self.settled),
            false => Next::Event,
        };
        let Some(status) = wanted.status else {
            if let Some(pace) = self.pace.get_mut(key) {
                pace.differs_since = None;
            }
            return match wanted.holds {
                true => looks_again,
                false => Next::Right,
            };
        };
        let full = self.writes.len() >= CONCURRENT;
        let pace = self.pace.entry(key.clone()).or_default();
        pace.differs_since.get_or_insert(now);
        if pace.in_flight {
            return looks_again;
        }
        let due = pace.due(wanted.pending, now);
        if due > now {
            return Next::At(due);
        }
        // The end of a write wakes this task.
        if full {
            return looks_again;
        }
        *pace = Pace {
            in_flight: true,
            last: Some(now),
            differs_since: None,
            failures: pace.failures,
        };
        let write = write(self.client.clone(), key.clone(), Arc::clone(before), status);
        self.writes.spawn(write);
        looks_again
    }

    /// Applies the outcomes of all writes that have ended. Each makes room for another write in the
    /// next pass.
    fn collect(&mut self) {
        while let Some(Ok(written)) = self.writes.try_join_next() {
            self.written(written);
        }
    }

    /// Applies the outcome of a write.
    fn written(&mut self, written: Written) {
        // The API server drops fields that the CRD lacks. Then a write changes nothing, and the
        // status still differs.
        let is_idle = matches!(
            &written.result,
            Ok(known) if known.resource_version == written.before.resource_version
        );
        if let Some(pace) = self.pace.get_mut(&written.key) {
            pace.in_flight = false;
            pace.failures = match written.result {
                Err(Failure::Other(_)) => pace.failures.saturating_add(1),
                Ok(_) if is_idle => pace.failures.saturating_add(1),
                _ => 0,
            };
            if is_idle && pace.failures == 1 {
                warn!(
                    policy = %written.key,
                    "the API server drops a part of its status; the CRD may be of another version: \
                     headgate check"
                );
            }
        }
        let result = match written.result {
            Ok(observed) => {
                let policy = events::reference(written.key.clone(), observed.uid.clone());
                self.inputs.observations.newer(&written.key, observed);
                for event in transitions(written.before.status.as_ref(), &written.status) {
                    if self.events.try_send((policy.clone(), event)).is_err() {
                        debug!("too many Events at once; one is left out");
                    }
                }
                WriteResult::Applied
            }
            Err(Failure::Conflict) => WriteResult::Conflict,
            Err(Failure::Other(why)) => {
                warn!(policy = %written.key, "writing its status failed and is retried: {why}");
                WriteResult::Error
            }
        };
        self.metrics.kubernetes.wrote("admissionpolicies", result);
    }
}

/// Returns `time` in whole seconds, as Kubernetes writes all times.
fn second(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

async fn write(
    client: Client,
    key: ObjectKey,
    before: Arc<Observed>,
    status: AdmissionPolicyStatus,
) -> Written {
    let api: Api<Readable<PolicyResource>> = Api::namespaced(client, &key.namespace);
    let body = json!({
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {
            "name": key.name,
            "namespace": key.namespace,
            "resourceVersion": before.resource_version,
        },
        "status": status,
    });
    // The list includes other controllers' entries unchanged. The resource version ensures that
    // they are current.
    let params = PatchParams::apply(FIELD_MANAGER).force();
    let patch = Patch::Apply(&body);
    let patched = timeout(WRITE_TIMEOUT, api.patch_status(&key.name, &params, &patch)).await;
    let result = match patched {
        Ok(Ok(Readable(policy))) => Ok(Observed::new(&policy)),
        Ok(Err(kube::Error::Api(status))) if matches!(status.code, 404 | 409) => {
            Err(Failure::Conflict)
        }
        Ok(Err(error)) => Err(Failure::Other(error.to_string())),
        Err(_) => Err(Failure::Other("no answer in time".to_owned())),
    };
    Written {
        key,
        before,
        status,
        result,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use headgate_deliver::watch::Seen;
    use headgate_fakes::{accepted, api_server};

    fn state(number: usize) -> PolicyState {
        let target = format!("Service/a/{number}").parse().unwrap();
        accepted(&format!("a/{number:04}"), vec![target])
    }

    fn observed(state: &PolicyState, version: u32) -> Observed {
        let facts = Facts {
            state,
            tallies: &Tallies::default(),
            delivered: None,
            settling: None,
        };
        Observed {
            uid: "u".to_owned(),
            generation: 1,
            resource_version: version.to_string(),
            status: wanted(&facts, None, &Time(Timestamp::UNIX_EPOCH)).status,
        }
    }

    /// Records an observation of the watch.
    fn see(observations: &Observations, state: &PolicyState, observed: Observed) {
        let key = state.name.parse().unwrap();
        observations.see(Seen::Applied((key, Arc::new(observed))));
    }

    fn peers(running: u32) -> Peers {
        let tallies = json!({"a/0004": {"total": 2, "running": running, "by_target": []}});
        let tallies = serde_json::from_value(tallies).unwrap();
        Peers {
            complete: true,
            tallies: BTreeMap::from([("10.0.0.1:1".parse().unwrap(), Arc::new(tallies))]),
        }
    }

    fn writer(
        client: Client,
        plans: watch::Receiver<Arc<Plan>>,
        observations: Arc<Observations>,
        peers: watch::Receiver<Peers>,
    ) -> Writer {
        let metrics = Metrics::new();
        let registry = Registry::new(10, Duration::from_secs(60), metrics.xds.clone());
        let inputs = Inputs {
            plans,
            observations,
            observed: watch::channel(()).1,
            registry: Arc::new(registry),
            peers,
            deliveries: watch::channel(Arc::default()).1,
            leadership: watch::channel(None).1,
        };
        Writer::new(client, inputs, mpsc::channel(1).0, metrics)
    }

    #[tokio::test]
    async fn all_writes_that_have_ended_make_room_at_once() {
        let gone = || json!({"kind": "Status", "status": "Failure", "code": 404});
        let client = api_server(move |_, _, _| Some((404, gone())));
        let plan = Plan {
            policies: (0..3 * CONCURRENT).map(state).collect(),
            ..Plan::default()
        };
        let observations = Arc::new(Observations::default());
        for state in &plan.policies {
            let unwritten = Observed {
                status: None,
                ..observed(state, 1)
            };
            see(&observations, state, unwritten);
        }
        let plans = watch::channel(Arc::new(plan)).1;
        let peers = watch::channel(peers(1)).1;
        let mut writer = writer(client, plans, observations, peers);
        let now = Instant::now();
        let _ = writer.pass(now);
        assert_eq!(writer.writes.len(), 0, "proxies may not have seen the plan");
        let now = now + ANSWERS;
        for round in 1..=3 {
            let _ = writer.pass(now);
            assert_eq!(writer.writes.len(), CONCURRENT, "{round}");
            let begun = writer.pace.values().filter(|pace| pace.last.is_some());
            assert_eq!(begun.count(), round * CONCURRENT);
            while !writer.writes.is_empty() {
                tokio::task::yield_now().await;
                writer.collect();
            }
        }
    }

    #[tokio::test]
    async fn a_deleted_policy_whose_status_was_not_written_is_forgotten() {
        let plan = Plan {
            policies: vec![state(0)],
            ..Plan::default()
        };
        let observations = Arc::new(Observations::default());
        let unwritten = || Observed {
            status: None,
            ..observed(&state(0), 1)
        };
        see(&observations, &state(0), unwritten());
        let plans = watch::Sender::new(Arc::new(plan));
        let client = api_server(|_, _, _| None);
        let peers = watch::channel(peers(1)).1;
        let mut writer = writer(client, plans.subscribe(), Arc::clone(&observations), peers);
        let now = Instant::now();
        let _ = writer.pass(now);
        assert_eq!(writer.pace.len(), 1, "it waits for answers of proxies");
        plans.send_replace(Arc::default());
        let key = ObjectKey::new("a", "0000");
        observations.see(Seen::Deleted((key, Arc::new(unwritten()))));
        let _ = writer.pass(now);
        assert!(writer.pace.is_empty());
    }

    /// An edit, or a proxy's answer, affects one policy, regardless of the number of policies.
    #[tokio::test]
    async fn only_a_status_whose_inputs_have_changed_is_computed() {
        for policies in [10, 100] {
            let mut plan = Plan {
                policies: (0..policies).map(state).collect(),
                ..Plan::default()
            };
            let observations = Arc::new(Observations::default());
            let observe = |state: &PolicyState, version| {
                see(&observations, state, observed(state, version));
            };
            plan.policies.iter().for_each(|state| observe(state, 1));
            let plans = watch::Sender::new(Arc::new(plan.clone()));
            let others = watch::Sender::new(peers(1));
            let client = api_server(|_, _, _| None);
            let observed = Arc::clone(&observations);
            let mut writer = writer(client, plans.subscribe(), observed, others.subscribe());
            let begun = Instant::now();
            let mut computed = |after| {
                let before = writer.considered;
                let _ = writer.pass(begun + after);
                writer.considered - before
            };
            let soon = Duration::from_millis(50);
            assert_eq!(computed(Duration::ZERO), policies as u64);
            assert_eq!(computed(soon), 0, "at rest");
            plan.policies[3].revision = "s".to_owned();
            plans.send_replace(Arc::new(plan.clone()));
            assert_eq!(computed(soon), 1, "an edit");
            plans.send_replace(Arc::new(plan.clone()));
            assert_eq!(computed(soon), 0, "a plan without news for policies");
            observe(&plan.policies[5], 2);
            assert_eq!(computed(soon), 1, "a newer object");
            others.send_replace(peers(2));
            assert_eq!(computed(soon), 1, "an answer");
            assert_eq!(
                computed(SETTLE),
                policies as u64,
                "the end of reconnections"
            );
            assert_eq!(computed(SETTLE), 0);
        }
    }

    /// Prints the time of a pass over many policies.
    #[tokio::test]
    #[ignore = "a measurement; run it with --release"]
    async fn time_of_a_pass() {
        for policies in [1_000, 10_000] {
            let mut plan = Plan {
                policies: (0..policies).map(state).collect(),
                ..Plan::default()
            };
            plan.policies.sort_by(|a, b| a.name.cmp(&b.name));
            let observations = Arc::new(Observations::default());
            for state in &plan.policies {
                see(&observations, state, observed(state, 1));
            }
            let plans = watch::Sender::new(Arc::new(plan.clone()));
            let others = watch::Sender::new(peers(1));
            let client = api_server(|_, _, _| None);
            let mut writer = writer(client, plans.subscribe(), observations, others.subscribe());
            let mut pass = |what: &str| {
                let begun = Instant::now();
                let _ = writer.pass(begun);
                eprintln!("{policies} policies, {what}: {:?}", begun.elapsed());
            };
            pass("the first pass");
            pass("at rest");
            pass("at rest");
            plan.policies[3].revision = "s".to_owned();
            plans.send_replace(Arc::new(plan.clone()));
            pass("an edit");
            plans.send_replace(Arc::new(plan));
            pass("a plan without news");
            others.send_replace(peers(2));
            pass("an answer");
        }
    }

    /// An older CRD drops the conditions of all targets together.
    #[tokio::test]
    async fn a_status_that_the_crd_drops_a_part_of_is_written_less_and_less() {
        let (sent, written) = (Arc::new(AtomicUsize::new(0)), state(0));
        let (count, uid) = (Arc::clone(&sent), observed(&written, 1).uid);
        let client = api_server(move |_, _, mut policy| {
            count.fetch_add(1, Ordering::Relaxed);
            // Only the first write changes the object.
            policy["metadata"]["resourceVersion"] = json!("2");
            let status = policy["status"].as_object_mut().unwrap();
            status.remove("conditions");
            policy["metadata"]["uid"] = json!(uid);
            policy["metadata"]["generation"] = json!(1);
            policy["spec"] = json!({});
            Some((200, policy))
        });
        let observations = Arc::new(Observations::default());
        let unwritten = Observed {
            status: None,
            ..observed(&written, 1)
        };
        see(&observations, &written, unwritten);
        let plan = Plan {
            policies: vec![written],
            ..Plan::default()
        };
        let plans = watch::channel(Arc::new(plan)).1;
        let peers = watch::channel(peers(1)).1;
        let mut writer = writer(client, plans, observations, peers);
        let begun = Instant::now();
        for second in 0..64 {
            let _ = writer.pass(begun + Duration::from_secs(second));
            while !writer.writes.is_empty() {
                tokio::task::yield_now().await;
                writer.collect();
            }
        }
        // The writes are after 1, 2, 4, 8, 16 and 32 s.
        assert_eq!(sent.load(Ordering::Relaxed), 6);
    }

    #[test]
    fn a_status_waits_for_answers_and_for_its_turn() {
        let now = Instant::now();
        let fresh = Pace {
            differs_since: Some(now),
            ..Pace::default()
        };
        assert_eq!(fresh.due(false, now), now);
        assert_eq!(fresh.due(true, now), now + ANSWERS);
        let written = Pace {
            last: Some(now),
            ..fresh
        };
        assert_eq!(written.due(false, now), now + INTERVAL);
        assert!(!written.is_over(now + INTERVAL), "it still differs");
        let done = Pace {
            differs_since: None,
            ..written
        };
        assert!(!done.is_over(now) && done.is_over(now + INTERVAL));
    }

    #[test]
    fn a_write_that_fails_each_time_is_tried_less_and_less() {
        let now = Instant::now();
        let after = |failures: u32| {
            let pace = Pace {
                last: Some(now),
                failures,
                ..Pace::default()
            };
            pace.due(false, now) - now
        };
        assert_eq!([0, 1, 2].map(after), [1, 2, 4].map(Duration::from_secs));
        assert_eq!(after(u32::MAX), MAX_INTERVAL);
    }
}
