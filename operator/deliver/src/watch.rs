//! Watches of the objects of one kind, which are reduced to small plain values.
//!
//! A reflector's store isn't used, because it would hold megabytes of unused data in whole objects.
//! Instead, each object is reduced on arrival to the fields that a plan needs, and the caller
//! stores the result.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBackoff, ExponentialBuilder};
use futures::stream::{self, AbortHandle, BoxStream, SelectAll, StreamExt as _, abortable};
use kube::api::ApiResource;
use kube::core::{DynamicResourceScope, NamespaceResourceScope};
use kube::runtime::watcher::{self, Config, Event, watcher};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::{Notify, mpsc, watch};
use tracing::{info, warn};

use crate::cluster::ObjectKey;
use crate::readable::Readable;
use headgate_api::plan::TargetRef;

/// The duration of one watch request. It bounds the time until a dead connection is detected.
pub const WATCH_SECONDS: u32 = 60;
/// The first pause after a failure.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
/// The number of consecutive refusals of one namespace after which the namespace counts as empty.
/// This takes 8 to 16 s.
pub const CONFIRMED: u32 = 8;
/// The longest pause after failures, unless a watch has its own.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// An observation of a watch.
#[derive(Debug, Clone, PartialEq)]
pub enum Seen<V> {
    /// All existing objects. Known objects that are missing from the list have been deleted.
    All(Vec<V>),
    /// All existing objects in one of several namespaces. Known objects of that namespace that are
    /// missing from the list have been deleted.
    Within(String, Vec<V>),
    /// An object was created or changed.
    Applied(V),
    /// An object was deleted.
    Deleted(V),
    /// The watch failed and will be retried.
    Failed {
        /// The HTTP status of the API server's answer, if any. It is 404 for a kind that the API
        /// server doesn't serve. With several namespaces, 403 and 404 mean that all namespaces are
        /// refused. A 403 for only some of them is sent without a status, and a 404 isn't sent.
        status: Option<u16>,
    },
}

impl<V> Seen<V> {
    /// Returns the same observation with other values.
    pub fn map<W>(self, f: impl FnMut(V) -> W) -> Seen<W> {
        let mut f = f;
        match self {
            Self::All(all) => Seen::All(all.into_iter().map(f).collect()),
            Self::Within(namespace, all) => {
                Seen::Within(namespace, all.into_iter().map(f).collect())
            }
            Self::Applied(v) => Seen::Applied(f(v)),
            Self::Deleted(v) => Seen::Deleted(f(v)),
            Self::Failed { status } => Seen::Failed { status },
        }
    }
}

/// A key with a namespace.
pub trait Namespaced {
    /// `metadata.namespace`.
    fn namespace(&self) -> &str;
}

impl Namespaced for ObjectKey {
    fn namespace(&self) -> &str {
        &self.namespace
    }
}

impl Namespaced for TargetRef {
    fn namespace(&self) -> &str {
        &self.namespace
    }
}

impl<K: Ord + Clone + Namespaced, W> Seen<(K, W)> {
    /// Returns the changes relative to `known`. A key with a new value has that value, and a
    /// deleted key has `None`.
    pub fn news<V: PartialEq>(self, known: &BTreeMap<K, V>) -> Vec<(K, Option<V>)>
    where
        W: Into<Option<V>>,
    {
        let (within, all) = match self {
            Self::All(all) => (None, all),
            Self::Within(namespace, all) => (Some(namespace), all),
            Self::Applied((key, value)) => {
                let value = value.into();
                let is_news = known.get(&key) != value.as_ref();
                return is_news.then_some((key, value)).into_iter().collect();
            }
            Self::Deleted((key, _)) => {
                let is_news = known.contains_key(&key);
                return is_news.then_some((key, None)).into_iter().collect();
            }
            Self::Failed { .. } => return Vec::new(),
        };
        let all = all.into_iter();
        let all: BTreeMap<K, V> = all.filter_map(|(k, v)| Some((k, v.into()?))).collect();
        let is_listed = |key: &&K| within.as_deref().is_none_or(|name| key.namespace() == name);
        let gone = known.keys().filter(is_listed);
        let gone = gone.filter(|key| !all.contains_key(*key));
        let gone: Vec<_> = gone.map(|key| (key.clone(), None)).collect();
        let new = all
            .into_iter()
            .filter(|(key, value)| known.get(key) != Some(value));
        let new = new.map(|(key, value)| (key, Some(value)));
        gone.into_iter().chain(new).collect()
    }

