//! Access to a Kubernetes cluster with the user's kubeconfig and rights.
//!
//! Requests for the operators' reports go through the API server's proxy to Pods, so no port has to
//! be exposed or forwarded. An operator's report is readable with a token of the ServiceAccount
//! that has the name of the operators' Service. RBAC decides which users may create such a token.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use bytes::Bytes;
use clap::Args;
use futures::future::join_all;
use http::{Request, Response, StatusCode};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Client;
use kube::api::{Api, DynamicObject, ListParams, PostParams};
use kube::client::Body;

use headgate_controller::kubernetes::client::Access;
use headgate_controller::kubernetes::resource::PolicyResource;
use headgate_controller::modules::PREFIX as MODULES;
use headgate_controller::report::Report;
use headgate_deliver::Adapter;
use headgate_deliver::apply::line;
use headgate_deliver::cluster::ObjectKey;
use headgate_deliver::http_client::whole;
use headgate_deliver::object::{ADAPTER_LABEL, MANAGED_BY};
use headgate_deliver::readable::{Readable, list};
use headgate_deliver::watch::{api, api_of};
use headgate_xds::review::authorize::{AUDIENCE, TOKEN_HEADER};

/// The timeout of one response of the API server, or of a `headgate run`.
pub const TIMEOUT: Duration = Duration::from_secs(10);
/// The largest accepted size of one operator's report, in bytes. A report of 10,000 proxies has
/// about 10 MB.
pub const MAX_ANSWER: usize = 64 << 20;
/// The largest number of operators that are queried for their reports. The chart allows 100, and an
/// update adds one.
const MAX_OPERATORS: usize = 128;
/// The lifetime of a token for the operators' reports, s. The API server accepts no shorter
/// lifetime.
const TOKEN_SECONDS: i64 = 600;
/// The name of the operators' admin port in the Service.
const ADMIN_PORT_NAME: &str = "http-admin";
/// The Service of the operators' admin ports, as the chart names it.
pub const OPERATOR: &str = "headgate-system/headgate-metrics";
/// The default number of the operators' admin port.
const ADMIN_PORT: i32 = 18_001;

/// The cluster, and the operators' Service in it.
#[derive(Debug, Clone, Args)]
pub struct ClusterArgs {
    /// The API server
    #[command(flatten)]
    pub access: Access,
    /// Service of the operators' admin addresses
    #[arg(long, value_name = "NAMESPACE/SERVICE", default_value = OPERATOR)]
    pub operator: ObjectKey,
}

/// The report of one operator.
#[derive(Debug, Clone, PartialEq)]
pub struct Operator {
    /// `namespace/name` of the operator's Pod.
    pub pod: String,
    /// The report, or the reason why it can't be read, in one line.
    pub report: Result<Report, String>,
}

/// The objects that carry policies, by kind, or the reason why a kind can't be listed.
pub type Objects = Vec<(Adapter, anyhow::Result<Vec<DynamicObject>>)>;

/// A connection to the cluster.
pub struct Cluster {
    client: Client,
    /// The namespace of the kubeconfig's context.
    pub namespace: String,
    operator: ObjectKey,
}

impl ClusterArgs {
    /// Whether a cluster is configured: by an argument, by a kubeconfig at the default path, or
    /// because this process runs in a Pod.
    pub fn is_configured(&self) -> bool {
        let set = |name: &str| std::env::var_os(name).is_some_and(|v| !v.is_empty());
        let home = std::env::var_os("HOME").map(PathBuf::from);
        self.access.kubeconfig.is_some()
            || self.access.context.is_some()
            || set("KUBECONFIG")
            || set("KUBERNETES_SERVICE_HOST")
            || home.is_some_and(|home| home.join(".kube/config").is_file())
    }

    /// Creates a client, without sending a request.
    ///
    /// # Errors
    /// Returns one line that names the argument or file at fault and the mistake.
    pub async fn connect(&self) -> anyhow::Result<Cluster> {
        let (client, namespace) = client(&self.access).await?;
        Ok(Cluster {
            client,
            namespace,
            operator: self.operator.clone(),
        })
    }
}

/// Returns a client for the API server, and the namespace of the kubeconfig's context.
///
/// # Errors
/// Returns one line that names the argument or file at fault and the mistake.
pub async fn client(access: &Access) -> anyhow::Result<(Client, String)> {
    let unknown = || "no usable kubeconfig; name one with --kubeconfig PATH".to_owned();
    let mut config = access.config(unknown).await?;
    config.connect_timeout = Some(TIMEOUT);
    let namespace = config.default_namespace.clone();
    let client = Client::try_from(config).context("creating a client failed")?;
    Ok((client, namespace))
}

impl Cluster {
    /// Returns the client of the cluster's API server.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Returns the API of the policies of one namespace, or of all.
    pub fn policies_api(&self, namespace: Option<&str>) -> Api<Readable<PolicyResource>> {
        api(&self.client, namespace.unwrap_or_default())
    }

