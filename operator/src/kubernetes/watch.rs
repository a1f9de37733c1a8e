//! Follows the objects of one kind, as small plain values.
//!
//! The obvious tool, a reflector's store of whole objects, would keep megabytes of what nobody reads. Each
//! object is cut down to what a plan needs the moment it arrives, and what is kept is the caller's.

use std::fmt::Debug;
use std::time::Duration;

use futures::stream::{self, BoxStream, StreamExt as _};
use kube::api::{ApiResource, DynamicObject};
use kube::core::NamespaceResourceScope;
use kube::runtime::watcher::{self, Config, Event, watcher};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;
use tracing::{info, warn};

/// How long the API server lets one watch last. A connection that died without a word is noticed no later.
pub const WATCH_SECONDS: u32 = 60;
/// First pause after a failure.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
/// Longest pause after failures, unless a watch says otherwise.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// What a watch tells.
#[derive(Debug, Clone, PartialEq)]
pub enum Seen<V> {
    /// All there is. What isn't in here is gone.
    All(Vec<V>),
    /// One is new or has changed.
    Applied(V),
    /// One is gone.
    Deleted(V),
    /// The watch failed and will be tried again.
    Failed {
        /// HTTP status of the API server's answer, if it gave one: 404 for a kind that it doesn't know.
        status: Option<u16>,
    },
}

impl<V> Seen<V> {
    /// The same with other values.
    pub fn map<W>(self, f: impl FnMut(V) -> W) -> Seen<W> {
        let mut f = f;
        match self {
            Self::All(all) => Seen::All(all.into_iter().map(f).collect()),
            Self::Applied(v) => Seen::Applied(f(v)),
            Self::Deleted(v) => Seen::Deleted(f(v)),
            Self::Failed { status } => Seen::Failed { status },
        }
    }
}

/// The objects of a kind in these namespaces, or in all where none is named.
#[must_use]
pub fn apis<K>(client: &Client, namespaces: &[String]) -> Vec<Api<K>>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
{
    let within = |name: &String| Api::namespaced(client.clone(), name);
    match namespaces {
        [] => vec![Api::all(client.clone())],
        some => some.iter().map(within).collect(),
    }
}

/// As [`apis`], of a kind that has no type here.
#[must_use]
pub fn apis_of(
    resource: &ApiResource,
    client: &Client,
    namespaces: &[String],
) -> Vec<Api<DynamicObject>> {
    let within = |name: &String| Api::namespaced_with(client.clone(), name, resource);
    match namespaces {
        [] => vec![Api::all_with(client.clone(), resource)],
        some => some.iter().map(within).collect(),
    }
}

/// A watch that hasn't begun.
pub struct Watch<K> {
    /// Where the objects are: everywhere, or in some namespaces.
    pub apis: Vec<Api<K>>,
    /// What logs call them.
    pub what: &'static str,
    /// Which of them.
    pub config: Config,
    /// Longest pause after failures.
    pub longest_pause: Duration,
}

