//! Writes the CA with which the API server verifies the operator into the
//! MutatingWebhookConfiguration.
//!
//! Only the leader writes. It compares the CAs when the configuration changes, for example by an
//! upgrade of the chart, and when the operator's CA changes.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use kube::api::{Api, Patch, PatchParams};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Client, Error};
use serde_json::json;
use tokio::sync::watch;
use tracing::{info, warn};

use super::leader::{Leadership, while_leading};
use headgate_deliver::object::FIELD_MANAGER;
use headgate_xds::tls::Trust;

/// The pause after a failed write.
const RETRY: Duration = Duration::from_secs(5);

/// The webhook configuration that gets the CA.
#[derive(Clone)]
pub struct CaBundle {
    /// The name of the MutatingWebhookConfiguration.
    pub name: String,
    /// The operator's certificate and the CA that verifies it.
    pub trust: watch::Receiver<Arc<Trust>>,
}

impl CaBundle {
    /// Keeps the CA up to date while this replica leads, until cancelled.
    pub(super) async fn run(self, client: Client, leadership: Leadership) {
        while_leading(leadership, || self.clone().follow(client.clone())).await;
    }

    async fn follow(mut self, client: Client) {
        let api = Api::<MutatingWebhookConfiguration>::all(client);
        let only = watcher::Config::default().fields(&format!("metadata.name={}", self.name));
        let seen = watcher(api.clone(), only).default_backoff();
        let mut seen = pin!(seen.applied_objects());
        let (mut latest, mut failed) = (None, false);
        loop {
            tokio::select! {
                Some(event) = seen.next() => match event {
                    Ok(object) => latest = Some(object),
                    Err(error) => {
                        warn!("watching webhook {} failed: {error}", self.name);
                        continue;
                    }
                },
                Ok(()) = self.trust.changed() => {}
                () = tokio::time::sleep(RETRY), if failed => {}
                else => return,
            }
            let Some(configuration) = &latest else {
                continue;
            };
            let written = self.write(&api, configuration).await;
            failed = written.is_err();
            if let Err(error) = written {
                warn!("CA of webhook {}: {error}", self.name);
            }
        }
    }

    /// Writes the CA into all webhooks of `observed` if any of them has a different one.
    async fn write(
        &self,
        api: &Api<MutatingWebhookConfiguration>,
        observed: &MutatingWebhookConfiguration,
    ) -> Result<(), Error> {
        let ca = ByteString(self.trust.borrow().client_ca().to_vec());
        let webhooks = observed.webhooks.as_deref().unwrap_or_default();
        if (webhooks.iter()).all(|webhook| webhook.client_config.ca_bundle.as_ref() == Some(&ca)) {
            return Ok(());
        }
        let with_ca = |name: &String| json!({"name": name, "clientConfig": {"caBundle": ca}});
        let webhooks: Vec<_> = webhooks.iter().map(|w| with_ca(&w.name)).collect();
        let object = json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": self.name},
            "webhooks": webhooks,
        });
        let params = PatchParams::apply(FIELD_MANAGER).force();
        api.patch(&self.name, &params, &Patch::Apply(object))
            .await?;
        info!(webhook = self.name, "wrote the CA of the operator");
        Ok(())
    }
}
