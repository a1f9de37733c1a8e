//! Keeps the CA of the operator's certificate up to date in objects on the API server.
//!
//! Only the leader writes. It compares the objects when one of them changes, and when the CA
//! changes.

use std::fmt::Debug;
use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::BoxStream;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Error, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};
use tracing::warn;

use super::leader::{Leadership, while_leading};
use headgate_deliver::readable::Readable;
use headgate_xds::tls::Trust;

/// The time within which several changes are handled as one.
const SETTLE: Duration = Duration::from_millis(200);
/// The shortest interval between two comparisons of all objects. It limits the cost of a tenant
/// that keeps editing its own objects.
const INTERVAL: Duration = Duration::from_secs(1);

/// Calls `write` with the CA, PEM, while this replica leads: at first, for each item of `changes`,
/// for each change of the CA, and again `retry` after a failure. `what` names the objects in log
/// lines.
pub(super) async fn keep_ca<F: Future<Output = Result<(), Error>>>(
    leadership: Leadership,
    trust: watch::Receiver<Arc<Trust>>,
    (what, retry): (&str, Duration),
    changes: impl Fn() -> BoxStream<'static, ()>,
    write: impl Fn(Vec<u8>) -> F,
) {
    let follow = || async {
        let (mut changes, mut trust) = (changes(), trust.clone());
        loop {
            let begun = Instant::now();
            let ca = trust.borrow_and_update().client_ca().to_vec();
            let written = write(ca).await;
            if let Err(error) = &written {
                warn!("writing the CA into {what} failed: {error}");
            }
            tokio::select! {
                Some(()) = changes.next() => {}
                Ok(()) = trust.changed() => {}
                () = sleep(retry), if written.is_err() => {}
                else => return,
            }
            let settled = (Instant::now() + SETTLE).max(begun + INTERVAL);
            while let Ok(Some(())) = timeout_at(settled, changes.next()).await {}
        }
    };
    while_leading(leadership, follow).await;
}

/// Returns a stream with an item for each event of these objects.
pub(super) fn events<K>(api: Api<Readable<K>>, objects: watcher::Config) -> BoxStream<'static, ()>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let events = watcher(api, objects).default_backoff();
    events
        .filter_map(|event| ready(event.ok().map(drop)))
        .boxed()
}
