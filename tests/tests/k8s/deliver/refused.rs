//! Writes that the API server refuses for a while, because of a quota or because of a webhook that
//! doesn't answer. Once the API server accepts the writes, they need neither an edit nor a restart.

use std::time::Duration;

use anyhow::Result;
use headgate_tests::wait::{until, until_within};
use serde_json::Value;

use super::stage::{Stage, slots};

/// The longest wait for the controller of quotas, which pauses while new CRDs are installed.
const SETTLED: Duration = Duration::from_secs(90);

/// Allows this many ConfigMaps, and waits until the quota is in force.
fn allow_config_maps(stage: &Stage, count: u32) -> Result<()> {
    stage.server.apply(&format!(
        "apiVersion: v1\nkind: ResourceQuota\nmetadata: {{name: few, namespace: {}}}\n\
         spec: {{hard: {{count/configmaps: '{count}'}}}}\n",
        stage.namespace
    ))?;
    let hard = r"--output=jsonpath={.status.hard.count/configmaps}";
    until_within(SETTLED, "the quota", || {
        let found = stage.kubectl(&["get", "resourcequota", "few", hard]);
        let found = found.map_err(|e| format!("{e:#}"))?;
        match found == count.to_string() {
            true => Ok(()),
            false => Err(found),
        }
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_a_quota_refused_is_delivered_when_the_quota_is_raised() -> Result<()> {
    let mut stage = Stage::set().await?;
    allow_config_maps(&stage, 0)?;
    stage.search();
    stage.deliver(3)?;
    let said = stage.programmed("p", false, "exceeded quota").await?;
    assert!(said.contains("ConfigMap"), "{said}");
    assert_eq!(stage.all("configmaps")?, [] as [Value; 0]);
    allow_config_maps(&stage, 9)?;
    stage.programmed("p", true, "ConfigMap").await?;
    stage.wait_for("configmaps", "the file", |_| true)?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_a_silent_webhook_refused_is_delivered_when_the_webhook_is_gone()
-> Result<()> {
    let mut stage = Stage::set().await?;
    let namespace = stage.namespace.clone();
    stage.search();
    stage.deliver(3)?;
    stage.programmed("p", true, "TrafficExtension").await?;
    // Nothing listens on this port.
    stage.server.apply(&format!(
        "
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {{name: {namespace}}}
webhooks:
- name: down.example.com
  clientConfig: {{url: 'https://127.0.0.1:1/'}}
  rules:
  - apiGroups: [extensions.istio.io]
    apiVersions: ['*']
    resources: [trafficextensions]
    operations: [CREATE, UPDATE]
  namespaceSelector: {{matchLabels: {{kubernetes.io/metadata.name: {namespace}}}}}
  failurePolicy: Fail
  sideEffects: None
  admissionReviewVersions: [v1]
  timeoutSeconds: 1
"
    ))?;
    let other = format!(
        "apiVersion: extensions.istio.io/v1alpha1\nkind: TrafficExtension\n\
         metadata: {{name: other, namespace: {namespace}}}\n\
         spec: {{wasm: {{url: 'oci://example.com/other'}}}}\n"
    );
    until("the webhook to be called", || {
        match stage.server.dry_run(&other) {
            Err(error) if format!("{error:#}").contains("failed calling webhook") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })?;
    stage.deliver(5)?;
    stage
        .programmed("p", false, "failed calling webhook")
        .await?;
    assert_eq!(
        slots(&stage.wait_for("trafficextensions", "the plugin", |_| true)?),
        3
    );
    stage
        .server
        .kubectl(&["delete", "validatingwebhookconfiguration", &namespace])?;
    stage.programmed("p", true, "TrafficExtension").await?;
    stage.wait_for_slots(5)?;
    Ok(())
}
