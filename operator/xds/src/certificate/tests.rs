use super::*;

const DAY: Duration = Duration::from_secs(86_400);
/// The resolution of the times in certificates.
const SECOND: Duration = Duration::from_secs(1);

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

fn issue(authority: &Authority, life: Duration, now: SystemTime) -> anyhow::Result<Pair> {
    let names = ["headgate.headgate-system.svc", "10.0.0.1"].map(str::to_owned);
    authority.server(&names, life, now)
}

#[test]
fn issued_certificates_are_signed_and_say_what_they_are_for() {
    let (ca, authority) = authority();
    assert_eq!(authority.cert(), ca.cert);
    let server = issue(&authority, DAY, SystemTime::now()).unwrap();
    let (ca, server) = (der(&ca), der(&server));
    let (_, ca) = X509Certificate::from_der(&ca).unwrap();
    let (_, cert) = X509Certificate::from_der(&server).unwrap();
    cert.verify_signature(Some(ca.public_key())).unwrap();
    let usage = cert.extended_key_usage().unwrap().unwrap().value;
    assert!(usage.server_auth && !usage.client_auth);
    assert_eq!(cert.issuer(), ca.subject());
    assert!(!cert.is_ca());
}

#[test]
fn no_certificate_outlives_its_ca() {
    let (ca, authority) = authority();
    let now = SystemTime::now();
    let short = issue(&authority, DAY, now).unwrap();
    let end = |pair: &Pair| validity_in(pair.cert.as_bytes()).unwrap().1;
    let apart = |a: SystemTime, b: SystemTime| a.max(b).duration_since(a.min(b)).unwrap();
    assert!(apart(end(&short), now + DAY) < SECOND);
    let long = issue(&authority, DAY * 1_000, now).unwrap();
    assert_eq!(end(&ca), end(&long));
    let late = issue(&authority, DAY, now + DAY * 101)
        .map(|_| ())
        .unwrap_err();
    assert!(late.to_string().contains("the CA has expired"), "{late}");
}

#[test]
fn wrong_input_is_named() {
    let (ca, authority) = authority();
    let now = SystemTime::now();
    let names = ["no name".to_owned(), "\u{e9}".to_owned()];
    let why = authority.server(&names, DAY, now).map(|_| ());
    assert!(why.unwrap_err().to_string().contains("is no DNS name"));
    let other = new_authority("other", DAY, now).unwrap();
    let leaf = issue(&authority, DAY, now).unwrap();
    for (cert, key, says) in [
        (ca.cert.as_str(), other.key.as_str(), "don't match"),
        (&leaf.cert, &leaf.key, "isn't a CA certificate"),
        ("", &ca.key, "certificate isn't PEM"),
        (&ca.cert, "", "key can't be used"),
    ] {
        let why = Authority::from_pem(cert.as_bytes(), key.as_bytes())
            .map(|_| ())
            .unwrap_err();
        assert!(why.to_string().contains(says), "{why}");
    }
}

/// The key of a CA that cert-manager made, as it writes keys by default.
#[test]
fn a_sec_1_key_signs() {
    const CERT: &str = "\
-----BEGIN CERTIFICATE-----
MIIBhDCCASmgAwIBAgIUMJ818Pf5WfWl+qfXkyV/fVatnKUwCgYIKoZIzj0EAwIw
FjEUMBIGA1UEAwwLaGVhZGdhdGUgQ0EwIBcNMjYxMTI5MTIzODExWhgPMjEyNjEx
MDUxMjM4MTFaMBYxFDASBgNVBAMMC2hlYWRnYXRlIENBMFkwEwYHKoZIzj0CAQYI
KoZIzj0DAQcDQgAEc2OXyh/dJGgTSc+bUDeHe9M3ioETApsQITNE3Hk/4fwgPmyA
yp1o1yjcW/M0n7nfm3LgQvwChnEvFHp4szRGuKNTMFEwHQYDVR0OBBYEFG1sNfaE
d5sLKTgFiDzY39EkSZ2cMB8GA1UdIwQYMBaAFG1sNfaEd5sLKTgFiDzY39EkSZ2c
MA8GA1UdEwEB/wQFMAMBAf8wCgYIKoZIzj0EAwIDSQAwRgIhALFrylx8jxlWj103
aL8QfoWS1SoFfuJOt9Y3v/4aagcsAiEA4QD/VZFsNoblEo7uCTeAOe7bW+7roEXb
UBscbB7tphk=
-----END CERTIFICATE-----
";
    const KEY: &str = "\
-----BEGIN EC PRIVATE KEY-----
MHcCAQEEICs09Zwm1E/389KiF44fHuWCODJSKnrewUEnmoTuYQrdoAoGCCqGSM49
AwEHoUQDQgAEc2OXyh/dJGgTSc+bUDeHe9M3ioETApsQITNE3Hk/4fwgPmyAyp1o
1yjcW/M0n7nfm3LgQvwChnEvFHp4szRGuA==
-----END EC PRIVATE KEY-----
";
    let ca = Authority::from_pem(CERT.as_bytes(), KEY.as_bytes()).unwrap();
    let server = der(&issue(&ca, DAY, SystemTime::now()).unwrap());
    let ca = CertificateDer::from_pem_slice(CERT.as_bytes()).unwrap();
    let (_, ca) = X509Certificate::from_der(&ca).unwrap();
    let (_, server) = X509Certificate::from_der(&server).unwrap();
    server.verify_signature(Some(ca.public_key())).unwrap();
}
