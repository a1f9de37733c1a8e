use rustls::pki_types::PrivatePkcs8KeyDer;

use super::*;
use crate::xds::peer::Spiffe;

const DAY: Duration = Duration::from_secs(86_400);
const WEB: Workload<'_> = Workload {
    trust_domain: "cluster.local",
    namespace: "shop",
    service_account: "default",
};

fn authority() -> (Pair, Authority) {
    let pair = new_authority("Headgate CA", DAY * 100, SystemTime::now()).unwrap();
    let authority = Authority::from_pem(pair.cert.as_bytes(), pair.key.as_bytes()).unwrap();
    (pair, authority)
}

fn der(pair: &Pair) -> Vec<u8> {
    CertificateDer::from_pem_slice(pair.cert.as_bytes())
        .unwrap()
        .to_vec()
}

/// OpenSSL's rules are those of BoringSSL, and with it Envoy.
#[test]
fn issued_certificates_are_signed_and_say_what_they_are_for() {
    let (ca, authority) = authority();
    assert_eq!(authority.cert(), ca.cert);
    let now = SystemTime::now();
    let proxy = authority.proxy(&WEB, DAY, now).unwrap();
    assert_eq!(
        Spiffe::of_certificate(&der(&proxy)).unwrap().namespace,
        "shop"
    );
    let names = ["headgate.headgate-system.svc".to_owned()];
    let server = authority
        .server(&names, &["10.0.0.1".parse().unwrap()], DAY, now)
        .unwrap();
    let ca_der = der(&ca);
    let (_, ca) = X509Certificate::from_der(&ca_der).unwrap();
    for (pair, is_client) in [(&proxy, true), (&server, false)] {
        let der = der(pair);
        let (_, cert) = X509Certificate::from_der(&der).unwrap();
        cert.verify_signature(Some(ca.public_key())).unwrap();
        let usage = cert.extended_key_usage().unwrap().unwrap().value;
        assert_eq!(
            (usage.client_auth, usage.server_auth),
            (is_client, !is_client)
        );
        assert_eq!(cert.issuer(), ca.subject());
        assert!(!cert.is_ca());
    }
}

#[test]
fn nothing_outlives_its_ca() {
    let (ca, authority) = authority();
    let now = SystemTime::now();
    let short = authority.proxy(&WEB, DAY, now).unwrap();
    assert_eq!(short.expires, now + DAY);
    let long = authority.proxy(&WEB, DAY * 1_000, now).unwrap();
    let apart = ca.expires.duration_since(long.expires).unwrap();
    assert!(apart < Duration::from_secs(1), "whole seconds");
    let late = authority
        .proxy(&WEB, DAY, now + DAY * 101)
        .map(|_| ())
        .unwrap_err();
    assert!(late.to_string().contains("the CA has expired"), "{late}");
}

#[test]
fn wrong_input_is_named() {
    let (ca, authority) = authority();
    let now = SystemTime::now();
    let wrong = |w: Workload<'_>| {
        authority
            .proxy(&w, DAY, now)
            .map(|_| ())
            .unwrap_err()
            .to_string()
    };
    for (workload, says) in [
        (
            Workload {
                namespace: "Shop",
                ..WEB
            },
            "\"Shop\" is no namespace",
        ),
        (
            Workload {
                namespace: "shop/sa/x",
                ..WEB
            },
            "no namespace",
        ),
        (
            Workload {
                trust_domain: "",
                ..WEB
            },
            "no trust domain",
        ),
    ] {
        let why = wrong(workload);
        assert!(why.contains(says), "{why}");
    }
    let other = new_authority("other", DAY, now).unwrap();
    let leaf = authority.proxy(&WEB, DAY, now).unwrap();
    for (cert, key, says) in [
        (
            ca.cert.as_str(),
            other.key.as_str(),
            "don't belong together",
        ),
        (&leaf.cert, &leaf.key, "is no CA"),
        ("", &ca.key, "certificate is no PEM"),
        (&ca.cert, "", "no private key in PEM"),
    ] {
        let why = Authority::from_pem(cert.as_bytes(), key.as_bytes())
            .map(|_| ())
            .unwrap_err();
        assert!(why.to_string().contains(says), "{why}");
    }
}

/// As OpenSSL's ecparam, and Go's x509 package for cert-manager, write keys: RFC 5915's `ECPrivateKey`.
#[test]
fn keys_in_the_form_of_sec1_are_read() {
    let key = KeyPair::generate().unwrap();
    let pkcs8 = key.serialize_der();
    // The private number is the only octet string of 32 bytes.
    let at = pkcs8.windows(2).position(|w| w == [4, 32]).unwrap() + 2;
    let number = key::element(4, &pkcs8[at..at + 32]);
    let curve = key::element(0xa0, key::P256);
    let public = key::element(3, &[&[0], key.public_key_raw()].concat());
    let public = key::element(0xa1, &public);
    let sec1 = key::element(0x30, &[&[2, 1, 1], &number[..], &curve, &public].concat());
    let wrapped = PrivatePkcs8KeyDer::from(key::wrap(&sec1).unwrap());
    let read = KeyPair::try_from(&wrapped).unwrap();
    assert_eq!(read.public_key_raw(), key.public_key_raw());
    assert!(key::wrap(b"nonsense").is_err());
}
