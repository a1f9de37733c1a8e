//! Authorization of requests for status and metrics, delegated to the API server.
//!
//! A TokenReview returns the user of a request's bearer token. A SubjectAccessReview (non-resource
//! URL, verb `get`) then decides whether this user may get the requested path. So RBAC grants
//! access to `/metrics` and `/status` in the same way as to the API server's own paths.
//!
//! Clients should use a token with audience [`AUDIENCE`], because the connection is plain HTTP, and
//! an intercepted token of this audience is useless elsewhere. A token for the API server is
//! accepted too, because Prometheus has such a token. The audience to review is read from the token
//! itself, so each token costs only one TokenReview.
//!
//! Permissions are cached for [`KEEP`], so a deleted RoleBinding takes effect within that time. A
//! token that the API server doesn't accept is cached for [`KEEP_REFUSED`], so a client with an old
//! token doesn't cost one review per request. A missing permission isn't cached, so a new
//! RoleBinding takes effect at once.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::authentication::v1::UserInfo;
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::api::{Api, PostParams};
use kube::{Client, Error};
use tokio::time::timeout;

use super::kept::{Kept, key};
use super::turns::Turns;
use super::{review, says_audience};

/// The audience of tokens for operators only.
pub const AUDIENCE: &str = "headgate.dev";
/// The header for a token sent through the API server's proxy, which strips `Authorization`.
pub const TOKEN_HEADER: &str = "x-headgate-token";
/// The time for which a permission is cached.
const KEEP: Duration = Duration::from_secs(60);
/// The time for which the refusal of a token is cached.
const KEEP_REFUSED: Duration = Duration::from_secs(10);
/// The largest number of cached entries of each kind. Further requests are reviewed every time.
const MAX_KEPT: usize = 256;
/// The timeout of a review.
pub const TIMEOUT: Duration = Duration::from_secs(10);

/// Authorizes requests by the API server's reviews, with a cache.
#[derive(Clone)]
pub struct Authorizer {
    client: Client,
    permissions: Arc<Kept<()>>,
    refused: Arc<Kept<()>>,
    turns: Arc<Turns>,
}

/// The reason why a request is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The request has no token.
    #[error("a token is needed: Authorization: Bearer TOKEN")]
    NoToken,
    /// The API server doesn't accept the token.
    #[error(
        "the API server doesn't accept the token; it may have expired, or be for another audience"
    )]
    UnknownToken,
    /// The user has no permission.
    #[error(
        "{user} may not get {path}; a ClusterRole with this path in nonResourceURLs permits it"
    )]
    Forbidden {
        /// Name of the user.
        user: String,
        /// The path.
        path: String,
    },
    /// The API server didn't answer.
    #[error("the API server can't authorize this request: {0}")]
    Unavailable(String),
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::Unavailable(error.to_string())
    }
}

impl Authorizer {
    /// Returns an authorizer that sends its reviews through `client`.
    pub fn new(client: Client) -> Self {
        Self {
            client,
            permissions: Arc::new(Kept::new(MAX_KEPT, MAX_KEPT)),
            refused: Arc::new(Kept::new(MAX_KEPT, MAX_KEPT)),
            turns: Arc::default(),
        }
    }

    /// Checks whether the user of `token` may get `path`. `address` is that of the client.
    ///
    /// # Errors
    /// The user isn't permitted, or the API server didn't answer.
    pub async fn authorize(
        &self,
        token: Option<&str>,
        address: IpAddr,
        path: &str,
    ) -> Result<(), Refusal> {
        let token = token.ok_or(Refusal::NoToken)?;
        let (of_token, of_both) = (key(token), key(&format!("{token}\n{path}")));
        if self.permissions.get(&of_both, Instant::now()).is_some() {
            return Ok(());
        }
        let review = async {
            let _turn = self.turns.take(address, token).await;
            // The cache is checked again after the wait for a turn, so concurrent requests with one
            // token share a refusal.
            if self.refused.get(&of_token, Instant::now()).is_some() {
                return Err(Refusal::UnknownToken);
            }
            let reviewed = self.review(token, path).await;
            if reviewed == Err(Refusal::UnknownToken) {
                self.refused
                    .keep(of_token, "", (), Instant::now(), KEEP_REFUSED);
            }
            reviewed
        };
        let Ok(reviewed) = timeout(TIMEOUT, review).await else {
            let why = format!("no answer within {} s", TIMEOUT.as_secs());
            return Err(Refusal::Unavailable(why));
        };
        reviewed?;
        self.permissions.keep(of_both, "", (), Instant::now(), KEEP);
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

    /// Returns the user of `token`. `None` if the API server doesn't accept the token.
    async fn user(&self, token: &str) -> Result<Option<UserInfo>, Error> {
        // Without an audience, the review is for the API server itself. A token without a readable
        // audience, such as one that isn't a JWT, can only be for the API server.
        let audience = says_audience(token, AUDIENCE).then_some(AUDIENCE);
        let status = review(&self.client, token, audience).await?;
        let is_known = status.authenticated == Some(true);
        Ok(status.user.filter(|_| is_known))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use base64::Engine as _;
    use base64::prelude::BASE64_URL_SAFE_NO_PAD;
    use serde_json::{Value, json};

    use super::*;
    use headgate_fakes::api_server;

    const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    /// Returns an API server that accepts no token but `good`, and the tokens and audiences of the
    /// reviews that it received.
    fn server(good: String) -> (Client, Arc<Mutex<Vec<Value>>>) {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let known = Arc::clone(&asked);
        let client = api_server(move |_, uri, mut review| {
            let is_about_tokens = uri.path().ends_with("/tokenreviews");
            let is_good = review["spec"]["token"] == good.as_str();
            review["status"] = match is_about_tokens {
                true => json!({"authenticated": is_good, "user": {"username": "u"}}),
                false => json!({"allowed": true}),
            };
            if is_about_tokens {
                known.lock().unwrap().push(review["spec"].clone());
            }
            Some((200, review))
        });
        (client, asked)
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
                    let answer = authorizer.authorize(Some(token), CLIENT, path).await;
                    assert_eq!(answer, Err(Refusal::UnknownToken));
                }
            }
            let answer = authorizer.authorize(Some(&ours), CLIENT, "/status").await;
            assert_eq!(answer, Ok(()));
        }
        let asked = asked.lock().unwrap();
        let audiences: Vec<&Value> = asked.iter().map(|spec| &spec["audiences"]).collect();
        let none = &Value::Null;
        assert_eq!(audiences, [none, none, none, none, &json!([AUDIENCE])]);
    }
}
