//! Who may read what an operator shows: the API server decides, by its own rules.
//!
//! The bearer token of a request goes to the API server (TokenReview), and then whose it is
//! together with the path that was asked for (SubjectAccessReview of a non-resource URL, verb
//! `get`). So RBAC grants `/metrics` and `/status` as it grants the API server's own paths.
//!
//! A token may be for [`AUDIENCE`]. The connection is plain HTTP, and such a token opens nothing
//! else for whoever sees it there. One for the API server is accepted too, because that is what
//! Prometheus has. The token itself says which it is for, so that each costs one TokenReview.
//!
//! Permissions are kept for [`KEEP`], so that a RoleBinding that is deleted counts by then. A token
//! that the API server doesn't accept is kept for [`KEEP_REFUSED`], so that a client with an old
//! token doesn't cost a review a request. That a user has no permission is not kept: a new
//! RoleBinding counts at once.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::authentication::v1::UserInfo;
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::api::{Api, PostParams};
use kube::{Client, Error};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::kept::{Kept, key};
use super::review::{review, says_audience};

/// Audience of tokens that are for operators only.
pub const AUDIENCE: &str = "headgate.dev";
/// Header for a token that comes by way of the API server's proxy, which keeps `Authorization` to
/// itself.
pub const TOKEN_HEADER: &str = "x-headgate-token";
/// How long a permission counts.
const KEEP: Duration = Duration::from_secs(60);
/// How long it counts that the API server doesn't accept a token.
const KEEP_REFUSED: Duration = Duration::from_secs(10);
/// Answers of each kind that are kept at once; those beyond are asked for again.
const MAX_KEPT: usize = 256;
/// Reviews that the API server is asked for at once; more wait.
const MAX_REVIEWS: usize = 8;
/// Time for a review.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Asks the API server who may read.
#[derive(Clone)]
pub struct Authorizer {
    client: Client,
    permissions: Arc<Kept<()>>,
    refused: Arc<Kept<()>>,
    reviews: Arc<Semaphore>,
}

impl fmt::Debug for Authorizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authorizer").finish_non_exhaustive()
    }
}

/// Why a request isn't answered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It has no token.
    #[error("a token is needed: Authorization: Bearer TOKEN")]
    NoToken,
    /// Its token is nobody's.
    #[error(
        "the API server doesn't accept the token; it may have expired, or be for another audience"
    )]
    UnknownToken,
    /// Its user has no permission.
    #[error(
        "{user} may not get {path}; a ClusterRole with this path in nonResourceURLs permits it"
    )]
    Forbidden {
        /// Name of the user.
        user: String,
        /// The path.
        path: String,
    },
    /// Nobody knows.
    #[error("the API server can't be asked who may get this: {0}")]
    Unavailable(String),
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::Unavailable(error.to_string())
    }
}