impl<K> Watch<K>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    /// All objects of `apis`.
    #[must_use]
    pub fn new(what: &'static str, apis: Vec<Api<K>>) -> Self {
        Self {
            apis,
            what,
            config: Config::default().timeout(WATCH_SECONDS),
            longest_pause: LONGEST_PAUSE,
        }
    }

    /// Sends what there is and what becomes of it, until the receiver is gone. `read` cuts an object down.
    ///
    /// After a failed watch that the API server can't resume, everything is listed again and told as
    /// [`Seen::All`] at once, so nobody sees half a list; of several namespaces, all are.
    pub async fn follow<V, M>(
        self,
        read: impl Fn(K) -> V + Send,
        wrap: impl Fn(Seen<V>) -> M + Send,
        out: mpsc::Sender<M>,
    ) where
        V: Send,
        M: Send,
    {
        let mut health = Health::new(self.what);
        loop {
            let mut streams: Vec<_> = self.apis.iter().map(|api| self.events(api)).collect();
            let mut listed: Vec<V> = Vec::new();
            // One after the other: what changes in the first meanwhile, its stream tells afterwards.
            for stream in &mut streams {
                let before = listed.len();
                while let Some(event) = stream.next().await {
                    match event {
                        Ok(Event::InitApply(object)) => listed.push(read(object)),
                        Ok(Event::InitDone) => break,
                        // A list begins, perhaps after one that failed halfway.
                        Ok(_) => listed.truncate(before),
                        Err(error) => {
                            let status = health.failed(&error);
                            if out.send(wrap(Seen::Failed { status })).await.is_err() {
                                return;
                            }
                        }
                    }
                }
            }
            health.works();
            if out.send(wrap(Seen::All(listed))).await.is_err() {
                return;
            }
            let mut events = stream::select_all(streams);
            while let Some(event) = events.next().await {
                let seen = match event {
                    Ok(Event::Apply(object)) => Seen::Applied(read(object)),
                    Ok(Event::Delete(object)) => Seen::Deleted(read(object)),
                    Err(error) => Seen::Failed {
                        status: health.failed(&error),
                    },
                    // A list is due.
                    Ok(_) => break,
                };
                if !matches!(seen, Seen::Failed { .. }) {
                    health.works();
                }
                if out.send(wrap(seen)).await.is_err() {
                    return;
                }
            }
        }
    }

    /// What happens at one place, with pauses after failures.
    fn events(&self, api: &Api<K>) -> BoxStream<'static, Result<Event<K>, watcher::Error>> {
        let (api, config) = (api.clone(), self.config.clone());
        let fresh = move || watcher(api.clone(), config.clone()).boxed();
        let pauses = Pauses::new(FIRST_PAUSE, self.longest_pause);
        let start = (fresh(), fresh, pauses, None);
        stream::unfold(start, |(mut events, fresh, mut pauses, pause)| async move {
            if let Some(pause) = pause {
                tokio::time::sleep(pause).await;
            }
            let event = events.next().await?;
            let mut pause = None;
            match &event {
                Err(error) => {
                    // The watch of a kind that is gone, or hidden, would not list again when the kind is back.
                    if matches!(status(error), Some(403 | 404)) {
                        events = fresh();
                    }
                    pause = pauses.next();
                }
                // A list that begins may fail as the one before did.
                Ok(Event::Init) => {}
                Ok(_) => pauses.reset(),
            }
            Some((event, (events, fresh, pauses, pause)))
        })
        .boxed()
    }
}

/// Whether a watch works, as logs tell it: once for each change.
struct Health {
    what: &'static str,
    failing: bool,
}

impl Health {
    const fn new(what: &'static str) -> Self {
        Self {
            what,
            failing: false,
        }
    }

    /// Notes a failure, and gives the HTTP status of the answer. A kind that the API server doesn't know is none.
    fn failed(&mut self, error: &watcher::Error) -> Option<u16> {
        let status = status(error);
        if status != Some(404) && !std::mem::replace(&mut self.failing, true) {
            warn!(
                resource = self.what,
                "the watch failed; what was seen stays in force and it is tried again: {error}"
            );
        }
        status
    }

