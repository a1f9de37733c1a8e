//! TokenReviews, by which the API server returns the user of a bearer token. The users are proxies
//! ([`tokens`]), and clients of the admin address ([`authorize`]).

pub mod authorize;
mod kept;
pub mod tokens;
mod turns;

use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, TokenReviewStatus};
use kube::api::{Api, PostParams};
use kube::{Client, Error};
use serde_json::Value;

/// Returns the token of an `Authorization` header.
pub fn bearer(header: &str) -> Option<&str> {
    let (scheme, token) = header.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

/// Returns the API server's review of `token` for `audience`. Without an audience, the review is
/// for the API server itself.
///
/// # Errors
/// The API server didn't answer, or refused this client.
async fn review(
    client: &Client,
    token: &str,
    audience: Option<&str>,
) -> Result<TokenReviewStatus, Error> {
    let review = TokenReview {
        spec: TokenReviewSpec {
            token: token.to_owned(),
            audiences: audience.map(|audience| vec![audience.to_owned()]),
        },
        ..TokenReview::default()
    };
    let reviews: Api<TokenReview> = Api::all(client.clone());
    let reviewed = reviews.create(&PostParams::default(), &review).await?;
    Ok(reviewed.status.unwrap_or_default())
}

/// Whether a token claims `audience`. Only the API server can verify that.
fn says_audience(token: &str, audience: &str) -> bool {
    let is = |said: &Value| said == audience;
    claims(token).is_some_and(|claims| {
        let audiences = &claims["aud"];
        is(audiences) || audiences.as_array().is_some_and(|all| all.iter().any(is))
    })
}

/// Returns the namespace of the service account that a token claims. Only the API server can verify
/// that.
fn claimed_namespace(token: &str) -> Option<String> {
    let claims = claims(token)?;
    claims["kubernetes.io"]["namespace"]
        .as_str()
        .map(str::to_owned)
}

/// Returns the remaining validity of a token at `now`, by its claims.
fn life(token: &str, now: SystemTime) -> Option<Duration> {
    let end = Duration::from_secs(claims(token)?["exp"].as_u64()?);
    let now = now.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    Some(end.saturating_sub(now))
}

/// Returns the unverified claims of a JWT.
fn claims(token: &str) -> Option<Value> {
    let claims = BASE64_URL_SAFE_NO_PAD.decode(token.split('.').nth(1)?);
    serde_json::from_slice(&claims.ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_bearer_has_a_token() {
        assert_eq!(bearer("Bearer a.b.c"), Some("a.b.c"));
        assert_eq!(bearer("bearer  a "), Some("a"));
        for none in ["Basic a", "Bearer ", "Bearer", ""] {
            assert_eq!(bearer(none), None, "{none:?}");
        }
    }

    #[test]
    fn a_token_says_when_it_ends() {
        let token = format!(
            "e30.{}.c2ln",
            BASE64_URL_SAFE_NO_PAD.encode(r#"{"exp":90}"#)
        );
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        assert_eq!(life(&token, at(30)), Some(Duration::from_secs(60)));
        assert_eq!(life(&token, at(100)), Some(Duration::ZERO));
        for none in ["", "a.b.c", "e30.e30.c2ln"] {
            assert_eq!(life(none, at(0)), None, "{none:?}");
        }
    }
}
