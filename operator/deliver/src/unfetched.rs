//! Objects whose module Envoy Gateway couldn't fetch.
//!
//! Envoy Gateway fetches the module when it translates its objects. If it restarts while no
//! operator serves the module, it removes the filter from all its proxies. It doesn't retry by
//! itself, because it translates again only when the `spec` of an object changes. After some ten
//! failures it doesn't request the same URL for an hour. So the URL gets a new query, which the
//! operator's server ignores. Envoys that have the module keep their VM, because they identify the
//! module by its hash.

use std::collections::BTreeMap;
use std::time::Duration;

use backon::ExponentialBackoff;
use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;
use tracing::info;

use crate::adapter::Adapter;
use crate::cluster::ObjectKey;
use crate::envoy_gateway::{URL, lacks_module, state};
use crate::object::ModuleRef;
use crate::observed::Observed;
use crate::report::ObjectState;
use crate::served;
use crate::wanted::Wanted;
use crate::watch::pauses;

/// The longest pause between two attempts. Each attempt delays Envoy Gateway by up to a minute.
const LONGEST_PAUSE: Duration = Duration::from_secs(600);

/// The objects whose module Envoy Gateway should fetch again, until it has accepted them.
#[derive(Debug, Default)]
pub(crate) struct Unfetched(BTreeMap<ObjectKey, Asked>);

#[derive(Debug)]
struct Asked {
    /// The URL of the last attempt.
    url: String,
    /// The time of the next attempt.
    again: Instant,
    pauses: ExponentialBackoff,
}

impl Unfetched {
    /// Chooses another URL for each object whose module Envoy Gateway couldn't fetch, if the module
    /// is served. Returns whether any URL was chosen, so that a round is due. `pause` is the first
    /// pause between attempts.
    pub(crate) async fn look(
        &mut self,
        module: &ModuleRef,
        pause: Duration,
        observed: &Observed,
    ) -> bool {
        // An object stays in the map, with its growing pauses, until Envoy Gateway has accepted it.
        self.0.retain(|key, _| {
            let value = observed.get(Adapter::EnvoyGateway, key);
            value.is_some_and(|value| state(value) != ObjectState::Delivered)
        });
        let now = Instant::now();
        let is_due = |key: &ObjectKey| self.0.get(key).is_none_or(|asked| asked.again <= now);
        let objects = observed.objects();
        let due: Vec<ObjectKey> = objects
            .filter(|(adapter, ..)| *adapter == Adapter::EnvoyGateway)
            .filter(|(_, key, value)| lacks_module(value) && is_due(key))
            .map(|(_, key, _)| key.clone())
            .collect();
        if due.is_empty() || served::check(module, false).await.is_err() {
            return false;
        }
        for key in due {
            info!(object = %key, "Envoy Gateway couldn't fetch the module; a new URL makes it retry");
            let before = self.0.remove(&key).map(|asked| asked.pauses);
            let mut pauses = before.unwrap_or_else(|| pauses(pause, LONGEST_PAUSE));
            let asked = Asked {
                url: format!("{}?again={}", module.url, Timestamp::now().as_millisecond()),
                again: now + pauses.next().unwrap_or(LONGEST_PAUSE),
                pauses,
            };
            self.0.insert(key, asked);
        }
        true
    }

    /// Writes the chosen URLs into the wanted objects. Other objects keep the query of their URL.
    pub(crate) fn apply(&self, wanted: &mut Wanted, observed: &Observed) {
        for (key, object) in &mut wanted.objects {
            let Some(place) = object.value.pointer_mut(URL) else {
                continue;
            };
            let known = observed.get(key.0, &key.1).and_then(|o| o.pointer(URL));
            let asked = self.0.get(&key.1).map(|asked| asked.url.as_str());
            let urls = [asked, known.and_then(|url| url.as_str())];
            let has_query = |url: &&str| {
                let module = object
                    .module
                    .as_ref()
                    .and_then(|m| url.strip_prefix(&m.url));
                module.is_some_and(|rest| rest.starts_with('?'))
            };
            if let Some(url) = urls.into_iter().flatten().find(has_query) {
                *place = url.into();
            }
        }
    }
}