    fn works(&mut self) {
        if std::mem::take(&mut self.failing) {
            info!(resource = self.what, "the watch is back");
        }
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

/// Pauses that double, each shortened by a random part of up to a half: a thousand clients that lost one
/// API server must not come back at the same moment.
#[derive(Debug, Clone)]
pub struct Pauses {
    first: Duration,
    longest: Duration,
    next: Duration,
}

impl Pauses {
    /// Pauses from `first` to `longest`.
    #[must_use]
    pub fn new(first: Duration, longest: Duration) -> Self {
        Self {
            first,
            longest,
            next: first,
        }
    }

    fn reset(&mut self) {
        self.next = self.first;
    }
}

impl Iterator for Pauses {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let pause = self.next.min(self.longest);
        self.next = pause.saturating_mul(2);
        Some(shortened(pause, random()))
    }
}

/// `pause` without up to a half of it, as `random` has it.
fn shortened(pause: Duration, random: u64) -> Duration {
    let part = (random % 1_024) as u32;
    pause - pause / 2 * part / 1_024
}

/// A number that differs between processes and calls; good enough to spread retries.
pub(crate) fn random() -> u64 {
    use std::hash::{BuildHasher as _, Hasher as _, RandomState};
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

    use http::{Request, Response};
    use k8s_openapi::api::core::v1::Pod;
    use kube::ResourceExt as _;
    use kube::client::Body;
    use serde_json::json;

    use super::*;

    /// An API server whose first list fails, and whose first watch of namespace `a` ends because it is too old. Each
    /// namespace has one Pod, with the number of the list in its name.
    fn server() -> Client {
        let lists = Arc::new(AtomicU32::new(0));
        let is_new = Arc::new(AtomicBool::new(true));
        let answer = move |request: Request<Body>| {
            let namespace = request.uri().path().split('/').nth(4).map(str::to_owned);
            let namespace = namespace.unwrap_or_default();
            let is_watch = request
                .uri()
                .query()
                .is_some_and(|q| q.contains("watch=true"));
            let is_old = is_watch && namespace == "a" && is_new.swap(false, Ordering::Relaxed);
            let lists = Arc::clone(&lists);
            async move {
                let mut code = 200;
                let body = if is_old {
                    let gone = json!({"kind": "Status", "status": "Failure", "code": 410});
                    json!({"type": "ERROR", "object": gone})
                } else if is_watch {
                    return std::future::pending().await;
                } else {
                    let number = lists.fetch_add(1, Ordering::Relaxed);
                    code = if number == 0 { 500 } else { 200 };
                    let name = format!("{namespace}-{number}");
                    json!({"code": code, "metadata": {"resourceVersion": "1"}, "items": [{"metadata": {"name": name}}]})
                };
                let answer = Response::builder().status(code);
                Ok::<_, Infallible>(
                    answer
                        .body(Body::from(format!("{body}\n").into_bytes()))
                        .unwrap(),
                )
            }
        };
        Client::new(tower::service_fn(answer), "default")
    }

    #[tokio::test]
    async fn several_namespaces_are_listed_as_one() {
        let namespaces = ["a".to_owned(), "b".to_owned()];
        let watch = Watch::new("pods", apis::<Pod>(&server(), &namespaces));
        let (out, mut news) = mpsc::channel(8);
        let following = tokio::spawn(watch.follow(|pod| pod.name_any(), |seen| seen, out));
        let all = |names: [&str; 2]| Seen::All(names.map(str::to_owned).to_vec());
        for expected in [
            Seen::Failed { status: Some(500) },
            all(["a-1", "b-2"]),
            Seen::Failed { status: Some(410) },
            // What was in `b` may have changed while nobody looked there.
            all(["a-3", "b-4"]),
        ] {
            assert_eq!(news.recv().await, Some(expected));
        }
        following.abort();
    }

    #[test]
    fn pauses_double_up_to_the_longest_and_start_again() {
        let (first, longest) = (Duration::from_millis(100), Duration::from_millis(300));
        let mut pauses = Pauses::new(first, longest);
        for full in [100, 200, 300, 300] {
            let pause = pauses.next().unwrap().as_millis();
            assert!((full / 2..=full).contains(&pause), "{pause} of {full}");
        }
        pauses.reset();
        assert!(pauses.next().unwrap() <= first);
    }

    #[test]
    fn a_pause_is_shortened_by_less_than_half() {
        let pause = Duration::from_millis(1_024);
        assert_eq!(shortened(pause, 0), pause);
        assert!(shortened(pause, 1_023) > pause / 2);
        assert_eq!(shortened(pause, 512), Duration::from_millis(768));
    }
}