    /// Applies the changes to `known`. Ignores a single change that `is_older` than the known
    /// value, because a watch may report an older version than a write has returned. A list always
    /// applies, because it is the API server's current state, even after a restore from a backup.
    /// Returns whether anything changed.
    pub fn apply<V: PartialEq>(
        self,
        known: &mut BTreeMap<K, V>,
        is_older: impl Fn(&V, &V) -> bool,
    ) -> bool
    where
        W: Into<Option<V>>,
    {
        let is_list = matches!(self, Self::All(_) | Self::Within(..));
        let mut changed = false;
        for (key, value) in self.news(known) {
            let before = known.get(&key);
            match value {
                None => drop(known.remove(&key)),
                Some(value) if is_list || !before.is_some_and(|b| is_older(&value, b)) => {
                    known.insert(key, value);
                }
                Some(_) => continue,
            }
            changed = true;
        }
        changed
    }
}

/// Returns the API of a kind in a namespace, or in all if the name is empty.
pub fn api<K>(client: &Client, namespace: &str) -> Api<K>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
{
    match namespace {
        "" => Api::all(client.clone()),
        name => Api::namespaced(client.clone(), name),
    }
}

/// Returns the API of a kind without a Rust type, as [`api`] does for other kinds.
pub fn api_of<K>(resource: &ApiResource, client: &Client, namespace: &str) -> Api<K>
where
    K: Resource<Scope = DynamicResourceScope, DynamicType = ApiResource>,
{
    match namespace {
        "" => Api::all_with(client.clone(), resource),
        name => Api::namespaced_with(client.clone(), name, resource),
    }
}

/// Returns the names to pass to [`api`] for these namespaces. For an empty list, returns the empty
/// name, which means all namespaces.
pub fn places(namespaces: &[String]) -> impl Iterator<Item = &str> {
    let all = namespaces.is_empty().then_some("");
    all.into_iter().chain(namespaces.iter().map(String::as_str))
}

/// The namespaces of a watch, updated when they change. Each is listed and watched separately. The
/// empty name means one list and watch of all namespaces. `None` until the namespaces are known.
#[derive(Debug, Clone)]
pub struct Namespaces(pub watch::Receiver<Option<BTreeSet<String>>>);

impl Namespaces {
    /// Returns a fixed list of namespaces, or all if the list is empty.
    pub fn fixed(names: &[String]) -> Self {
        let names = places(names).map(str::to_owned);
        Self(watch::channel(Some(names.collect())).1)
    }

    /// Completes when the namespaces have changed.
    async fn changed(&mut self) {
        if self.0.changed().await.is_err() {
            // The sender was dropped, so the namespaces no longer change.
            pending::<()>().await;
        }
    }
}

/// A function that returns the API of a namespace, or of all namespaces if the name is empty.
type ApiOf<K> = Box<dyn Fn(&str) -> Api<Readable<K>> + Send>;

/// A watch that hasn't started.
pub struct Watch<K> {
    api: ApiOf<K>,
    /// The namespaces of the objects.
    pub namespaces: Namespaces,
    /// A namespace that is watched in addition to `namespaces`, unless these are all.
    pub always: Option<String>,
    /// The name of the objects in log lines.
    pub what: String,
    /// The selectors and options of the list and watch requests.
    pub config: Config,
    /// The longest pause after failures.
    pub longest_pause: Duration,
    /// Notified when any namespace has been listed, because then the API server serves the kind.
    served: Arc<Notify>,
}

