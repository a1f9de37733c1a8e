//! The operator's own CA, for clusters without a PKI.
//!
//! The CA is in a Secret that the first replica creates. Each replica signs its own certificate
//! with the CA, writes it into files that [`Tls`](headgate_xds::tls::Tls) follows, and renews it
//! long before it expires. So neither people nor the chart create certificates. Replicas can
//! conflict only when they create the Secret, and then the API server accepts only one Secret.
//!
//! An existing Secret with this name is used as it is, even if a chart before 0.2 created it, so
//! certificates of its CA stay valid. Proxies get the CA from ConfigMaps ([`super::publish`]).
//!
//! If the Secret is deleted, it is created again with another CA. If it changes, its new CA is
//! adopted. The new CA is trusted for some minutes before it signs, and the old CA is trusted for
//! as long afterwards. A container that restarts meanwhile finds the old CA in its file. A new Pod
//! trusts only the new one, so restarting the Deployment ends the trust in a stolen CA at once.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, anyhow};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, ObjectMeta, PostParams};
use kube::{Client, Error};
use tracing::{info, warn};

use headgate_deliver::cluster::ObjectKey;
use headgate_deliver::object::FIELD_MANAGER;
use headgate_deliver::object::MANAGED_BY;
use headgate_xds::certificate::{Authority, new_authority};
use headgate_xds::files::replace;
use headgate_xds::tls::TlsFiles;

/// The validity of a new CA.
const CA_LIFE: Duration = Duration::from_secs(3_650 * 86_400);
/// The validity of the operator's certificate.
const LIFE: Duration = Duration::from_secs(30 * 86_400);
/// The mode of the files.
const PRIVATE: u32 = 0o600;
/// The age at which a certificate is renewed.
const RENEW: Duration = Duration::from_secs(10 * 86_400);
/// The interval at which the Secret is checked for a replaced CA.
const CHECK: Duration = Duration::from_secs(60);
/// The time from trusting a new CA to signing with it, and from then to the end of trust in the
/// previous CA. The replicas see the Secret within [`CHECK`], the leader publishes the CA within a
/// minute, and the kubelet mounts it about a minute later.
const OVERLAP: Duration = Duration::from_secs(600);
/// The pause after a failed request to the API server.
const RETRY: Duration = Duration::from_secs(5);

/// The annotation that keeps Helm from deleting the Secret. A release that kept the CA of a chart
/// before 0.2 has a Secret of this name in its manifest. If the Secret was replaced by one that the
/// operator made, the chart leaves it out, and Helm deletes what a manifest no longer has.
const KEEP: (&str, &str) = ("helm.sh/resource-policy", "keep");

/// The data of a Secret.
type Data = BTreeMap<String, ByteString>;

/// The operator's certificate in the files.
#[derive(Debug)]
pub struct Signed {
    /// The data of the Secret with the CA that signed the certificate.
    authority: Data,
    /// The time of the signature on the wall clock, by which the certificate expires. An instant
    /// would ignore steps of that clock, and the time for which the machine is suspended.
    at: SystemTime,
}

/// Signs the operator's certificate with the CA of a Secret.
#[derive(Debug, Clone)]
pub struct OwnCertificate {
    api: Api<Secret>,
    secret: ObjectKey,
    names: Vec<String>,
    files: TlsFiles,
}

impl OwnCertificate {
    /// Returns a signer for these DNS names and IP addresses that writes into `files`.
    pub fn new(client: Client, secret: ObjectKey, names: Vec<String>, files: TlsFiles) -> Self {
        Self {
            api: Api::namespaced(client, &secret.namespace),
            secret,
            names,
            files,
        }
    }

    /// Signs the first certificate as soon as the API server answers.
    ///
    /// # Errors
    /// Returns one line that says why the Secret can't be read or used.
    pub async fn issue(&self) -> anyhow::Result<Signed> {
        let named = || format!("--tls-authority {}", self.secret.name);
        loop {
            let data = match self.authority().await {
                Ok(data) => data,
                Err(error) if is_refusal(&error) => {
                    return Err(anyhow::Error::from(error).context(named()));
                }
                Err(error) => {
                    warn!(
                        "--tls-authority {}: {error}; trying again",
                        self.secret.name
                    );
                    tokio::time::sleep(RETRY).await;
                    continue;
                }
            };
            let authority = signer(&data).with_context(named)?;
            // After a restart during a change of the CA, the file has the former CA, which other
            // replicas still trust and use. `adopt` removes it later.
            let trusted = fs::read_to_string(&self.files.client_ca).unwrap_or_default();
            if !trusted.contains(authority.cert()) {
                self.trust(&(trusted + authority.cert()))
                    .with_context(named)?;
            }
            return self.sign(data).with_context(named);
        }
    }