impl Authorizer {
    /// Asks by `client`.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self {
            client,
            permissions: Arc::new(Kept::new(MAX_KEPT)),
            refused: Arc::new(Kept::new(MAX_KEPT)),
            reviews: Arc::new(Semaphore::new(MAX_REVIEWS)),
        }
    }

    /// Whether whoever has `token` may get `path`.
    ///
    /// # Errors
    /// No, or nobody can tell.
    pub async fn authorize(&self, token: Option<&str>, path: &str) -> Result<(), Refusal> {
        let token = token.ok_or(Refusal::NoToken)?;
        let (of_token, of_both) = (key(token), key(&format!("{token}\n{path}")));
        if self.permissions.get(&of_both, Instant::now()).is_some() {
            return Ok(());
        }
        let review = async {
            let _permit = self.reviews.acquire().await;
            // Asked again behind the permit: requests that came together with one token share its
            // refusal.
            if self.refused.get(&of_token, Instant::now()).is_some() {
                return Err(Refusal::UnknownToken);
            }
            let reviewed = self.review(token, path).await;
            if reviewed == Err(Refusal::UnknownToken) {
                self.refused
                    .keep(of_token, (), Instant::now(), KEEP_REFUSED);
            }
            reviewed
        };
        let Ok(reviewed) = timeout(TIMEOUT, review).await else {
            let why = format!("no answer within {} s", TIMEOUT.as_secs());
            return Err(Refusal::Unavailable(why));
        };
        reviewed?;
        self.permissions.keep(of_both, (), Instant::now(), KEEP);
        Ok(())
    }

    async fn review(&self, token: &str, path: &str) -> Result<(), Refusal> {
        let UserInfo {
            username,
            uid,
            groups,
            extra,
        } = self.user(token).await?.ok_or(Refusal::UnknownToken)?;
        let spec = SubjectAccessReviewSpec {
            user: username.clone(),
            uid,
            groups,
            extra,
            non_resource_attributes: Some(NonResourceAttributes {
                path: Some(path.to_owned()),
                verb: Some("get".to_owned()),
            }),
            resource_attributes: None,
        };
        let review = SubjectAccessReview {
            spec,
            ..SubjectAccessReview::default()
        };
        let reviews: Api<SubjectAccessReview> = Api::all(self.client.clone());
        let reviewed = reviews.create(&PostParams::default(), &review).await?;
        if reviewed.status.is_some_and(|status| status.allowed) {
            return Ok(());
        }
        Err(Refusal::Forbidden {
            user: username.unwrap_or_default(),
            path: path.to_owned(),
        })
    }

    /// Returns the user of `token`.
    async fn user(&self, token: &str) -> Result<Option<UserInfo>, Error> {
        // None is the API server itself. A token that says nothing, as one that is no JWT, can only
        // be for it.
        let audience = says_audience(token, AUDIENCE).then_some(AUDIENCE);
        let status = review(&self.client, token, audience).await?;
        let is_known = status.authenticated == Some(true);
        Ok(status.user.filter(|_| is_known))
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Mutex;

    use base64::Engine as _;
    use base64::prelude::BASE64_URL_SAFE_NO_PAD;
    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::{Value, json};

    use super::*;

    /// An API server that knows none of the tokens but `good`, with what it was asked about: tokens
    /// and audiences.
    fn server(good: String) -> (Client, Arc<Mutex<Vec<Value>>>) {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let known = Arc::clone(&asked);
        let answer = move |request: Request<Body>| {
            let (good, known) = (good.clone(), Arc::clone(&known));
            async move {
                let is_about_tokens = request.uri().path().ends_with("/tokenreviews");
                let body = request.into_body().collect_bytes().await.unwrap();
                let mut review: Value = serde_json::from_slice(&body).unwrap();
                let is_good = review["spec"]["token"] == good.as_str();
                review["status"] = match is_about_tokens {
                    true => json!({"authenticated": is_good, "user": {"username": "u"}}),
                    false => json!({"allowed": true}),
                };
                if is_about_tokens {
                    known.lock().unwrap().push(review["spec"].clone());
                }
                let body = Body::from(review.to_string().into_bytes());
                Ok::<_, Infallible>(Response::new(body))
            }
        };
        (Client::new(tower::service_fn(answer), "default"), asked)
    }

    fn jwt(audiences: &Value) -> String {
        let claims = json!({"aud": audiences}).to_string();
        format!("e30.{}.c2ln", BASE64_URL_SAFE_NO_PAD.encode(claims))
    }

    #[tokio::test]
    async fn each_token_costs_one_review() {
        let ours = jwt(&json!(["headgate.dev"]));
        let bad = [
            "nobody's".to_owned(),
            jwt(&json!("headgate.dev.example.com")),
            jwt(&json!(["https://kubernetes.default.svc"])),
            "a.%.c".to_owned(),
        ];
        let (client, asked) = server(ours.clone());
        let authorizer = Authorizer::new(client);
        for _ in 0..3 {
            for path in ["/metrics", "/status"] {
                for token in &bad {
                    let answer = authorizer.authorize(Some(token), path).await;
                    assert_eq!(answer, Err(Refusal::UnknownToken));
                }
            }
            assert_eq!(authorizer.authorize(Some(&ours), "/status").await, Ok(()));
        }
        let asked = asked.lock().unwrap();
        let audiences: Vec<&Value> = asked.iter().map(|spec| &spec["audiences"]).collect();
        let none = &Value::Null;
        assert_eq!(audiences, [none, none, none, none, &json!([AUDIENCE])]);
    }
}
