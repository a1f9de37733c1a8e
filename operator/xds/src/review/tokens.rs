//! Proxies prove their namespace by service account tokens with audience [`AUDIENCE`].
//!
//! The kubelet writes such a token into a projected volume of a Pod and renews it. So identities
//! aren't issued manually, and tokens are short-lived. A TokenReview returns the token's account.
//! It also checks the Pod, so the API server refuses the token of a deleted Pod.
//!
//! An answer is cached for [`KEEP`], the duration of the API server's own cache of webhook answers.
//! While the API server is unavailable, an older answer is used until the token expires, so that a
//! proxy that reconnects meanwhile keeps its policies.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use k8s_openapi::api::authentication::v1::TokenReviewStatus;
use kube::Client;
use tokio::sync::OnceCell;
use tokio::time::timeout;

use super::kept::{Kept, Key, key};
use super::turns::Turns;
use super::{life, review};
use crate::in_use::InUse;

/// The audience of proxies' tokens.
pub const AUDIENCE: &str = "headgate";
/// The time for which a review is cached.
const KEEP: Duration = Duration::from_secs(120);
/// The time for which a refusal is cached.
const KEEP_REFUSED: Duration = Duration::from_secs(10);
/// The largest number of accepted tokens in the cache. It suffices for all proxies' tokens of the
/// last hours.
const MAX_KNOWN: usize = 32_768;
/// The largest number of accepted tokens of one namespace, whose users can create any number of
/// tokens.
const MAX_KNOWN_OF_NAMESPACE: usize = MAX_KNOWN / 2;
/// The largest number of refused tokens in the cache.
const MAX_REFUSED: usize = 1_024;
/// The timeout of a review, and of the preceding wait for a turn.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The longest token, in bytes.
const MAX_BYTES: usize = 8_192;
/// The prefix of service accounts' user names.
const PREFIX: &str = "system:serviceaccount:";

/// A service account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// The namespace of the account.
    pub namespace: String,
    /// The name of the account.
    pub name: String,
}

/// The reason why a token proves no identity, in one line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The token isn't a valid service account token for [`AUDIENCE`].
    #[error(
        "{0}; a proxy needs a token of its service account for audience {audience:?} \
         (serviceAccountToken in a projected volume, as headgate inject adds it)",
        audience = AUDIENCE
    )]
    Invalid(String),
    /// The API server doesn't answer.
    #[error("the API server can't review the token: {0}; the proxy tries again")]
    Unavailable(String),
}

/// An account, and the time of the review that returned it.
type Known = (Account, Instant);
/// A review in progress. It is cancelled when the last stream that waits for it ends.
type Running = OnceCell<Result<Account, Refusal>>;

/// Reviews tokens and returns their accounts, from the API server or from a cache.
#[derive(Clone)]
pub struct ProxyTokens {
    client: Client,
    known: Arc<Kept<Known>>,
    refused: Arc<Kept<Refusal>>,
    /// The reviews in progress, by token. Concurrent streams of a proxy share one.
    running: Arc<InUse<Key, Running>>,
    turns: Arc<Turns>,
}

impl ProxyTokens {
    /// Returns a reviewer that sends its reviews through `client`.
    pub fn new(client: Client) -> Self {
        Self {
            client,
            known: Arc::new(Kept::new(MAX_KNOWN, MAX_KNOWN_OF_NAMESPACE)),
            refused: Arc::new(Kept::new(MAX_REFUSED, MAX_REFUSED)),
            running: Arc::default(),
            turns: Arc::default(),
        }
    }

    /// Returns the account of `token`. `address` is that of the client.
    ///
    /// # Errors
    /// The token is invalid, or the API server is unavailable and has never reviewed this token.
    pub async fn account(&self, token: &str, address: IpAddr) -> Result<Account, Refusal> {
        if token.len() > MAX_BYTES {
            let why = format!("the token has more than {MAX_BYTES} bytes");
            return Err(Refusal::Invalid(why));
        }
        let key = key(token);
        if let Some(account) = self.fresh(&key) {
            return Ok(account);
        }
        // A completed review isn't shared any more.
        let in_progress = |running: &Running| !running.initialized();
        let running = self.running.get_if(key, in_progress, Running::new);
        let reviewed = running.get_or_init(async || {
            // Another review of this token may have ended meanwhile.
            if let Some(account) = self.fresh(&key) {
                return Ok(account);
            }
            if let Some(refusal) = self.refused.get(&key, Instant::now()) {
                return Err(refusal);
            }
            let turn = timeout(TIMEOUT, self.turns.take(address, token)).await;
            let _turn = turn.map_err(|_| late())?;
            let reviewed = timeout(TIMEOUT, self.review(token)).await;
            let reviewed = reviewed.unwrap_or_else(|_| Err(late()));
            self.keep(key, token, &reviewed);
            reviewed
        });
        let reviewed = reviewed.await.clone();
        match (reviewed, self.known.get(&key, Instant::now())) {
            (Err(Refusal::Unavailable(_)), Some((account, _))) => Ok(account),
            (reviewed, _) => reviewed,
        }
    }

    /// Returns the account of a token that was reviewed within [`KEEP`].
    fn fresh(&self, key: &Key) -> Option<Account> {
        let known = self.known.get(key, Instant::now());
        let fresh = known.filter(|(_, at)| at.elapsed() < KEEP);
        fresh.map(|(account, _)| account)
    }

    fn keep(&self, key: Key, token: &str, reviewed: &Result<Account, Refusal>) {
        let now = Instant::now();
        match reviewed {
            Ok(account) => {
                let life = life(token, SystemTime::now()).unwrap_or(KEEP);
                let (owner, known) = (&account.namespace, (account.clone(), now));
                self.known.keep(key, owner, known, now, life);
            }
            Err(refusal @ Refusal::Invalid(_)) => {
                let refusal = refusal.clone();
                self.refused.keep(key, "", refusal, now, KEEP_REFUSED);
            }
            Err(Refusal::Unavailable(_)) => {}
        }
    }

    async fn review(&self, token: &str) -> Result<Account, Refusal> {
        let reviewed = review(&self.client, token, Some(AUDIENCE)).await;
        reviewed.map_or_else(|e| Err(Refusal::Unavailable(e.to_string())), account)
    }
}

fn late() -> Refusal {
    Refusal::Unavailable(format!("no answer within {} s", TIMEOUT.as_secs()))
}

fn account(status: TokenReviewStatus) -> Result<Account, Refusal> {
    let invalid = |why: &str| Err(Refusal::Invalid(why.to_owned()));
    if status.authenticated != Some(true) {
        let why = status.error.filter(|error| !error.is_empty());
        let why = why.map_or_else(String::new, |why| format!(" ({why})"));
        return invalid(&format!("the API server doesn't accept the token{why}"));
    }
    // An authenticator that doesn't support audiences accepts tokens for the API server itself.
    let is_for_us = |audiences: Vec<String>| audiences.iter().any(|a| a == AUDIENCE);
    if !status.audiences.is_some_and(is_for_us) {
        return invalid("the token is for the API server");
    }
    let user = status.user.and_then(|user| user.username);
    let user = user.unwrap_or_default();
    match user.strip_prefix(PREFIX).and_then(|of| of.split_once(':')) {
        Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() => Ok(Account {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }),
        _ => invalid(&format!(
            "the token is of {user}, which is no service account"
        )),
    }
}

#[cfg(test)]
mod tests;
