//! Objects of a delivery that was turned off.
//!
//! Nothing watches their kind any more, so they would stay in force, and stale, until somebody deletes them. One look at
//! the start of a leader finds them: a setting changes only with a new process.

use std::time::Duration;

use kube::api::{DynamicObject, ListParams};
use kube::{Api, Client, ResourceExt as _};
use tracing::{info, warn};

use super::apply;
use super::object::Adapter;
use super::observed::{Source, ours};
use super::settings::Settings;
use crate::kubernetes::cluster::ObjectKey;
use crate::kubernetes::watch::apis_of;

/// Objects in one answer of the API server.
const PAGE: u32 = 100;

/// Removes our objects of all deliveries that are off. What fails is tried again after the settings' pause.
pub(super) async fn remove(client: Client, settings: Settings) {
    for adapter in Source::off(&settings) {
        for api in apis_of(&adapter.resource(), &client, &settings.watch_namespaces) {
            while let Err(why) = remove_from(&client, adapter, &api).await {
                warn!(
                    kind = adapter.kind(),
                    "removing what is left of a delivery that is off failed, and is tried again: {why}"
                );
                tokio::time::sleep(settings.retry.max(Duration::from_secs(1))).await;
            }
        }
    }
}

async fn remove_from(
    client: &Client,
    adapter: Adapter,
    api: &Api<DynamicObject>,
) -> Result<(), String> {
    let mut page = ListParams::default().labels(&ours()).limit(PAGE);
    loop {
        let list = match api.list_metadata(&page).await {
            Ok(list) => list,
            // There is no such kind.
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(()),
            Err(kube::Error::Api(status)) if status.code == 403 => {
                warn!(
                    kind = adapter.kind(),
                    "what is left of a delivery that is off can't be removed: {}; grant list and delete, or give \
                     --keep-leftovers",
                    status.message
                );
                return Ok(());
            }
            Err(error) => return Err(error.to_string()),
        };
        for object in &list.items {
            let key = ObjectKey::new(object.namespace().unwrap_or_default(), object.name_any());
            let observed = serde_json::to_value(object).map_err(|e| e.to_string())?;
            apply::delete(client, adapter, &key, &observed).await?;
            info!(
                kind = adapter.kind(),
                object = %key,
                "deleted: its delivery is off"
            );
        }
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(next) => page = page.continue_token(&next),
            None => return Ok(()),
        }
    }
}