    /// Renews the certificate, and follows changes of the CA, until cancelled.
    pub async fn follow(self, mut signed: Signed) {
        loop {
            tokio::time::sleep(CHECK).await;
            // The CA signs even while its Secret can't be read.
            let renewed = self.renew(&signed, SystemTime::now());
            let overlap = || tokio::time::sleep(OVERLAP);
            let changed = self.adopt(&signed.authority, overlap).await;
            for outcome in [renewed, changed] {
                match outcome {
                    Ok(Some(new)) => signed = new,
                    Ok(None) => {}
                    Err(error) => {
                        let name = &self.secret.name;
                        warn!("--tls-authority {name}: {error:#}; the previous certificate stays");
                    }
                }
            }
        }
    }

    /// Signs another certificate with the same CA if `signed` has reached the age for renewal, or
    /// was signed at a time that is still to come, because the clock has been set back.
    fn renew(&self, signed: &Signed, now: SystemTime) -> anyhow::Result<Option<Signed>> {
        match now.duration_since(signed.at) {
            Ok(age) if age < RENEW => Ok(None),
            _ => self.sign(signed.authority.clone()).map(Some),
        }
    }

    /// Signs another certificate if the Secret no longer has the CA `authority`. Otherwise removes
    /// the trust in former CAs. `overlap` waits for [`OVERLAP`].
    async fn adopt<W: Future<Output = ()>>(
        &self,
        authority: &Data,
        overlap: impl Fn() -> W,
    ) -> anyhow::Result<Option<Signed>> {
        let data = self.authority().await?;
        if data == *authority {
            let cert = signer(authority)?.cert().to_owned();
            if fs::read_to_string(&self.files.client_ca).ok().as_ref() != Some(&cert) {
                // This replica restarted during a change, or couldn't read the Secret at its end.
                for _ in 0..2 {
                    overlap().await;
                    if self.authority().await? != data {
                        // Other replicas already adopt the next CA.
                        return Ok(None);
                    }
                }
                self.trust(&cert)?;
            }
            return Ok(None);
        }
        // All replicas, proxies and the API server must trust both CAs before the first replica
        // presents a certificate of the new CA, and until all replicas do.
        let new = signer(&data)?;
        let both = signer(authority)?.cert().to_owned() + new.cert();
        self.trust(&both)?;
        info!(
            "the CA has changed; the new one signs in {} s",
            OVERLAP.as_secs()
        );
        overlap().await;
        if self.authority().await? != data {
            // The Secret has changed again, so the next check restarts the overlap.
            self.trust(signer(authority)?.cert())?;
            return Ok(None);
        }
        let signed = self.sign(data)?;
        overlap().await;
        self.trust(new.cert())?;
        Ok(Some(signed))
    }