    /// Returns the policies of one namespace, or of all, ordered by namespace and name. With a
    /// name, returns only the policy with this name.
    ///
    /// # Errors
    /// Returns the API server's reason, in one line.
    pub async fn policies(
        &self,
        namespace: Option<&str>,
        name: Option<&str>,
    ) -> anyhow::Result<Vec<PolicyResource>> {
        let api = self.policies_api(namespace);
        let parameters = match name {
            Some(name) => ListParams::default().fields(&format!("metadata.name={name}")),
            None => ListParams::default(),
        };
        let listed = timely(list(&api, &parameters)).await?;
        let mut policies = listed.map_err(|error| no_policies(&error))?.items;
        policies.sort_by_key(|p| (p.metadata.namespace.clone(), p.metadata.name.clone()));
        Ok(policies)
    }

    /// Returns, by kind, the objects that carry policies to the proxies of other control planes and
    /// to Pods. The objects are from all namespaces or, if the user lacks the right to list these,
    /// from `namespace`. The list of a kind that the cluster doesn't have is empty. For a kind that
    /// can't be listed, the entry is the reason, in one line.
    pub async fn objects(&self, namespace: Option<&str>) -> Objects {
        let ours = format!("{}={},{ADAPTER_LABEL}", MANAGED_BY.0, MANAGED_BY.1);
        let ours = &ListParams::default().labels(&ours);
        let listed = Adapter::ALL.map(|adapter| async move {
            let resource = adapter.resource();
            let of = |name: &str| api_of::<Readable<DynamicObject>>(&resource, &self.client, name);
            let mut listed = timely(list(&of(""), ours)).await?;
            if let (Err(kube::Error::Api(status)), Some(namespace)) = (&listed, namespace)
                && status.code == 403
            {
                listed = timely(list(&of(namespace), ours)).await?;
            }
            match listed {
                Ok(list) => Ok(list.items),
                Err(kube::Error::Api(status)) if status.code == 404 => Ok(Vec::new()),
                Err(error) => Err(refused(&error)),
            }
        });
        let listed = join_all(listed).await;
        Adapter::ALL.into_iter().zip(listed).collect()
    }

    /// Returns the reports of all operators, ordered by Pod. The list is empty without operators.
    /// Operators that are being terminated don't answer any more, so they are left out.
    ///
    /// # Errors
    /// Returns the reason why the operators can't be listed, in one line.
    pub async fn operators(&self) -> anyhow::Result<Vec<Operator>> {
        let ObjectKey { namespace, name } = &self.operator;
        let slices = api::<Readable<EndpointSlice>>(&self.client, namespace);
        let of_service =
            ListParams::default().labels(&format!("kubernetes.io/service-name={name}"));
        let slices = answered(list(&slices, &of_service)).await?;
        let mut pods: BTreeMap<String, i32> = BTreeMap::new();
        for slice in slices.items {
            let ports = slice.ports.into_iter().flatten();
            let admin = { ports }.find(|p| p.name.as_deref() == Some(ADMIN_PORT_NAME));
            let port = admin.and_then(|p| p.port).unwrap_or(ADMIN_PORT);
            for endpoint in slice.endpoints.into_iter().flatten() {
                let conditions = endpoint.conditions.unwrap_or_default();
                if conditions.terminating == Some(true) {
                    continue;
                }
                let pod = endpoint
                    .target_ref
                    .filter(|t| t.kind.as_deref() == Some("Pod"));
                pods.extend(pod.and_then(|p| p.name).map(|name| (name, port)));
            }
        }
        if pods.is_empty() {
            return Ok(Vec::new());
        }
        let token = self.token().await?;
        let token = token.as_str();
        let pods = pods.into_iter().take(MAX_OPERATORS);
        let asked = pods.map(|(pod, port)| async move {
            let report = self.report(&pod, port, token).await;
            Operator {
                pod: format!("{namespace}/{pod}"),
                report: report.map_err(|e| format!("{e:#}")),
            }
        });
        Ok(join_all(asked).await)
    }

