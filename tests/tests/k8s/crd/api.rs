//! Sends policies to a real API server as they are written, and reads the answers.

use anyhow::{Context as _, Result, anyhow};
use headgate_tests::kube::ApiServer;
use http::Request;
use http_body_util::BodyExt as _;
use kube::Client;
use kube::client::Body;
use serde_json::Value;

/// A refusal by the API server.
#[derive(Debug)]
pub(crate) struct Refusal {
    /// The whole text of the refusal.
    pub(crate) message: String,
    /// Each field at fault, as `headgate validate` names it, and its problem.
    pub(crate) causes: Vec<(String, String)>,
}

/// Returns a client of the API server, on which the CustomResourceDefinition is installed.
pub(crate) async fn client() -> Result<Client> {
    let server = ApiServer::shared();
    server.install_crds()?;
    server.client().await
}

/// Creates `body` in `namespace` as a dry run. Returns the object with its defaults as JSON, with
/// numbers as the API server writes them, or the refusal.
pub(crate) async fn create(
    client: &Client,
    namespace: &str,
    media_type: &str,
    body: Vec<u8>,
) -> Result<Result<String, Refusal>> {
    let request = Request::post(format!(
        "/apis/headgate.dev/v1alpha1/namespaces/{namespace}/admissionpolicies\
         ?dryRun=All&fieldValidation=Strict"
    ))
    .header("content-type", media_type)
    .header("accept", "application/json")
    .body(Body::from(body))?;
    let response = client.send(request).await?;
    let accepted = response.status().is_success();
    let bytes = response
        .into_body()
        .collect()
        .await
        .map_err(|error| anyhow!("{error}"))?
        .to_bytes();
    if accepted {
        return Ok(Ok(String::from_utf8(bytes.to_vec())?));
    }
    let value: Value = serde_json::from_slice(&bytes).context("the answer is no JSON")?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let causes = value["details"]["causes"].as_array();
    let causes = causes.into_iter().flatten();
    Ok(Err(Refusal {
        message: text(&value["message"]),
        causes: causes
            .map(|cause| (field(&text(&cause["field"])), text(&cause["message"])))
            .collect(),
    }))
}

/// Rewrites a path such as `spec.types[0].slo[p50]` as `spec.types[0].slo.p50`.
fn field(path: &str) -> String {
    let mut parts = path.split('[');
    let mut field = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.split_once(']') {
            Some((key, rest)) if !key.bytes().all(|b| b.is_ascii_digit()) => {
                field.push_str(&format!(".{key}{rest}"));
            }
            _ => field.push_str(&format!("[{part}")),
        }
    }
    field
}
