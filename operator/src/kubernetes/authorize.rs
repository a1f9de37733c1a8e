//! Who may read what an operator shows: the API server decides, by its own rules.
//!
//! The bearer token of a request goes to the API server (TokenReview), and then whose it is together with the path that
//! was asked for (SubjectAccessReview of a non-resource URL, verb `get`). So RBAC grants `/metrics` and `/status` as it
//! grants the API server's own paths.
//!
//! A token may be for [`AUDIENCE`]. The connection is plain HTTP, and such a token opens nothing else for whoever sees
//! it there. One for the API server is accepted too, because that is what Prometheus has.
//!
//! Only permissions are kept. So a token that isn't accepted takes no memory, and a new RoleBinding counts at once; one
//! that is deleted counts within [`KEEP`].

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::api::{Api, PostParams};
use kube::{Client, Error};
use sha2::{Digest as _, Sha256};
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// Audience of tokens that are for operators only.
pub const AUDIENCE: &str = "headgate.dev";
/// Header for a token that comes by way of the API server's proxy, which keeps `Authorization` to itself.
pub const TOKEN_HEADER: &str = "x-headgate-token";
/// How long a permission counts.
const KEEP: Duration = Duration::from_secs(60);
/// Permissions that are kept at once; those beyond are asked for again.
const MAX_KEPT: usize = 256;
/// Reviews that the API server is asked for at once; more wait.
const MAX_REVIEWS: usize = 8;
/// Time for a review.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Asks the API server who may read.
#[derive(Clone)]
pub struct Authorizer {
    client: Client,
    permissions: Arc<Mutex<Permissions>>,
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
            permissions: Arc::default(),
            reviews: Arc::new(Semaphore::new(MAX_REVIEWS)),
        }
    }

    /// Whether whoever has `token` may get `path`.
    ///
    /// # Errors
    /// No, or nobody can tell.
    pub async fn authorize(&self, token: Option<&str>, path: &str) -> Result<(), Refusal> {
        let token = token.ok_or(Refusal::NoToken)?;
        let key = Sha256::digest(format!("{token}\n{path}")).into();
        let permissions = || {
            self.permissions
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
        };
        if permissions().has(&key, Instant::now()) {
            return Ok(());
        }
        let review = async {
            let _permit = self.reviews.acquire().await;
            self.review(token, path).await
        };
        let Ok(reviewed) = timeout(TIMEOUT, review).await else {
            let why = format!("no answer within {} s", TIMEOUT.as_secs());
            return Err(Refusal::Unavailable(why));
        };
        reviewed?;
        permissions().keep(key, Instant::now());
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

    /// Whose `token` is.
    async fn user(&self, token: &str) -> Result<Option<UserInfo>, Error> {
        let reviews: Api<TokenReview> = Api::all(self.client.clone());
        // None is the API server itself.
        for audiences in [Some(vec![AUDIENCE.to_owned()]), None] {
            let spec = TokenReviewSpec {
                token: token.to_owned(),
                audiences,
            };
            let review = TokenReview {
                spec,
                ..TokenReview::default()
            };
            let reviewed = reviews.create(&PostParams::default(), &review).await?;
            let status = reviewed.status.unwrap_or_default();
            if status.authenticated == Some(true) {
                return Ok(status.user);
            }
        }
        Ok(None)
    }
}

/// SHA-256 of a token and a path: the tokens themselves are not kept.
type Key = [u8; 32];

/// What was permitted, and until when that counts.
#[derive(Debug, Default)]
struct Permissions(HashMap<Key, Instant>);

impl Permissions {
    fn has(&self, key: &Key, now: Instant) -> bool {
        self.0.get(key).is_some_and(|until| now < *until)
    }

    fn keep(&mut self, key: Key, now: Instant) {
        if self.0.len() >= MAX_KEPT {
            self.0.retain(|_, until| now < *until);
        }
        if self.0.len() < MAX_KEPT {
            self.0.insert(key, now + KEEP);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: usize) -> Key {
        Sha256::digest(number.to_le_bytes()).into()
    }

    #[test]
    fn a_permission_counts_for_a_while() {
        let (mut permissions, now) = (Permissions::default(), Instant::now());
        permissions.keep(key(1), now);
        assert!(permissions.has(&key(1), now + KEEP - Duration::from_secs(1)));
        assert!(!permissions.has(&key(1), now + KEEP));
        assert!(!permissions.has(&key(2), now));
    }

    #[test]
    fn permissions_are_bounded_and_those_that_ended_make_room() {
        let (mut permissions, now) = (Permissions::default(), Instant::now());
        for number in 0..=MAX_KEPT {
            permissions.keep(key(number), now);
        }
        assert_eq!(permissions.0.len(), MAX_KEPT);
        assert!(!permissions.has(&key(MAX_KEPT), now));
        permissions.keep(key(MAX_KEPT), now + KEEP);
        assert!(permissions.has(&key(MAX_KEPT), now + KEEP));
        assert_eq!(permissions.0.len(), 1);
    }
}
