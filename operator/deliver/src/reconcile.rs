//! Reconciliation of the wanted objects with the observed ones.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use backon::ExponentialBackoff;
use futures::stream::{self, StreamExt as _};
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use serde_json::Value;
use tokio::time::Instant;
use tracing::{info, warn};

use crate::adapter::Adapter;
use crate::apply;
use crate::cluster::ObjectKey;
use crate::cluster::PlannedCluster;
use crate::difference::unchanged;
use crate::envoy_gateway;
use crate::object::{ModuleRef, Object, SERVED_ANNOTATION, TARGETS_ANNOTATION};
use crate::observed::Observed;
use crate::report::{Delivered, Delivery, NO_FILTER, ObjectState};
use crate::served;
use crate::settings::Settings;
use crate::unfetched::Unfetched;
use crate::wanted::{Wanted, wanted};
use crate::watch::pauses;

/// The largest number of writes in flight.
const WRITES: usize = 8;
/// The time for which a successful check of the module's URL is valid.
const CHECK_LIFE: Duration = Duration::from_secs(60);

/// The longest pause between attempts at a refused write.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

type Key = (Adapter, ObjectKey);

/// The writes of one round.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Steps {
    pub(crate) apply: BTreeSet<Key>,
    pub(crate) delete: BTreeSet<Key>,
}

/// Returns the writes that turn the observed objects into the wanted ones.
pub(crate) fn steps(wanted: &Wanted, observed: &Observed) -> Steps {
    let is_due = |(key, object): &(&Key, &Object)| {
        let value = observed.get(key.0, &key.1);
        value.is_none_or(|value| !unchanged(object, value))
    };
    let due = wanted.objects.iter().filter(is_due);
    let known = observed
        .objects()
        .map(|(adapter, key, _)| (adapter, key.clone()));
    Steps {
        apply: due.map(|(key, _)| key.clone()).collect(),
        delete: known
            .filter(|key| !wanted.objects.contains_key(key))
            .collect(),
    }
}

/// Removes the writes that need a kind that isn't known yet. An object that has to be written
/// without this knowledge is pending.
fn leave_unknown(
    wanted: &Wanted,
    steps: &mut Steps,
    observed: &Observed,
    failures: &mut BTreeMap<Key, ObjectState>,
) {
    steps.apply.retain(|key| {
        let object = wanted.objects.get(key);
        let Some(kind) = object.and_then(|o| observed.waits_for(key.0, &o.value)) else {
            return true;
        };
        let why = format!("the objects of kind {kind} can't be listed yet; see the operator's log");
        failures.insert(key.clone(), ObjectState::Pending(why));
        false
    });
    steps.delete.retain(|(adapter, name)| {
        let value = observed.get(*adapter, name);
        value.is_none_or(|value| observed.waits_for(*adapter, value).is_none())
    });
}

/// A write or deletion that was refused or failed. It is retried when the wanted or the observed
/// object changes. It is also retried after pauses, because no event reports that a conflicting
/// object was deleted, a quota was raised, or a webhook works again. The pauses after refusals
/// grow. Without a pause, each change of a Pod would repeat all writes that fail.
#[derive(Debug)]
struct Refusal {
    /// The content of the write. Empty for a deletion.
    content: String,
    version: Option<String>,
    state: ObjectState,
    /// The time of the next attempt.
    again: Instant,
    pauses: ExponentialBackoff,
}

/// Reconciles the objects on the API server with the wanted ones.
pub(crate) struct Reconciler {
    client: Client,
    settings: Settings,
    refusals: BTreeMap<Key, Refusal>,
    /// The module of the last check of its URL, with the time and the result.
    checked: Option<(ModuleRef, Instant, Result<(), String>)>,
    /// The time since which Istio's agents can fetch the module again, if this process noticed that
    /// they couldn't before.
    served_again: Option<String>,
    /// Whether Istio's agents couldn't fetch the module at the last check. Before the first check,
    /// whether they may have been unable to fetch it.
    interrupted: bool,
    /// Whether the plugins don't announce the end of an outage yet. It outlives this term.
    outage: Arc<AtomicBool>,
    /// The reason why the agents can't fetch the module now.
    unserved: Option<String>,
    unfetched: Unfetched,
}

impl Reconciler {
    /// Returns a reconciler. `outage` is true if Istio's agents may have been unable to fetch the
    /// module, and the plugins don't announce the end of that outage yet.
    pub(crate) fn new(client: Client, settings: Settings, outage: Arc<AtomicBool>) -> Self {
        Self {
            client,
            settings,
            refusals: BTreeMap::new(),
            checked: None,
            served_again: None,
            interrupted: outage.load(Ordering::Relaxed),
            outage,
            unserved: None,
            unfetched: Unfetched::default(),
        }
    }

