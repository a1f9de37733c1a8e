//! The remote end of a connection, and the identity that it may claim.
//!
//! A proxy's metadata is only a claim. Over TLS, a certificate (SPIFFE, as issued by Istio) or a
//! service account token proves a namespace. A claim outside of that namespace is refused, so that
//! a compromised workload can't read another team's policies or appear in their status.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::SystemTime;

use rustls::pki_types::CertificateDer;
use tokio::sync::watch;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::certificate;
use crate::node::{Identity, clip};
use crate::quota::Slot;
use crate::review::tokens::{AUDIENCE, ProxyTokens, Refusal};
use headgate_api::plan::{NAMESPACE_METADATA, TARGET_METADATA};

/// The longest SPIFFE id (the specification's bound), in bytes.
const MAX_SPIFFE: usize = 2_048;
/// The trust domain in the SPIFFE ids of this cluster's service accounts.
const TRUST_DOMAIN: &str = "cluster.local";

/// The remote end of a connection.
#[derive(Debug, Clone)]
pub struct Peer {
    /// The address of the peer.
    pub address: SocketAddr,
    /// The identity that the peer's certificate or token proves. `None` without TLS. `Err` is the
    /// reason why the peer proves no identity, in one line.
    pub proven: Option<Arc<Result<Spiffe, String>>>,
    /// The number of the peer's open streams.
    pub(crate) streams: Arc<watch::Sender<usize>>,
    /// The quota slot that counts the connection for its tenant, once the tenant is known.
    pub(crate) connection: Arc<OnceLock<Slot>>,
    /// The quota slots of responses on ended streams that the peer may not have read.
    pub(crate) unread: Arc<Mutex<Vec<Slot>>>,
}

/// A workload's identity, `spiffe://TRUST-DOMAIN/ns/NAMESPACE/sa/ACCOUNT`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spiffe {
    /// The whole id.
    pub id: String,
    /// The namespace in the id.
    pub namespace: String,
    /// The first and the last moment at which the certificate is valid. `None` for a token, which
    /// the kubelet renews.
    pub validity: Option<(SystemTime, SystemTime)>,
}

/// An open stream of a peer. Dropping it ends the count.
#[derive(Debug)]
pub(crate) struct OpenStream(Arc<watch::Sender<usize>>);

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.send_modify(|open| *open -= 1);
    }
}

impl Spiffe {
    /// Returns the SPIFFE id in a certificate.
    ///
    /// # Errors
    /// Returns one line that says that the certificate has no id, several ids, or an id without a
    /// namespace.
    pub fn of_certificate(der: &[u8]) -> Result<Self, String> {
        const DO: &str =
            "issue one for spiffe://TRUST-DOMAIN/ns/NAMESPACE/sa/ACCOUNT, or present a token";
        let (_, certificate) = X509Certificate::from_der(der)
            .map_err(|e| format!("the client certificate can't be read: {e}; {DO}"))?;
        let names = certificate
            .subject_alternative_name()
            .ok()
            .flatten()
            .map(|e| e.value.general_names.as_slice())
            .unwrap_or_default();
        let mut uris = names.iter().filter_map(|name| match name {
            GeneralName::URI(uri) => Some(*uri),
            _ => None,
        });
        let validity = certificate::validity(&certificate);
        match (uris.next(), uris.next()) {
            (Some(only), None) => Self::parse(only, validity).ok_or_else(|| {
                format!(
                    "the client certificate's URI {:?} names no namespace; {DO}",
                    clip(only, 256)
                )
            }),
            (None, _) => Err(format!(
                "the client certificate has no URI (SPIFFE id) with its namespace; {DO}"
            )),
            (Some(_), Some(_)) => Err(format!(
                "the client certificate has several URIs; it must have one, a SPIFFE id; {DO}"
            )),
        }
    }

    fn parse(uri: &str, validity: (SystemTime, SystemTime)) -> Option<Self> {
        if uri.len() > MAX_SPIFFE {
            return None;
        }
        let mut parts = uri.strip_prefix("spiffe://")?.split('/');
        let (domain, ns, namespace) = (parts.next()?, parts.next()?, parts.next()?);
        let (sa, account) = (parts.next()?, parts.next()?);
        let right = ns == "ns" && sa == "sa" && parts.next().is_none();
        let full = ![domain, namespace, account].iter().any(|s| s.is_empty());
        (right && full).then(|| Self {
            id: uri.to_owned(),
            namespace: namespace.to_owned(),
            validity: Some(validity),
        })
    }
}

