//! Writes the CA with which the API server verifies the operator into the
//! MutatingWebhookConfiguration, which an upgrade of the chart writes without it.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use kube::api::{Api, ListParams, Patch, PatchParams};
use kube::runtime::watcher;
use kube::{Client, Error};
use serde_json::json;
use tokio::sync::watch;
use tracing::info;

use super::keep_ca::{events, keep_ca};
use super::leader::Leadership;
use headgate_deliver::object::FIELD_MANAGER;
use headgate_deliver::readable::{Readable, list};
use headgate_xds::tls::Trust;

/// The pause after a failed write.
const RETRY: Duration = Duration::from_secs(5);

/// The webhook configuration that gets the CA.
pub struct CaBundle {
    /// The name of the MutatingWebhookConfiguration.
    pub name: String,
    /// The operator's certificate and the CA that verifies it.
    pub trust: watch::Receiver<Arc<Trust>>,
}

impl CaBundle {
    /// Keeps the CA up to date while this replica leads, until cancelled.
    pub(super) async fn run(self, client: Client, leadership: Leadership) {
        let api = Api::<Readable<MutatingWebhookConfiguration>>::all(client);
        let what = format!("webhook {}", self.name);
        let only = format!("metadata.name={}", self.name);
        let config = watcher::Config::default().fields(&only);
        let changes = || events(api.clone(), config.clone());
        let write = |ca: Vec<u8>| self.write(&api, ListParams::default().fields(&only), ca);
        let trust = self.trust.clone();
        keep_ca(leadership, trust, (&what, RETRY), changes, write).await;
    }

    /// Writes the CA into all webhooks of the configuration if any of them has a different one.
    async fn write(
        &self,
        api: &Api<Readable<MutatingWebhookConfiguration>>,
        only: ListParams,
        ca: Vec<u8>,
    ) -> Result<(), Error> {
        let ca = ByteString(ca);
        let found = list(api, &only).await?.items.into_iter().next();
        let webhooks = found.and_then(|found| found.webhooks).unwrap_or_default();
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