impl<K> Watch<K>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    /// Returns a watch of the objects in these namespaces. `api` returns the API of a namespace, or
    /// of all namespaces if the name is empty.
    pub fn new(
        what: &str,
        namespaces: &Namespaces,
        api: impl Fn(&str) -> Api<Readable<K>> + Send + 'static,
    ) -> Self {
        Self {
            api: Box::new(api),
            namespaces: namespaces.clone(),
            always: None,
            what: what.to_owned(),
            config: Config::default().timeout(WATCH_SECONDS),
            longest_pause: LONGEST_PAUSE,
            served: Arc::default(),
        }
    }

    /// Sends all existing objects and then their changes, until the receiver is dropped. `read`
    /// reduces an object to its kept part.
    ///
    /// Each namespace is listed and watched separately, and fails separately. The first lists of
    /// all namespaces are sent as one [`Seen::All`], so that the receiver never gets a partial
    /// list. If a watch can't be resumed, its namespace is listed again and sent as
    /// [`Seen::Within`].
    ///
    /// A namespace that is removed from the set is sent as empty. A namespace that is refused
    /// [`CONFIRMED`] times in a row while another namespace isn't is also sent as empty, because
    /// the namespace or its Role was deleted. While all namespaces are refused, none is sent as
    /// empty. If all return 404, the kind isn't served. Then the next lists are sent as one
    /// [`Seen::All`] again.
    pub async fn follow<V, M>(
        mut self,
        read: impl Fn(K) -> V + Send,
        wrap: impl Fn(Seen<V>) -> M + Send,
        out: mpsc::Sender<M>,
    ) where
        V: Send,
        M: Send,
    {
        let read = move |Readable(object): Readable<K>| read(object);
        let mut events = SelectAll::new();
        let mut watched: BTreeMap<String, AbortHandle> = BTreeMap::new();
        let mut places = Places::new(&self.what);
        self.namespaces.0.mark_changed();
        loop {
            let news = tokio::select! {
                () = self.namespaces.changed() => {
                    let Some(names) = self.names() else { continue };
                    for name in &names {
                        if watched.contains_key(name) {
                            continue;
                        }
                        let of_it = name.clone();
                        let of_it = self
                            .events(name, names.len())
                            .map(move |event| (of_it.clone(), event));
                        let (of_it, stop) = abortable(of_it);
                        events.push(of_it.boxed());
                        watched.insert(name.clone(), stop);
                    }
                    watched.retain(|name, stop| {
                        let stays = names.contains(name);
                        if !stays {
                            stop.abort();
                        }
                        stays
                    });
                    places.set(&names)
                }
                Some((name, event)) = events.next(), if !events.is_empty() => {
                    places.take(&name, event, &read)
                }
            };
            for seen in news {
                if out.send(wrap(seen)).await.is_err() {
                    return;
                }
            }
        }
    }

    /// Returns the names of the namespaces. `None` until they are known.
    fn names(&self) -> Option<BTreeSet<String>> {
        let mut names = self.namespaces.0.borrow().clone()?;
        if !names.contains("") {
            names.extend(self.always.clone());
        }
        Some(names)
    }

    /// Returns the events of one of `all` namespaces, with pauses after failures.
    fn events(
        &self,
        name: &str,
        all: usize,
    ) -> BoxStream<'static, Result<Event<Readable<K>>, watcher::Error>> {
        // A kind that isn't served is listed in every namespace. The pauses grow with the number of
        // namespaces, so that requests are no more frequent than with ten namespaces.
        let absent = u32::try_from(all.div_ceil(10)).unwrap_or(u32::MAX);
        let (api, config) = ((self.api)(name), self.config.clone());
        let fresh = move || watcher(api.clone(), config.clone()).boxed();
        let longest = self.longest_pause;
        let first = move || pauses(FIRST_PAUSE, longest);
        let served = Arc::clone(&self.served);
        let start = (fresh(), fresh, first(), None::<(Duration, bool)>);
        stream::unfold(start, move |(mut events, fresh, mut pauses, pause)| {
            let served = Arc::clone(&served);
            async move {
                if let Some((pause, is_absent)) = pause {
                    tokio::select! {
                        () = tokio::time::sleep(pause) => {}
                        () = served.notified(), if is_absent => {}
                    }
                }
                let event = events.next().await?;
                let mut pause = None;
                match &event {
                    Err(error) => {
                        let status = status(error);
                        // A fresh watch is needed, because the old watch of a kind that was removed
                        // or is forbidden would not list the kind again when it returns.
                        if matches!(status, Some(403 | 404)) {
                            events = fresh();
                        }
                        let is_absent = status == Some(404);
                        let times = if is_absent { absent } else { 1 };
                        pause = { pauses.next() }.map(|p| (p.saturating_mul(times), is_absent));
                    }
                    // The start of a list isn't a success, because the list may fail as the
                    // previous one did.
                    Ok(Event::Init) => {}
                    Ok(event) => {
                        if matches!(event, Event::InitDone) {
                            served.notify_waiters();
                        }
                        pauses = first();
                    }
                }
                Some((event, (events, fresh, pauses, pause)))
            }
        })
        .boxed()
    }
}

