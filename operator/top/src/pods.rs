//! The proxies of a cluster.
//!
//! Admin interfaces should listen on the loopback address. The API server's proxy can't reach this
//! address, but the mechanism of `kubectl port-forward` can. So a user needs the right to forward
//! the ports of a Pod to see its Envoy.

use anyhow::{Context as _, anyhow};
use headgate_command::cluster::{Cluster, answered};
use headgate_deliver::readable::{Readable, list};
use headgate_deliver::watch::api;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams};
use kube::core::PartialObjectMeta;

use crate::client::AdminAddress;

/// A selection of Pods to watch.
pub(crate) struct Selection {
    pub(crate) cluster: Cluster,
    /// The namespace of the Pods, or `None` for all namespaces.
    pub(crate) namespace: Option<String>,
    /// The labels of the Pods. With `None`, the Pods are those of the proxies that operators
    /// report.
    pub(crate) labels: Option<String>,
    /// The port of Envoy's admin interface.
    pub(crate) port: u16,
}

impl Selection {
    /// Returns the addresses of the proxies, and a remark on proxies that can't be shown.
    ///
    /// # Errors
    /// Returns the reason why the proxies can't be listed, in one line.
    pub(crate) async fn find(&self) -> anyhow::Result<(Vec<AdminAddress>, Option<String>)> {
        let (pods, mut remark) = match &self.labels {
            Some(labels) => (self.labelled(labels).await?, None),
            None => self.reported().await?,
        };
        if pods.is_empty() && remark.is_none() {
            let namespace = self.namespace.as_ref();
            let place = namespace.map_or_else(String::new, |n| format!(" in namespace {n}"));
            remark = Some(match &self.labels {
                Some(labels) => format!("no Pod with the labels {labels} runs{place}"),
                None => format!(
                    "no proxy is connected to an operator{place}; find those of Istio and Envoy \
                     Gateway by --selector and --admin-port"
                ),
            });
        }
        let place = |(namespace, name): (String, String)| AdminAddress::Pod {
            api: Box::new(Api::namespaced(self.cluster.client(), &namespace)),
            name,
            port: self.port,
        };
        Ok((pods.into_iter().map(place).collect(), remark))
    }

    async fn labelled(&self, labels: &str) -> anyhow::Result<Vec<(String, String)>> {
        let namespace = self.namespace.as_deref().unwrap_or_default();
        let pods = api::<Readable<PartialObjectMeta<Pod>>>(&self.cluster.client(), namespace);
        let wanted = ListParams::default()
            .labels(labels)
            .fields("status.phase=Running");
        let listed = answered(list(&pods, &wanted)).await?;
        let pods = listed.into_iter().map(|pod| pod.metadata);
        // A terminating Pod is in phase Running until its last container ends. It gets no new
        // connections, and has no share of the slots, and its Envoy may have ended.
        let stay = pods.filter(|pod| pod.deletion_timestamp.is_none());
        let named = stay.filter_map(|pod| Some((pod.namespace?, pod.name?)));
        Ok(named.collect())
    }

    /// Returns the Pods of the connected proxies that operators report, by namespace and name. A
    /// proxy's node id must be the name of its Pod. Also returns a remark on proxies without a
    /// namespace.
    async fn reported(&self) -> anyhow::Result<(Vec<(String, String)>, Option<String>)> {
        let operators = self.cluster.operators().await?;
        if operators.iter().all(|o| o.report.is_err()) {
            let why = operators.first().and_then(|o| o.report.as_ref().err());
            return Err(match why {
                Some(why) => anyhow!("no operator reported its proxies: {why}"),
                None => anyhow!("no operator is running, so the proxies are unknown"),
            })
            .context("name proxies with --proxy HOST:PORT, or Pods with --selector LABELS");
        }
        let reports = operators.iter().flat_map(|o| &o.report);
        let proxies = reports.flat_map(|r| &r.proxies);
        let connected = proxies.filter(|p| p.disconnected.is_none());
        let (named, nameless): (Vec<_>, Vec<_>) = connected.partition(|p| p.namespace.is_some());
        let pods = { named.into_iter() }
            .filter_map(|p| Some((p.namespace.clone()?, p.node.clone())))
            .filter(|(own, _)| self.namespace.as_ref().is_none_or(|wanted| wanted == own));
        let remark = (!nameless.is_empty()).then(|| {
            let count = nameless.len();
            format!("{count} connected proxies don't report their Pod")
        });
        Ok((pods.collect(), remark))
    }
}