    /// Returns the Secret's data. Creates the Secret if it doesn't exist.
    async fn authority(&self) -> Result<Data, Error> {
        loop {
            if let Some(secret) = self.api.get_opt(&self.secret.name).await? {
                return Ok(secret.data.unwrap_or_default());
            }
            let secret = self.new_secret().map_err(|e| Error::Service(e.into()))?;
            match self.api.create(&PostParams::default(), &secret).await {
                Ok(secret) => {
                    info!(
                        secret = self.secret.name,
                        "created a CA for the operator's certificate"
                    );
                    return Ok(secret.data.unwrap_or_default());
                }
                // Another replica created the Secret first.
                Err(Error::Api(status)) if status.code == 409 => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn new_secret(&self) -> anyhow::Result<Secret> {
        let pair = new_authority("headgate CA", CA_LIFE, SystemTime::now())?;
        let data = [("tls.crt", pair.cert), ("tls.key", pair.key)];
        let data = data.map(|(key, pem)| (key.to_owned(), ByteString(pem.into_bytes())));
        Ok(Secret {
            metadata: ObjectMeta {
                name: Some(self.secret.name.clone()),
                labels: Some([(MANAGED_BY.0.to_owned(), FIELD_MANAGER.to_owned())].into()),
                annotations: Some([(KEEP.0.to_owned(), KEEP.1.to_owned())].into()),
                ..ObjectMeta::default()
            },
            type_: Some("kubernetes.io/tls".to_owned()),
            data: Some(data.into()),
            ..Secret::default()
        })
    }

    /// Writes the file of trusted CAs, which verify the certificates of the operator and of
    /// proxies.
    fn trust(&self, pem: &str) -> anyhow::Result<()> {
        let path = &self.files.client_ca;
        replace(path, pem.as_bytes(), PRIVATE).with_context(|| path.display().to_string())
    }

    fn sign(&self, authority: Data) -> anyhow::Result<Signed> {
        let at = SystemTime::now();
        let pair = signer(&authority)?.server(&self.names, LIFE, at)?;
        let files = &self.files;
        for (path, content) in [(&files.key, &pair.key), (&files.cert, &pair.cert)] {
            replace(path, content.as_bytes(), PRIVATE)
                .with_context(|| path.display().to_string())?;
        }
        Ok(Signed { authority, at })
    }
}

/// Whether the API server refuses a request, so that repeating it is useless. An overloaded API
/// server answers 429 to requests that it would accept.
fn is_refusal(error: &Error) -> bool {
    matches!(error, Error::Api(status)
        if (400..500).contains(&status.code) && status.code != 429)
}

/// Returns the CA of a Secret.
fn signer(data: &Data) -> anyhow::Result<Authority> {
    let part = |key: &str| {
        let bytes = data.get(key).map(|bytes| bytes.0.as_slice());
        bytes.ok_or_else(|| anyhow!("the Secret has no {key}; a CA's has tls.crt and tls.key"))
    };
    Authority::from_pem(part("tls.crt")?, part("tls.key")?)
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::{Arc, Mutex};

    use http::Method;
    use kube::core::Status;
    use serde_json::{Value, json};

    use super::*;
    use headgate_fakes::api_server;

    /// Returns an API server with this Secret. `None` until a Secret is created.
    fn server(secret: Arc<Mutex<Option<Value>>>) -> Client {
        api_server(move |method, _, body| {
            let mut secret = secret.lock().unwrap();
            if *method == Method::POST {
                *secret = Some(body);
            }
            let missing = || json!({"kind": "Status", "reason": "NotFound", "code": 404});
            let found = secret.clone().map(|secret| (200, secret));
            found.or_else(|| Some((404, missing())))
        })
    }

    /// Returns a signer with files in `folder`.
    fn own_certificate(client: Client, folder: &Path) -> OwnCertificate {
        let files = TlsFiles {
            cert: folder.join("tls.crt"),
            key: folder.join("tls.key"),
            client_ca: folder.join("ca.crt"),
            tokens: true,
        };
        let key = ObjectKey::new("system", "headgate-ca");
        let names = vec!["headgate.system.svc".to_owned()];
        OwnCertificate::new(client, key, names, files)
    }

    #[test]
    fn an_overloaded_api_server_is_asked_again() {
        for (code, refuses) in [(403, true), (422, true), (429, false), (503, false)] {
            let error = Error::Api(Status::failure("", "").with_code(code).boxed());
            assert_eq!(is_refusal(&error), refuses, "{code}");
        }
    }

    #[tokio::test]
    async fn helm_does_not_delete_the_secret() {
        let folder = tempfile::tempdir().unwrap();
        let secret = Arc::new(Mutex::new(None));
        let own = own_certificate(server(Arc::clone(&secret)), folder.path());
        own.issue().await.unwrap();
        let made = secret.lock().unwrap().take().unwrap();
        let annotations = &made["metadata"]["annotations"];
        assert_eq!(*annotations, json!({"helm.sh/resource-policy": "keep"}));
    }

    /// A process counts no time while its machine is suspended, and none when the clock is set.
    #[tokio::test]
    async fn a_certificate_is_renewed_by_the_clock_that_ends_its_validity() {
        let folder = tempfile::tempdir().unwrap();
        let own = own_certificate(server(Arc::default()), folder.path());
        let first = own.issue().await.unwrap();
        let cert = || fs::read_to_string(&own.files.cert).unwrap();
        let day = Duration::from_secs(86_400);
        for (now, is_due) in [
            (first.at, false),
            (first.at + 9 * day, false),
            (first.at + 10 * day, true),
            (first.at + 40 * day, true),
            (first.at - day, true),
        ] {
            let before = cert();
            let renewed = own.renew(&first, now).unwrap();
            assert_eq!((renewed.is_some(), cert() != before), (is_due, is_due));
        }
    }

    #[tokio::test]
    async fn another_ca_is_trusted_before_it_signs_and_the_old_one_until_all_have_changed() {
        let folder = tempfile::tempdir().unwrap();
        let secret = Arc::new(Mutex::new(None));
        let own = own_certificate(server(Arc::clone(&secret)), folder.path());
        let files = own.files.clone();
        let first = own.issue().await.unwrap().authority;
        let state = || [&files.cert, &files.client_ca].map(|f| fs::read_to_string(f).unwrap());
        let states = Mutex::new(vec![state()]);
        let overlap = || {
            states.lock().unwrap().push(state());
            std::future::ready(())
        };
        let same = own.adopt(&first, &overlap).await.unwrap();
        assert!(same.is_none());
        assert_eq!(states.lock().unwrap().len(), 1);

        secret.lock().unwrap().take();
        let second = own.adopt(&first, &overlap).await.unwrap();
        let renewed = second.unwrap().authority;
        let [old, new] =
            [&first, &renewed].map(|data| String::from_utf8(data["tls.crt"].0.clone()).unwrap());
        assert_ne!(old, new);
        let states = states.into_inner().unwrap();
        let [start, trusted, signed] = &states[..] else {
            panic!("{} states", states.len());
        };
        assert_eq!(start[1], old);
        assert_eq!(*trusted, [start[0].clone(), old + &new]);
        assert_eq!(signed[1], trusted[1]);
        assert_ne!(signed[0], trusted[0]);
        assert_eq!(state(), [signed[0].clone(), new.clone()]);

        // The Secret is restored during the overlap, so nothing is signed with the other CA.
        let own_secret = || secret.lock().unwrap().clone();
        let (before, kept) = (state(), own_secret());
        secret.lock().unwrap().take();
        let restored = || {
            secret.lock().unwrap().clone_from(&kept);
            std::future::ready(())
        };
        let adopted = own.adopt(&renewed, restored).await.unwrap();
        assert!(adopted.is_none());
        assert_eq!(state(), before);
    }

    /// Other replicas present a certificate of the former CA and accept those of proxies.
    #[tokio::test]
    async fn a_restart_during_a_change_keeps_the_trust_in_the_former_ca() {
        let folder = tempfile::tempdir().unwrap();
        let secret = Arc::new(Mutex::new(None));
        let own = own_certificate(server(Arc::clone(&secret)), folder.path());
        let trusted = || fs::read_to_string(&own.files.client_ca).unwrap();
        own.issue().await.unwrap();
        let old = trusted();
        secret.lock().unwrap().take();
        let issued = own.issue().await.unwrap().authority;
        let new = String::from_utf8(issued["tls.crt"].0.clone()).unwrap();
        assert_eq!(trusted(), old.clone() + &new);
        own.issue().await.unwrap();
        assert_eq!(trusted(), old.clone() + &new);

        let states = Mutex::new(Vec::new());
        let overlap = || {
            states.lock().unwrap().push(trusted());
            std::future::ready(())
        };
        for _ in 0..2 {
            assert!(own.adopt(&issued, &overlap).await.unwrap().is_none());
            assert_eq!(trusted(), new);
        }
        let both = old + &new;
        assert_eq!(states.into_inner().unwrap(), [both.clone(), both]);
    }

    /// Other replicas sign with the next CA one overlap after its change.
    #[tokio::test]
    async fn another_change_ends_the_wait_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let secret = Arc::new(Mutex::new(None));
        let own = own_certificate(server(Arc::clone(&secret)), folder.path());
        let trusted = || fs::read_to_string(&own.files.client_ca).unwrap();
        own.issue().await.unwrap();
        secret.lock().unwrap().take();
        let issued = own.issue().await.unwrap().authority;
        let both = trusted();
        let waits = Mutex::new(0);
        let overlap = || {
            *waits.lock().unwrap() += 1;
            secret.lock().unwrap().take();
            std::future::ready(())
        };
        assert!(own.adopt(&issued, &overlap).await.unwrap().is_none());
        assert_eq!((waits.into_inner().unwrap(), trusted()), (1, both));
    }
}