/// The namespaces of one watch.
struct Places<V> {
    what: String,
    all: BTreeMap<String, NamespaceWatch<V>>,
    /// Whether the first lists have been sent.
    complete: bool,
}

/// One namespace, or all of them.
struct NamespaceWatch<V> {
    /// Whether the watch is failing. Each start and end of a failure is logged once.
    failing: bool,
    /// The list that is being received, or that waits for the lists of other namespaces.
    list: Vec<V>,
    listed: bool,
    /// The changes since the list. They wait together with the list.
    changes: Vec<Seen<V>>,
    /// Whether the last answer was 403 or 404.
    is_refused: bool,
    /// The number of consecutive refusals, while not all namespaces are refused.
    refusals: u32,
}

impl<V> NamespaceWatch<V> {
    /// Whether the list is known. A namespace that stays refused counts as empty.
    const fn is_settled(&self) -> bool {
        self.listed || self.refusals >= CONFIRMED
    }
}

impl<V> Places<V> {
    fn new(what: &str) -> Self {
        Self {
            what: what.to_owned(),
            all: BTreeMap::new(),
            complete: false,
        }
    }

    /// Adds and removes namespaces. Returns the observations to send.
    fn set(&mut self, names: &BTreeSet<String>) -> Vec<Seen<V>> {
        let gone = self.all.keys().filter(|name| !names.contains(*name));
        let gone: Vec<String> = gone.cloned().collect();
        self.all.retain(|name, _| names.contains(name));
        for name in names {
            let new = || NamespaceWatch {
                failing: false,
                list: Vec::new(),
                listed: false,
                changes: Vec::new(),
                is_refused: false,
                refusals: 0,
            };
            self.all.entry(name.clone()).or_insert_with(new);
        }
        if !self.complete {
            return self.first_lists();
        }
        let empty = |name| Seen::Within(name, Vec::new());
        gone.into_iter().map(empty).collect()
    }

    /// Applies an event of the namespace `name`. Returns the observations to send.
    fn take<K>(
        &mut self,
        name: &str,
        event: Result<Event<K>, watcher::Error>,
        read: impl Fn(K) -> V,
    ) -> Vec<Seen<V>> {
        let Some(place) = self.all.get_mut(name) else {
            return Vec::new();
        };
        let change = match event {
            Err(error) => return self.failed(name, &error),
            // A list begins. The previous one may have failed halfway.
            Ok(Event::Init) => {
                place.list.clear();
                place.changes.clear();
                place.listed = false;
                return Vec::new();
            }
            Ok(Event::InitApply(object)) => {
                place.list.push(read(object));
                return Vec::new();
            }
            Ok(Event::InitDone) => None,
            Ok(Event::Apply(object)) => Some(Seen::Applied(read(object))),
            Ok(Event::Delete(object)) => Some(Seen::Deleted(read(object))),
        };
        if std::mem::take(&mut place.failing) {
            info!(
                resource = self.what,
                namespace = name,
                "the watch works again"
            );
        }
        place.is_refused = false;
        place.refusals = 0;
        match change {
            Some(change) if self.complete => vec![change],
            Some(change) => {
                place.changes.push(change);
                Vec::new()
            }
            // This is a new list of one of several namespaces.
            None if self.complete && !name.is_empty() => {
                vec![Seen::Within(
                    name.to_owned(),
                    std::mem::take(&mut place.list),
                )]
            }
            None => {
                place.listed = true;
                self.complete = false;
                self.first_lists()
            }
        }
    }

