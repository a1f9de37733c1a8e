//! Proxies in a cluster, and connections to their admin interfaces.
//!
//! An admin interface should be on the loopback address, which the API server's own proxy doesn't
//! reach. The mechanism of `kubectl port-forward` reaches it: the right to forward ports of a Pod
//! is the right to see its Envoy.

use std::collections::BTreeSet;

use anyhow::{Context as _, anyhow};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams};
use tokio::io::DuplexStream;

use super::place::Place;
use crate::cluster::{Cluster, refused, timely};

/// The Pods of a cluster to watch.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    /// Only Pods of this namespace.
    pub namespace: Option<String>,
    /// Only Pods with these labels, instead of those that the operators know.
    pub labels: Option<String>,
    /// Port of Envoy's admin interface.
    pub port: u16,
}

/// Returns a connection to a port of a Pod, and the kubelet's message when it ends the connection.
pub(super) async fn connect(
    client: &kube::Client,
    namespace: &str,
    name: &str,
    port: u16,
) -> anyhow::Result<(DuplexStream, BoxFuture<'static, Option<String>>)> {
    let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let forwarded = api.portforward(name, &[port]).await;
    let mut forwarded = forwarded.map_err(|error| refused(&error))?;
    let stream = forwarded.take_stream(port).context("no stream")?;
    let error = forwarded
        .take_error(port)
        .context("no channel for errors")?;
    Ok((stream, error.boxed()))
}

/// Returns the proxies of `selection`, and a remark on those that can't be shown.
///
/// # Errors
/// Returns the reason why the proxies can't be listed, in one line.
pub async fn find(
    cluster: &Cluster,
    selection: &Selection,
) -> anyhow::Result<(Vec<Place>, Option<String>)> {
    let (pods, remark) = match &selection.labels {
        Some(labels) => (labelled(cluster, selection, labels).await?, None),
        None => reported(cluster, selection).await?,
    };
    let place = |(namespace, name)| Place::Pod {
        namespace,
        name,
        port: selection.port,
    };
    Ok((pods.into_iter().map(place).collect(), remark))
}

async fn labelled(
    cluster: &Cluster,
    selection: &Selection,
    labels: &str,
) -> anyhow::Result<BTreeSet<(String, String)>> {
    let api: Api<Pod> = match &selection.namespace {
        Some(namespace) => Api::namespaced(cluster.client(), namespace),
        None => Api::all(cluster.client()),
    };
    let wanted = ListParams::default().labels(labels);
    let listed = timely(api.list(&wanted)).await?.map_err(|e| refused(&e))?;
    let running = |pod: &Pod| {
        let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
        phase == Some("Running")
    };
    let named = |pod: Pod| Some((pod.metadata.namespace?, pod.metadata.name?));
    Ok(listed
        .items
        .into_iter()
        .filter(running)
        .filter_map(named)
        .collect())
}

/// Returns the Pods of the proxies that operators report, which must be named after their Pods, and
/// a remark on the others.
async fn reported(
    cluster: &Cluster,
    selection: &Selection,
) -> anyhow::Result<(BTreeSet<(String, String)>, Option<String>)> {
    let operators = cluster.operators().await?;
    let reports: Vec<_> = operators
        .iter()
        .filter_map(|o| o.report.as_ref().ok())
        .collect();
    if reports.is_empty() {
        let why = operators.iter().find_map(|o| o.report.as_ref().err());
        return Err(match why {
            Some(why) => anyhow!("no operator tells which proxies there are: {why}"),
            None => anyhow!("there is no operator to tell which proxies there are"),
        }
        .context("name proxies with --proxy HOST:PORT, or Pods with --selector LABELS"));
    }
    let connected = reports
        .iter()
        .flat_map(|r| &r.proxies)
        .filter(|p| p.disconnected.is_none());
    let (mut found, mut nameless) = (BTreeSet::new(), 0);
    for proxy in connected {
        match (&proxy.namespace, &selection.namespace) {
            (Some(own), wanted) if wanted.as_ref().is_none_or(|w| w == own) => {
                found.insert((own.clone(), proxy.node.clone()));
            }
            (Some(_), _) => {}
            (None, _) => nameless += 1,
        }
    }
    let remark = (nameless > 0)
        .then(|| format!("{nameless} connected proxies don't say which Pod they are in"));
    Ok((found, remark))
}