impl Peer {
    /// Returns the peer at `address`. Over TLS, `chain` is the certificate chain that it presented.
    pub(crate) fn new(address: SocketAddr, chain: Option<&[CertificateDer<'_>]>) -> Self {
        let proven = chain.map(|chain| match chain.first() {
            Some(own) => Spiffe::of_certificate(own),
            None => Err(format!(
                "the client presents neither a token for audience {AUDIENCE:?} nor a certificate"
            )),
        });
        Self {
            address,
            proven: proven.map(Arc::new),
            streams: Arc::default(),
            connection: Arc::default(),
            unread: Arc::default(),
        }
    }

    /// Keeps the quota slot of a response until the connection ends.
    pub(crate) fn keep(&self, unread: Slot) {
        let mut all = self.unread.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(unread);
    }

    /// Records that a stream began.
    pub(crate) fn open_stream(&self) -> OpenStream {
        self.streams.send_modify(|open| *open += 1);
        OpenStream(Arc::clone(&self.streams))
    }

    /// Returns the peer. If its certificate proves no identity, it gets the identity that `token`
    /// proves.
    ///
    /// # Errors
    /// The token isn't valid, or the API server doesn't answer.
    pub(crate) async fn with_token(
        mut self,
        token: Option<&str>,
        tokens: Option<&ProxyTokens>,
    ) -> Result<Self, Refusal> {
        let needs_token = self.proven.as_deref().is_some_and(Result::is_err);
        if let (true, Some(token), Some(tokens)) = (needs_token, token, tokens) {
            let account = tokens.account(token, self.address.ip()).await?;
            let (namespace, name) = (account.namespace, account.name);
            self.proven = Some(Arc::new(Ok(Spiffe {
                id: format!("spiffe://{TRUST_DOMAIN}/ns/{namespace}/sa/{name}"),
                namespace,
                validity: None,
            })));
        }
        Ok(self)
    }

    /// Checks that the certificate or token covers all claims of `identity`, and adds the proven
    /// facts. Without TLS, claims are trusted.
    ///
    /// # Errors
    /// Returns one line that says which claim isn't covered, with the remedy.
    pub fn authorize(&self, identity: &mut Identity) -> Result<(), String> {
        let Some(proven) = &self.proven else {
            return Ok(());
        };
        let proven = proven.as_ref().as_ref().map_err(Clone::clone)?;
        let claimed = [
            (NAMESPACE_METADATA, identity.namespace.as_deref()),
            (
                TARGET_METADATA,
                identity.target.as_ref().map(|t| t.namespace.as_str()),
            ),
        ];
        for (key, namespace) in claimed {
            if let Some(namespace) = namespace.filter(|n| *n != proven.namespace) {
                return Err(format!(
                    "node metadata {key:?} is of namespace {namespace:?}, but the client's \
                     certificate or token is of {:?} ({}); correct the metadata, or give the proxy \
                     an identity of namespace {namespace:?}",
                    proven.namespace, proven.id
                ));
            }
        }
        identity.namespace = Some(proven.namespace.clone());
        identity.certificate = Some(proven.id.clone());
        identity.validity = proven.validity;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, SanType};

    use super::*;

    fn certificate(uris: &[&str]) -> Vec<u8> {
        let mut params = CertificateParams::new(vec!["proxy.example".to_owned()]).unwrap();
        let uri = |u: &&str| SanType::URI((*u).try_into().unwrap());
        params.subject_alt_names.extend(uris.iter().map(uri));
        let key = KeyPair::generate().unwrap();
        params.self_signed(&key).unwrap().der().to_vec()
    }

    fn peer(namespace: &str) -> Peer {
        let uri = format!("spiffe://cluster.local/ns/{namespace}/sa/default");
        Peer {
            address: ([127, 0, 0, 1], 1).into(),
            proven: Some(Arc::new(Spiffe::of_certificate(&certificate(&[&uri])))),
            streams: Arc::default(),
            connection: Arc::default(),
            unread: Arc::default(),
        }
    }

    #[test]
    fn the_namespace_is_read_from_the_only_uri() {
        let found = Spiffe::of_certificate(&certificate(&["spiffe://td/ns/shop/sa/web"])).unwrap();
        assert_eq!(found.namespace, "shop");
        for (uris, says) in [
            (&[][..], "has no URI"),
            (
                &["spiffe://td/ns/a/sa/b", "spiffe://td/ns/c/sa/d"][..],
                "several URIs",
            ),
            (&["https://td/ns/a/sa/b"][..], "names no namespace"),
            (&["spiffe://td/ns/a"][..], "names no namespace"),
            (&["spiffe://td/ns//sa/b"][..], "names no namespace"),
            (&["spiffe://td/ns/a/sa/b/c"][..], "names no namespace"),
        ] {
            let why = Spiffe::of_certificate(&certificate(uris)).unwrap_err();
            assert!(
                why.contains(says) && why.contains("or present a token"),
                "{uris:?}: {why}"
            );
        }
        assert!(Spiffe::of_certificate(b"nonsense").is_err());
    }

    #[test]
    fn no_claim_leaves_the_certificates_namespace() {
        let claims = |namespace: Option<&str>, target: Option<&str>| Identity {
            namespace: namespace.map(str::to_owned),
            target: target.map(|t| t.parse().unwrap()),
            ..Identity::default()
        };
        let check =
            |mut identity: Identity| peer("shop").authorize(&mut identity).map(|()| identity);
        let silent = check(claims(None, None)).unwrap();
        assert_eq!(silent.namespace.as_deref(), Some("shop"));
        assert!(silent.certificate.unwrap().ends_with("/ns/shop/sa/default"));
        assert!(check(claims(Some("shop"), Some("Service/shop/web"))).is_ok());
        for wrong in [
            claims(Some("bank"), None),
            claims(None, Some("Service/bank/web")),
            claims(Some("shop"), Some("Service/bank/web")),
        ] {
            let why = check(wrong).unwrap_err();
            assert!(
                why.contains("\"bank\"") && why.contains("correct the metadata"),
                "{why}"
            );
        }
    }

    #[test]
    fn without_tls_claims_are_believed() {
        let mut plain = peer("shop");
        plain.proven = None;
        let mut identity = Identity {
            namespace: Some("bank".into()),
            ..Identity::default()
        };
        plain.authorize(&mut identity).unwrap();
        assert_eq!(identity.certificate, None);
    }
}