    fn failed(&mut self, name: &str, error: &watcher::Error) -> Vec<Seen<V>> {
        let Some(place) = self.all.get_mut(name) else {
            return Vec::new();
        };
        let status = status(error);
        // A kind that the API server doesn't serve isn't a failure.
        if status != Some(404) && !std::mem::replace(&mut place.failing, true) {
            warn!(
                resource = self.what,
                namespace = name,
                "the watch failed and is retried; the last state stays in force: {error}"
            );
        }
        place.is_refused = matches!(status, Some(403 | 404));
        if !place.is_refused {
            place.refusals = 0;
            return vec![Seen::Failed { status }];
        }
        place.refusals = place.refusals.saturating_add(1);
        let refusals = place.refusals;
        if self.all.values().all(|p| p.is_refused) {
            // With 404 the kind was removed. When it returns, the lists of all namespaces are sent
            // together again. With 403, the API server may have just started without having read
            // the roles, so the known objects stay.
            let is_gone = status == Some(404);
            self.complete &= !is_gone;
            for place in self.all.values_mut() {
                if is_gone {
                    place.list.clear();
                    place.changes.clear();
                    place.listed = false;
                }
                if place.refusals < CONFIRMED {
                    place.refusals = 0;
                }
            }
            return vec![Seen::Failed { status }];
        }
        let mut seen = match status {
            // If a kind isn't installed, one namespace after the other returns 404, so a single 404
            // isn't reported.
            Some(404) => Vec::new(),
            _ => vec![Seen::Failed { status: None }],
        };
        if refusals == CONFIRMED {
            warn!(
                resource = self.what,
                namespace = name,
                "the API server still refuses requests for this namespace, which counts as empty \
                 until then; check that the namespace and its Role exist"
            );
            match self.complete {
                true => seen.push(Seen::Within(name.to_owned(), Vec::new())),
                false => seen.extend(self.first_lists()),
            }
        }
        seen
    }

    /// Returns the lists of all namespaces as one list, followed by the changes since, once all
    /// lists are known.
    fn first_lists(&mut self) -> Vec<Seen<V>> {
        if !self.all.values().all(NamespaceWatch::is_settled) {
            return Vec::new();
        }
        self.complete = true;
        let lists = self
            .all
            .values_mut()
            .flat_map(|p| std::mem::take(&mut p.list));
        let mut seen = vec![Seen::All(lists.collect())];
        for place in self.all.values_mut() {
            seen.append(&mut place.changes);
        }
        seen
    }
}

fn status(error: &watcher::Error) -> Option<u16> {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchFailed(kube::Error::Api(status))
        | watcher::Error::WatchError(status) => Some(status.code),
        _ => None,
    }
}

/// Returns pauses that double up to `longest`. Each is shortened at random by up to a half, so that
/// a thousand clients of a failed API server don't reconnect at the same moment.
pub fn pauses(first: Duration, longest: Duration) -> ExponentialBackoff {
    // The configured pauses are half as long, because jitter adds up to 100%.
    ExponentialBuilder::default()
        .with_min_delay(first.min(longest) / 2)
        .with_max_delay(longest / 2)
        .without_max_times()
        .with_jitter()
        .build()
}