    /// Checks whether control planes that couldn't fetch the module can do so now. Returns whether
    /// a round is due.
    pub(crate) async fn look(&mut self, sha256: &str, observed: &Observed) -> bool {
        let module = ModuleRef::new(&self.settings, sha256);
        let pause = self.settings.retry;
        let is_unfetched = self.unfetched.look(&module, pause, observed).await;
        self.look_for_istio(&module, observed, false).await || is_unfetched
    }

    /// Checks whether Istio's agents can still fetch the module. Returns whether a round is due.
    pub(crate) async fn glance(&mut self, sha256: &str, observed: &Observed) -> bool {
        let module = ModuleRef::new(&self.settings, sha256);
        !self.interrupted && self.look_for_istio(&module, observed, true).await
    }

    /// Checks whether Istio's agents can fetch the module that plugins name. Returns whether the
    /// result differs from the last one, so that a round is due.
    ///
    /// An agent that starts its proxy while the module isn't served tries a few times and then
    /// admits every request. It retries only when istiod pushes the plugin again. A change of the
    /// annotation triggers a push. A change of the module's URL would also trigger a push, but
    /// agents cache modules by URL. Agents that have the module would fetch it again, and would
    /// lose a working filter if that failed.
    async fn look_for_istio(
        &mut self,
        module: &ModuleRef,
        observed: &Observed,
        is_glance: bool,
    ) -> bool {
        let named = |(adapter, _, value): (Adapter, &ObjectKey, &Value)| {
            adapter.is_plugin() && names(value, module)
        };
        if !observed.objects().any(named) {
            return false;
        }
        match served::check(module, is_glance).await {
            Ok(()) if std::mem::take(&mut self.interrupted) => {
                self.unserved = None;
                info!("the module is served again; Istio's agents will fetch it");
                self.served_again = Some(Timestamp::now().to_string());
                true
            }
            Ok(()) => false,
            Err(why) => {
                self.interrupted = true;
                self.outage.store(true, Ordering::Relaxed);
                let is_news = self.unserved.is_none();
                if is_news {
                    warn!("Istio's {NO_FILTER}: {why}");
                    self.unserved = Some(why);
                }
                is_news
            }
        }
    }

    /// Runs one round. Returns the outcome, and the time at which the next round is due even
    /// without a change.
    pub(crate) async fn round(
        &mut self,
        view: &PlannedCluster,
        sha256: &str,
        observed: &mut Observed,
    ) -> (Delivered, Option<Instant>) {
        let mut wanted = wanted(
            &view.plan,
            &view.cluster,
            &self.settings,
            &observed.installed(),
            observed,
            sha256,
        );
        // The value never comes from an observed object, whose namespace's users may change it. A
        // later leader leaves it as it is until the object changes.
        if let Some(since) = &self.served_again {
            for plugin in wanted
                .objects
                .values_mut()
                .filter(|o| o.adapter.is_plugin())
            {
                plugin.value["metadata"]["annotations"][SERVED_ANNOTATION] = since.as_str().into();
            }
        }
        self.unfetched.apply(&mut wanted, observed);
        let mut steps = steps(&wanted, observed);
        let kept = wanted.kept.iter();
        let kept = kept.map(|(key, why)| (key.clone(), ObjectState::Failed(why.clone())));
        let mut failures: BTreeMap<Key, ObjectState> = kept.collect();
        leave_unknown(&wanted, &mut steps, observed, &mut failures);
        self.apply(&wanted, &steps, observed, &mut failures).await;
        // Deletions come last, so that the filter stays in force while an object of another name or
        // kind takes over.
        self.delete(&wanted, &steps, observed, &mut failures).await;
        // Only pending plugins keep `outage` set, because a refused one may stay refused.
        let waits = |(key, state): (&Key, &ObjectState)| {
            key.0.is_plugin() && matches!(state, ObjectState::Pending(_))
        };
        if self.served_again.is_some() && !self.interrupted && !failures.iter().any(waits) {
            self.outage.store(false, Ordering::Relaxed);
        }
        let again = self.again(&failures);
        let report = Delivered {
            unserved: self.unserved.clone(),
            ..report(&wanted, observed, &failures)
        };
        (report, again)
    }

