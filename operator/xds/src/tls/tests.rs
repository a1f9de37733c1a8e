use std::fs;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

use super::*;
use crate::metrics::XdsMetrics;

struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

fn authority() -> Authority {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let pem = params.self_signed(&key).unwrap().pem();
    Authority {
        issuer: Issuer::new(params, key),
        pem,
    }
}

impl Authority {
    /// Returns a certificate with its key, valid from and to these seconds from now.
    fn issue(&self, from: i64, to: i64) -> (rcgen::Certificate, String) {
        let mut params = CertificateParams::new(vec!["headgate".to_owned()]).unwrap();
        let at = |seconds: i64| {
            let shift = Duration::from_secs(seconds.unsigned_abs());
            match seconds < 0 {
                true => SystemTime::now() - shift,
                false => SystemTime::now() + shift,
            }
        };
        params.not_before = at(from).into();
        params.not_after = at(to).into();
        let key = KeyPair::generate().unwrap();
        (
            params.signed_by(&key, &self.issuer).unwrap(),
            key.serialize_pem(),
        )
    }
}

/// A folder in the form in which Kubernetes mounts a Secret. The files are links into `..data`,
/// which is a link to a folder.
struct Mount(tempfile::TempDir);

impl Mount {
    fn new(authority: &Authority) -> Self {
        let mount = Self(tempfile::tempdir().unwrap());
        let (cert, key) = authority.issue(-60, 3_600);
        mount.put(&[&cert.pem(), &key, &authority.pem]);
        for name in ["tls.crt", "tls.key", "ca.crt"] {
            std::os::unix::fs::symlink(format!("..data/{name}"), mount.0.path().join(name))
                .unwrap();
        }
        mount
    }

    /// Replaces all files atomically.
    fn put(&self, content: &[&str; 3]) {
        let version = tempfile::Builder::new()
            .prefix("..v")
            .tempdir_in(self.0.path())
            .unwrap()
            .keep();
        for (name, content) in ["tls.crt", "tls.key", "ca.crt"].iter().zip(content) {
            fs::write(version.join(name), content).unwrap();
        }
        let next = self.0.path().join("..data_tmp");
        std::os::unix::fs::symlink(version.file_name().unwrap(), &next).unwrap();
        fs::rename(next, self.0.path().join("..data")).unwrap();
    }

    fn files(&self) -> TlsFiles {
        let path = |name: &str| self.0.path().join(name);
        TlsFiles {
            cert: path("tls.crt"),
            key: path("tls.key"),
            client_ca: path("ca.crt"),
            tokens: false,
        }
    }
}

#[tokio::test]
async fn files_that_are_replaced_are_taken_and_bad_ones_are_not() {
    let (ours, other) = (authority(), authority());
    let mount = Mount::new(&ours);
    let tls = mount.files().load().await.unwrap();
    let mut trust = tls.subscribe();
    let metrics = XdsMetrics::default();
    let task = tokio::spawn({
        let metrics = metrics.clone();
        async move { tls.follow(&metrics).await }
    });
    let old = ours.issue(-60, 60).0.der().clone();
    assert!(
        trust
            .borrow_and_update()
            .admits(std::slice::from_ref(&old), SystemTime::now())
    );

    // The key belongs to another certificate, as when files are replaced one by one.
    let (cert, key) = other.issue(-60, 7_200);
    mount.put(&[&cert.pem(), &ours.issue(0, 60).1, &other.pem]);
    while metrics.tls_reload_failures.get() == 0 {
        tokio::task::yield_now().await;
    }
    assert!(!trust.has_changed().unwrap());

    mount.put(&[&cert.pem(), &key, &other.pem]);
    trust.changed().await.unwrap();
    let now = trust.borrow_and_update().clone();
    assert!(
        !now.admits(&[old], SystemTime::now()),
        "the CA was replaced"
    );
    assert!(now.admits(&[other.issue(-60, 60).0.der().clone()], SystemTime::now()));
    assert_eq!(metrics.tls_reloads.get(), 1);
    drop(trust);
    task.await.unwrap();
}

#[tokio::test]
async fn an_error_says_what_is_wrong_with_a_file() {
    let ours = authority();
    let mount = Mount::new(&ours);
    let (cert, key) = ours.issue(0, 60);
    let cert = cert.pem();
    let (other_key, garbage) = (
        ours.issue(0, 60).1,
        "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
    );
    for (content, says) in [
        ([key.as_str(), &key, &ours.pem], "--tls-cert"),
        ([garbage, &key, &ours.pem], "no X.509 certificate"),
        ([&cert, &cert, &ours.pem], "no private key in PEM"),
        (
            [&cert, &other_key, &ours.pem],
            "can't be used with --tls-key",
        ),
        ([&cert, &key, ""], "--client-ca"),
        ([&cert, &key, garbage], "no X.509 certificate"),
    ] {
        mount.put(&content);
        let error = mount.files().load().await.err().unwrap().to_string();
        assert!(error.contains(says) && !error.contains('\n'), "{error}");
    }
    fs::remove_file(mount.files().key).unwrap();
    let error = mount.files().load().await.err().unwrap().to_string();
    assert!(
        error.starts_with("--tls-key ") && error.contains("No such file"),
        "{error}"
    );
}

#[test]
fn a_warning_precedes_the_expiry() {
    let ours = authority();
    let life = 6_000;
    let files = TlsFiles {
        cert: "c".into(),
        key: "k".into(),
        client_ca: "a".into(),
        tokens: false,
    };
    let (cert, key) = ours.issue(0, life);
    let pem = Pem {
        cert: cert.pem().into(),
        key: key.into(),
        client_ca: ours.pem.clone().into(),
    };
    let trust = files.trust(&pem).unwrap();
    let age = |seconds| trust.age(SystemTime::now() + Duration::from_secs(seconds));
    assert_eq!(age(60), Age::Fresh);
    assert_eq!(age(5_100), Age::Old);
    assert_eq!(age(6_001), Age::Expired);
    let own = ours.issue(0, 60).0.der().clone();
    assert!(trust.admits(std::slice::from_ref(&own), SystemTime::now()));
    assert!(!trust.admits(&[own], SystemTime::now() + Duration::from_secs(120)));
    assert!(!trust.admits(&[], SystemTime::now()));
}