/// Sends `value` unless it equals the last one.
pub fn send_if_changed<T: PartialEq>(sender: &watch::Sender<T>, value: T) {
    sender.send_if_modified(|last| {
        let changed = *last != value;
        *last = value;
        changed
    });
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, Ordering};

    use k8s_openapi::api::core::v1::Pod;
    use kube::ResourceExt as _;
    use serde_json::json;
    use tokio_util::task::AbortOnDropHandle;

    use super::*;
    use headgate_fakes::api_server;

    type Answer = (u16, serde_json::Value);

    /// Returns an API server that answers the list number `n` (from 0) of `namespace` with
    /// `list(namespace, n)`, and ends the first watch of namespace `a` as too old. Other watches
    /// last.
    fn server(list: impl Fn(&str, u32) -> Answer + Send + Sync + 'static) -> Client {
        let lists = Mutex::new(BTreeMap::<String, u32>::new());
        let is_new = AtomicBool::new(true);
        api_server(move |_, uri, _| {
            let namespace = uri.path().split('/').nth(4).unwrap_or_default();
            if !uri.query().is_some_and(|q| q.contains("watch=true")) {
                let mut lists = lists.lock().unwrap();
                let number = lists.entry(namespace.to_owned()).or_default();
                *number += 1;
                return Some(list(namespace, *number - 1));
            }
            let is_old = namespace == "a" && is_new.swap(false, Ordering::Relaxed);
            let gone = || json!({"kind": "Status", "status": "Failure", "code": 410});
            is_old.then(|| (200, json!({"type": "ERROR", "object": gone()})))
        })
    }

    /// Returns a list with one Pod.
    fn one(namespace: &str, number: u32) -> Answer {
        let pod = json!({"metadata": {"name": format!("{namespace}-{number}")}});
        (
            200,
            json!({"metadata": {"resourceVersion": "1"}, "items": [pod]}),
        )
    }

    /// Users may write such objects. The lists that contain them must be readable.
    #[tokio::test]
    async fn an_object_with_odd_metadata_hides_no_other() {
        let client = server(|namespace, number| {
            let (code, mut list) = one(namespace, number);
            let odd = json!({
                "name": format!("odd-{namespace}"),
                "managedFields": [{"time": "9999-12-31T00:00:00Z"}],
            });
            let items = list["items"].as_array_mut().unwrap();
            items.push(json!({"metadata": odd}));
            (code, list)
        });
        let (_following, mut news) = follow(&client);
        let (seen, failures) = next(&mut news).await;
        assert_eq!(seen, all(&["a-0", "odd-a", "b-0", "odd-b"]));
        assert_eq!(failures, []);
    }

    fn refused(code: u16) -> Answer {
        (
            code,
            json!({"kind": "Status", "status": "Failure", "code": code}),
        )
    }

    /// Returns the next observation that isn't `Failed`, with the statuses of the failures before
    /// it.
    async fn next(news: &mut mpsc::Receiver<Seen<String>>) -> (Seen<String>, Vec<Option<u16>>) {
        let mut statuses = Vec::new();
        loop {
            match news.recv().await.unwrap() {
                Seen::Failed { status } => statuses.push(status),
                seen => return (seen, statuses),
            }
        }
    }

    fn follow(client: &Client) -> (AbortOnDropHandle<()>, mpsc::Receiver<Seen<String>>) {
        let names = Namespaces::fixed(&["a".to_owned(), "b".to_owned()]);
        follow_in(client, &names)
    }

    fn follow_in(
        client: &Client,
        names: &Namespaces,
    ) -> (AbortOnDropHandle<()>, mpsc::Receiver<Seen<String>>) {
        let client = client.clone();
        let mut watch = Watch::<Pod>::new("pods", names, move |name| api(&client, name));
        watch.longest_pause = Duration::from_millis(2);
        let (out, news) = mpsc::channel(8);
        let following = tokio::spawn(watch.follow(|pod| pod.name_any(), |seen| seen, out));
        (AbortOnDropHandle::new(following), news)
    }

    fn all(names: &[&str]) -> Seen<String> {
        Seen::All(names.iter().map(|&n| n.to_owned()).collect())
    }

    fn within(namespace: &str, names: &[&str]) -> Seen<String> {
        let names = names.iter().map(|&n| n.to_owned()).collect();
        Seen::Within(namespace.to_owned(), names)
    }

    #[tokio::test]
    async fn several_namespaces_are_first_listed_as_one() {
        let client = server(|namespace, number| match (namespace, number) {
            ("b", 0) => refused(500),
            _ => one(namespace, number),
        });
        let (_following, mut news) = follow(&client);
        // The first watch of `a` ends while the list of `b` is awaited.
        let (seen, _) = next(&mut news).await;
        assert!(
            [all(&["a-0", "b-1"]), all(&["a-1", "b-1"])].contains(&seen),
            "{seen:?}"
        );
        if seen == all(&["a-0", "b-1"]) {
            assert_eq!(next(&mut news).await.0, within("a", &["a-1"]));
        }
    }

    /// A deleted namespace loses its Role too, so the API server answers 403 for it from then on.
    #[tokio::test]
    async fn a_namespace_that_stays_refused_is_empty_and_stops_no_other() {
        let client = server(|namespace, number| match (namespace, number) {
            ("a", 1..=20) => refused(403),
            _ => one(namespace, number),
        });
        let (_following, mut news) = follow(&client);
        assert_eq!(next(&mut news).await.0, all(&["a-0", "b-0"]));
        let (seen, statuses) = next(&mut news).await;
        assert_eq!(seen, within("a", &[]), "the last one is forgotten");
        let refusals = statuses.iter().filter(|s| s.is_none()).count();
        assert_eq!(refusals, CONFIRMED as usize, "not at once: {statuses:?}");
        assert!(
            !statuses.contains(&Some(403)),
            "the kind is served: {statuses:?}"
        );
        assert_eq!(
            next(&mut news).await.0,
            within("a", &["a-21"]),
            "it is back"
        );
    }

    /// The pause after a 404 lasts years here, so only the list of the other namespace can end it.
    #[tokio::test]
    async fn a_kind_that_one_namespace_has_is_listed_in_the_others_at_once() {
        let client = server(|namespace, number| match (namespace, number) {
            ("b", 0) => refused(404),
            _ => one(namespace, number),
        });
        let api = move |name: &str| Api::<Readable<Pod>>::namespaced(client.clone(), name);
        let watch = Watch::new("pods", &Namespaces::fixed(&[]), api);
        let (mut a, mut b) = (watch.events("a", 1), watch.events("b", usize::MAX));
        let absent = loop {
            if let Err(error) = b.next().await.unwrap() {
                break status(&error);
            }
        };
        assert_eq!(absent, Some(404));
        let lists = async { while !matches!(a.next().await, Some(Ok(Event::InitDone))) {} };
        let (listed, ()) = tokio::join!(b.next(), lists);
        assert!(matches!(listed, Some(Ok(_))), "{listed:?}");
    }

    #[tokio::test]
    async fn a_namespace_refused_from_the_start_is_waited_for_no_longer_than_confirmed() {
        let client = server(|namespace, number| match namespace {
            "b" => refused(403),
            _ => one(namespace, number),
        });
        let (_following, mut news) = follow(&client);
        let (seen, _) = next(&mut news).await;
        assert!(
            matches!(&seen, Seen::All(pods) if pods.len() == 1),
            "{seen:?}"
        );
    }

    #[tokio::test]
    async fn namespaces_come_and_go_and_the_others_stay() {
        let client = server(|namespace, number| match namespace {
            "d" => refused(500),
            _ => one(namespace, number),
        });
        let names = |names: &[&str]| Some(names.iter().map(|&n| n.to_owned()).collect());
        let (selected, receiver) = watch::channel(None);
        let (_following, mut news) = follow_in(&client, &Namespaces(receiver));
        selected.send_replace(names(&[]));
        assert_eq!(next(&mut news).await.0, all(&[]));
        selected.send_replace(names(&["b"]));
        assert_eq!(next(&mut news).await.0, within("b", &["b-0"]));
        selected.send_replace(names(&["b", "c"]));
        assert_eq!(next(&mut news).await.0, within("c", &["c-0"]));
        selected.send_replace(names(&["c"]));
        assert_eq!(next(&mut news).await.0, within("b", &[]));
        selected.send_replace(names(&["b", "c"]));
        assert_eq!(next(&mut news).await.0, within("b", &["b-1"]), "it is back");
        drop(selected);
        assert!(news.try_recv().is_err(), "they stay as they are");
    }

    /// A namespace that can't be listed delays the first list until it is removed.
    #[tokio::test]
    async fn a_namespace_that_goes_before_its_list_is_not_waited_for() {
        let client = server(|namespace, number| match namespace {
            "b" => refused(500),
            _ => one(namespace, number),
        });
        let (selected, receiver) =
            watch::channel(Some(BTreeSet::from(["b", "c"].map(str::to_owned))));
        let (_following, mut news) = follow_in(&client, &Namespaces(receiver));
        assert!(matches!(news.recv().await, Some(Seen::Failed { .. })));
        selected.send_replace(Some(BTreeSet::from(["c".to_owned()])));
        assert_eq!(next(&mut news).await.0, all(&["c-0"]));
    }

    #[tokio::test]
    async fn while_all_are_refused_nothing_is_forgotten() {
        let mut places = Places::<String>::new("pods");
        let names = BTreeSet::from(["a", "b"].map(str::to_owned));
        assert_eq!(places.set(&names), []);
        let refusal = || {
            let status = json!({"status": "Failure", "code": 403});
            watcher::Error::WatchError(serde_json::from_value(status).unwrap())
        };
        let mut seen = Vec::new();
        for name in ["a", "b"].repeat(2 * CONFIRMED as usize) {
            seen.extend(places.take(name, Err(refusal()), |pod: Pod| pod.name_any()));
        }
        let is_403 = |seen: &Seen<String>| *seen == Seen::Failed { status: Some(403) };
        assert!(seen[1..].iter().all(is_403), "{seen:?}");
        // Confirmation starts again with the first namespace that is back.
        for event in [Event::Init, Event::InitDone] {
            assert_eq!(places.take("a", Ok(event), |pod: Pod| pod.name_any()), []);
        }
    }

    /// An API server that starts refuses all namespaces at first. Namespace `b` was deleted shortly
    /// before.
    #[test]
    fn a_namespace_that_is_back_waits_for_no_other_after_all_were_refused() {
        let mut places = Places::<String>::new("pods");
        let names = BTreeSet::from(["a", "b"].map(str::to_owned));
        assert_eq!(places.set(&names), []);
        let mut take = |name, event| places.take(name, event, |pod: Pod| pod.name_any());
        let refusal = |code| {
            let status = json!({"status": "Failure", "code": code});
            Err(watcher::Error::WatchError(
                serde_json::from_value(status).unwrap(),
            ))
        };
        let is_forbidden = [Seen::Failed { status: Some(403) }];
        for name in ["a", "b"] {
            assert_eq!(take(name, Ok(Event::Init)), []);
        }
        assert_eq!(take("a", Ok(Event::InitDone)), []);
        assert_eq!(take("b", Ok(Event::InitDone)), [all(&[])]);
        take("b", refusal(403));
        assert_eq!(take("a", refusal(403)), is_forbidden);
        assert_eq!(take("a", Ok(Event::Init)), []);
        assert_eq!(take("a", Ok(Event::InitDone)), [within("a", &[])]);
        // When a removed kind returns, the lists of all namespaces are sent as one again.
        assert_eq!(take("b", refusal(404)), []);
        assert_eq!(take("a", refusal(404)).len(), 1);
        assert_eq!(take("a", Ok(Event::Init)), []);
        assert_eq!(take("a", Ok(Event::InitDone)), []);
    }
}