    /// Returns the time of the next round for these failures. The retries of refused writes share
    /// rounds, because each round considers all policies.
    fn again(&self, failures: &BTreeMap<Key, ObjectState>) -> Option<Instant> {
        let now = Instant::now();
        let again = |(key, state): (&Key, &ObjectState)| match state {
            ObjectState::Pending(_) => Some(now + self.settings.retry),
            _ => (self.refusals.get(key)).map(|r| r.again.max(now + self.settings.refused_retry)),
        };
        failures.iter().filter_map(again).min()
    }

    /// Returns the shortest time after a failure in which changes don't cause another attempt.
    fn short_pause(&self) -> Duration {
        self.settings.refused_retry.min(self.settings.retry)
    }

    /// Returns the outcome of the last attempt at the same, if the pause after it isn't over.
    fn paused(&self, key: &Key, content: &str, version: Option<&String>) -> Option<ObjectState> {
        let last = self.refusals.get(key)?;
        let is_same = last.content == content && last.version.as_ref() == version;
        (is_same && Instant::now() < last.again).then(|| last.state.clone())
    }

    async fn delete(
        &mut self,
        wanted: &Wanted,
        steps: &Steps,
        observed: &mut Observed,
        failures: &mut BTreeMap<Key, ObjectState>,
    ) {
        let written = written(wanted, failures);
        for key in &steps.delete {
            let (adapter, name) = key;
            let Some(value) = observed.get(*adapter, name) else {
                continue;
            };
            if waits_for_successor(*adapter, value, &written) {
                continue;
            }
            let version = version(value);
            if let Some(state) = self.paused(key, "", version.as_ref()) {
                failures.insert(key.clone(), state);
                continue;
            }
            match apply::delete(&self.client, *adapter, name, value).await {
                Ok(()) => {
                    info!(kind = adapter.kind(), object = %name, "deleted: no policy needs it");
                    observed.deleted(*adapter, name);
                }
                Err(why) => {
                    warn!(
                        kind = adapter.kind(),
                        object = %name,
                        "deleting failed and is retried: {why}"
                    );
                    let state = ObjectState::Pending(why);
                    self.failed(key, "", version, &state);
                    failures.insert(key.clone(), state);
                }
            }
        }
    }

    async fn apply(
        &mut self,
        wanted: &Wanted,
        steps: &Steps,
        observed: &mut Observed,
        failures: &mut BTreeMap<Key, ObjectState>,
    ) {
        self.refusals
            .retain(|key, _| steps.apply.contains(key) || steps.delete.contains(key));
        let mut ready = Vec::new();
        for key in &steps.apply {
            let Some(object) = wanted.objects.get(key) else {
                continue;
            };
            if let Some(why) = object.too_large() {
                failures.insert(key.clone(), ObjectState::Failed(why));
                continue;
            }
            let known = observed.get(key.0, &key.1);
            let version = known.and_then(version);
            if let Some(state) = self.paused(key, object.content(), version.as_ref()) {
                failures.insert(key.clone(), state);
                continue;
            }
            if let Err(why) = self.check_module(object, known).await {
                failures.insert(key.clone(), ObjectState::Pending(why));
                continue;
            }
            ready.push((key, object, version));
        }
        let client = &self.client;
        // This is a loop, because with a closure over borrowed pairs the future wouldn't be `Send`.
        let mut writes = Vec::with_capacity(ready.len());
        for (key, object, version) in ready {
            writes.push(async move {
                let outcome = apply::apply(client, object, version.as_deref()).await;
                (key, object, version, outcome)
            });
        }
        let done: Vec<_> = stream::iter(writes)
            .buffer_unordered(WRITES)
            .collect()
            .await;
        for (key, object, version, outcome) in done {
            let (kind, name) = (key.0.kind(), &key.1);
            let state = match outcome {
                Ok(value) => {
                    info!(kind, object = %name, "applied");
                    self.refusals.remove(key);
                    observed.wrote(key.0, name.clone(), value);
                    continue;
                }
                Err(state) => state,
            };
            if self.failed(key, object.content(), version, &state)
                && let ObjectState::Failed(why) | ObjectState::Pending(why) = &state
            {
                warn!(kind, object = %name, "not applied; this is retried: {why}");
            }
            failures.insert(key.clone(), state);
        }
    }