    /// Returns a token that is valid only for the operators' reports.
    async fn token(&self) -> anyhow::Result<String> {
        let ObjectKey { namespace, name } = &self.operator;
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), namespace);
        let request = TokenRequest {
            spec: Some(TokenRequestSpec {
                audiences: Some(vec![AUDIENCE.to_owned()]),
                expiration_seconds: Some(TOKEN_SECONDS),
                bound_object_ref: None,
            }),
            ..TokenRequest::default()
        };
        let parameters = PostParams::default();
        let made = accounts.create_token_request(name, &parameters, &request);
        let token = answered(made).await?.status.and_then(|status| status.token);
        token.context("the API server's response to the TokenRequest has no token")
    }

    async fn report(&self, pod: &str, port: i32, token: &str) -> anyhow::Result<Report> {
        let (status, body) = self.answer(pod, port, "/status", Some(token)).await?;
        if status != StatusCode::OK {
            bail!("{}", message(status, &body));
        }
        serde_json::from_slice(&body).context("the answer is not a Headgate status")
    }

    /// Returns a text with the names of the modules that the operator in `pod` serves at `port`.
    /// Returns `None` if the API server can't reach that port, for example because of a
    /// NetworkPolicy.
    ///
    /// # Errors
    /// Returns the reason why the names can't be read, in one line.
    pub async fn modules(&self, pod: &str, port: i32) -> anyhow::Result<Option<String>> {
        listed(self.answer(pod, port, MODULES, None).await)
    }

    /// Returns the response of a Pod in the operators' namespace.
    async fn answer(
        &self,
        pod: &str,
        port: i32,
        path: &str,
        token: Option<&str>,
    ) -> anyhow::Result<(StatusCode, Bytes)> {
        let namespace = &self.operator.namespace;
        let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}:{port}/proxy{path}");
        let answer = self.get(&path, token).await?;
        Ok((answer.status(), answer.into_body()))
    }

    /// Returns the API server's response to a GET, whatever its status. An operator to which the
    /// API server passes the request reads the token.
    ///
    /// # Errors
    /// Returns the reason why there is no response, in one line.
    pub async fn get(&self, path: &str, token: Option<&str>) -> anyhow::Result<Response<Bytes>> {
        let mut request = Request::get(path);
        if let Some(token) = token {
            request = request.header(TOKEN_HEADER, token);
        }
        let response = answered(self.client.send(request.body(Body::empty())?)).await?;
        timely(whole(response, MAX_ANSWER)).await?
    }
}

/// Returns the text that lists the modules, from the response to a request that names no module.
/// `None` if the API server didn't reach the port. The API server reports that only after 30 s,
/// later than [`TIMEOUT`].
fn listed(answer: anyhow::Result<(StatusCode, Bytes)>) -> anyhow::Result<Option<String>> {
    match answer {
        Ok((StatusCode::NOT_FOUND, body)) => Ok(Some(String::from_utf8_lossy(&body).into_owned())),
        Ok((status, body)) => match message(status, &body) {
            unreached if unreached.contains("i/o timeout") => Ok(None),
            refusal => bail!("{refusal}"),
        },
        Err(error) if error.is::<Late>() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the API server's message about a failure, in one line.
fn message(status: StatusCode, body: &Bytes) -> String {
    let given = serde_json::from_slice::<serde_json::Value>(body).ok();
    let given = given.and_then(|v| v["message"].as_str().map(str::to_owned));
    let text = given.unwrap_or_else(|| String::from_utf8_lossy(body).chars().take(200).collect());
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    format!("{status}: {text}")
}

/// Returns the result of `answer`.
///
/// # Errors
/// Returns one line if it takes longer than [`TIMEOUT`].
pub async fn timely<T>(answer: impl Future<Output = T>) -> anyhow::Result<T> {
    let answer = tokio::time::timeout(TIMEOUT, answer).await;
    answer.map_err(|_| Late.into())
}

/// The error of a response that took longer than [`TIMEOUT`].
#[derive(Debug, thiserror::Error)]
#[error("the API server did not answer within {} s", TIMEOUT.as_secs())]
struct Late;

/// Returns the API server's answer.
///
/// # Errors
/// Returns the reason why it gives none, in one line.
pub async fn answered<T>(answer: impl Future<Output = kube::Result<T>>) -> anyhow::Result<T> {
    timely(answer).await?.map_err(|error| refused(&error))
}

/// Returns an error with the reason why policies can't be listed, in one line.
pub fn no_policies(error: &kube::Error) -> anyhow::Error {
    match error {
        kube::Error::Api(status) if status.code == 404 => anyhow!(
            "the CRD of AdmissionPolicy isn't installed; install Headgate's chart, or only the \
             CRD: headgate crd | kubectl apply --server-side -f -"
        ),
        _ => refused(error),
    }
}

/// Returns an error with the API server's refusal, or the reason why it doesn't answer, in one
/// line.
pub fn refused(error: &kube::Error) -> anyhow::Error {
    match error {
        kube::Error::Api(status) => anyhow!("the API server: {}", status.message),
        other => anyhow!(line(other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_behind_a_network_policy_is_not_reached() {
        let said = |status, text: &'static str| Ok((status, Bytes::from_static(text.as_bytes())));
        let listed = |answer| listed(answer).map_err(|error| error.to_string());
        assert_eq!(
            listed(said(StatusCode::NOT_FOUND, "a.wasm")),
            Ok(Some("a.wasm".to_owned()))
        );
        assert_eq!(listed(Err(Late.into())), Ok(None));
        let dropped = "error trying to reach service: dial tcp 10.0.0.1:18002: i/o timeout";
        assert_eq!(
            listed(said(StatusCode::SERVICE_UNAVAILABLE, dropped)),
            Ok(None)
        );
        let forbidden = listed(said(StatusCode::FORBIDDEN, "pods \"a\" is forbidden"));
        assert!(forbidden.is_err_and(|why| why.contains("forbidden")));
    }
}