    /// Records a failed attempt, after which the same attempt pauses. Returns whether the last
    /// attempt at the same content ended otherwise.
    fn failed(
        &mut self,
        key: &Key,
        content: &str,
        version: Option<String>,
        state: &ObjectState,
    ) -> bool {
        let before = self.refusals.remove(key).filter(|r| r.content == content);
        let is_news = before.as_ref().is_none_or(|r| r.state != *state);
        let first = self.settings.refused_retry;
        let longest = LONGEST_PAUSE.max(first);
        let mut pauses = before.map_or_else(|| pauses(first, longest), |r| r.pauses);
        let pause = match state {
            ObjectState::Failed(_) => pauses.next().unwrap_or(longest),
            _ => self.short_pause(),
        };
        let refusal = Refusal {
            content: content.to_owned(),
            version,
            state: state.clone(),
            again: Instant::now() + pause,
            pauses,
        };
        self.refusals.insert(key.clone(), refusal);
        is_news
    }

    /// Checks that the object may name its module. Either the object on the API server already
    /// names the module, or the module's URL serves it. A check may take long to fail, and delays
    /// all writes. So it isn't repeated for each object, and not in each round.
    async fn check_module(&mut self, object: &Object, known: Option<&Value>) -> Result<(), String> {
        let Some(module) = &object.module else {
            return Ok(());
        };
        if known.is_some_and(|value| names(value, module)) {
            return Ok(());
        }
        if let Some((of, at, result)) = &self.checked
            && of == module
            && at.elapsed() < result.as_ref().map_or(self.short_pause(), |()| CHECK_LIFE)
        {
            return result.clone();
        }
        let result = served::check_all(module).await;
        self.checked = Some((module.clone(), Instant::now(), result.clone()));
        result
    }
}

/// Whether an object names `module`, with any query in the URL.
fn names(value: &Value, module: &ModuleRef) -> bool {
    let text = value["spec"].to_string();
    text.contains(&format!("\"{}", module.url)) && text.contains(&module.sha256)
}

/// Returns whether an object was written for each target of the wanted objects. ConfigMaps are
/// apart, because a ConfigMap can't replace an object that a mesh's proxies read, and such an
/// object can't replace a ConfigMap.
fn written<'w>(
    wanted: &'w Wanted,
    failures: &BTreeMap<Key, ObjectState>,
) -> HashMap<(bool, &'w str), bool> {
    let mut all = HashMap::new();
    for (key, object) in &wanted.objects {
        for target in targets(&object.value) {
            let place = (key.0 == Adapter::ConfigMap, target);
            *all.entry(place).or_insert(false) |= !failures.contains_key(key);
        }
    }
    all
}

/// Whether an object to delete is still the only object of a target, because its successor couldn't
/// be written.
fn waits_for_successor(
    adapter: Adapter,
    old: &Value,
    written: &HashMap<(bool, &str), bool>,
) -> bool {
    let is_file = adapter == Adapter::ConfigMap;
    let mut written = targets(old)
        .filter_map(|target| written.get(&(is_file, target)))
        .peekable();
    written.peek().is_some() && !written.any(|is| *is)
}

/// Returns the targets in an object's annotation.
fn targets(object: &Value) -> impl Iterator<Item = &str> {
    let all = object["metadata"]["annotations"][TARGETS_ANNOTATION].as_str();
    all.into_iter().flat_map(|all| all.split(' '))
}

fn version(value: &Value) -> Option<String> {
    let version = value["metadata"]["resourceVersion"].as_str();
    version.map(str::to_owned)
}

/// Returns the outcome of each policy's deliveries.
fn report(
    wanted: &Wanted,
    observed: &Observed,
    failures: &BTreeMap<Key, ObjectState>,
) -> Delivered {
    let mut policies: BTreeMap<String, BTreeSet<Delivery>> = BTreeMap::new();
    let mut add = |names: &[String], delivery: Delivery| {
        for name in names {
            policies
                .entry(name.clone())
                .or_default()
                .insert(delivery.clone());
        }
    };
    for (key, object) in &wanted.objects {
        let state = failures.get(key).cloned().unwrap_or_else(|| {
            let value = observed.get(key.0, &key.1);
            match (key.0, value) {
                (Adapter::EnvoyGateway, Some(value)) => envoy_gateway::state(value),
                (_, Some(_)) if !object.seen => ObjectState::Unread,
                (_, Some(_)) => ObjectState::Delivered,
                (_, None) => ObjectState::Pending("it was deleted and is created again".to_owned()),
            }
        });
        let delivery = Delivery {
            adapter: key.0,
            object: key.1.clone(),
            state,
        };
        add(&object.policies, delivery);
    }
    for unwanted in &wanted.unwanted {
        add(&unwanted.policies, unwanted.delivery.clone());
    }
    let list = |(name, set): (String, BTreeSet<Delivery>)| (name, set.into_iter().collect());
    Delivered {
        complete: true,
        policies: policies.into_iter().map(list).collect(),
        unserved: None,
    }
}

#[cfg(test)]
mod tests;
