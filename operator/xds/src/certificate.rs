//! The operator's own CA and the certificates that it signs, for clusters without a PKI.

use std::fmt::Display;
use std::time::{Duration, SystemTime};

use anyhow::{anyhow, bail};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, PrivateSec1KeyDer};
use x509_parser::asn1_rs::{Any, OctetString, Sequence, ToDer as _};
use x509_parser::prelude::{FromDer as _, SubjectPublicKeyInfo, X509Certificate};

/// The time before now at which a certificate's validity begins, because clocks differ.
const SKEW: Duration = Duration::from_secs(3_600);
/// A certificate counts as old in the last part of its life, which is the life divided by this
/// number.
const OLD_PART: u32 = 6;
/// The longest time before its expiry in which a certificate counts as old. The chart's alert on
/// the operator's certificate has both numbers, too.
const OLD: Duration = Duration::from_secs(14 * 86_400);

/// A certificate with its key.
#[derive(Clone, PartialEq, Eq)]
pub struct Pair {
    /// The certificate, PEM.
    pub cert: String,
    /// The private key of the certificate, PEM (PKCS #8).
    pub key: String,
}

/// A CA with its private key.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// The CA's certificate, PEM.
    cert: String,
    expires: SystemTime,
}

/// Creates a CA.
///
/// # Errors
/// The system provides no randomness for a key.
pub fn new_authority(name: &str, life: Duration, now: SystemTime) -> anyhow::Result<Pair> {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.not_before = (now - SKEW).into();
    params.not_after = (now + life).into();
    let key = KeyPair::generate()?;
    Ok(Pair {
        cert: params.self_signed(&key)?.pem(),
        key: key.serialize_pem(),
    })
}

impl Authority {
    /// Returns the CA of these PEM texts. If there are several certificates, the first one signs.
    /// The key is PKCS #8, or SEC 1 as cert-manager and openssl write keys of elliptic curves.
    ///
    /// # Errors
    /// Returns one line that names the text that doesn't parse, or says that the certificate and
    /// the key don't match.
    pub fn from_pem(cert: &[u8], key: &[u8]) -> anyhow::Result<Self> {
        let der = CertificateDer::from_pem_slice(cert)
            .map_err(|e| anyhow!("the CA's certificate isn't PEM: {e}"))?;
        let (_, parsed) = X509Certificate::from_der(&der)
            .map_err(|e| anyhow!("the CA's certificate isn't X.509: {e}"))?;
        if !parsed.is_ca() {
            bail!(
                "the CA's certificate isn't a CA certificate (basicConstraints CA:TRUE is \
                   missing)"
            );
        }
        let unusable = |why: &dyn Display| {
            anyhow!(
                "the CA's key can't be used: {why}; give it as PKCS #8 or SEC 1, or delete its \
                 Secret, and the operator creates a new CA"
            )
        };
        let key = match PrivateKeyDer::from_pem_slice(key).map_err(|e| unusable(&e))? {
            PrivateKeyDer::Sec1(key) => pkcs8(&key, parsed.public_key())?.into(),
            key => key,
        };
        let key = KeyPair::try_from(&key).map_err(|e| unusable(&e))?;
        if parsed.public_key().subject_public_key.data.as_ref() != key.public_key_raw() {
            bail!("the CA's certificate and key don't match");
        }
        Ok(Self {
            cert: first_pem(&String::from_utf8_lossy(cert)),
            issuer: Issuer::from_ca_cert_der(&der, key)?,
            expires: validity(&parsed).1,
        })
    }

    /// Returns the CA's certificate, PEM, which verifies the certificates that it signs.
    pub fn cert(&self) -> &str {
        &self.cert
    }

    /// Returns a certificate for the operator under these names, which proxies verify.
    ///
    /// # Errors
    /// Returns one line that names a bad DNS name, or says that the CA has expired.
    pub fn server(
        &self,
        names: &[String],
        life: Duration,
        now: SystemTime,
    ) -> anyhow::Result<Pair> {
        let mut params = CertificateParams::default();
        for name in names {
            params.subject_alt_names.push(match name.parse() {
                Ok(address) => SanType::IpAddress(address),
                Err(_) => SanType::DnsName(
                    { name.as_str().try_into() }.map_err(|_| anyhow!("{name:?} is no DNS name"))?,
                ),
            });
        }
        if self.expires <= now {
            bail!("the CA has expired; delete its Secret, and the operator creates a new one");
        }
        params.distinguished_name = rcgen::DistinguishedName::new();
        // X.520 limits the length of a common name. Clients verify the SANs.
        let common_name = names.first().map_or("headgate", String::as_str);
        let common_name: String = common_name.chars().take(64).collect();
        params
            .distinguished_name
            .push(DnType::CommonName, common_name);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        // A certificate isn't valid beyond its CA's validity.
        params.not_before = (now - SKEW).into();
        params.not_after = (now + life).min(self.expires).into();
        let key = KeyPair::generate()?;
        Ok(Pair {
            cert: params.signed_by(&key, &self.issuer)?.pem(),
            key: key.serialize_pem(),
        })
    }
}

/// Returns a SEC 1 key as PKCS #8, which adds the algorithm. The certificate's public key has the
/// same algorithm.
fn pkcs8(
    key: &PrivateSec1KeyDer<'_>,
    public: &SubjectPublicKeyInfo<'_>,
) -> anyhow::Result<PrivatePkcs8KeyDer<'static>> {
    const VERSION: [u8; 3] = [2, 1, 0];
    let (_, info) = Sequence::from_der(public.raw)?;
    let (rest, _) = Any::from_der(&info.content)?;
    let algorithm = &info.content[..info.content.len() - rest.len()];
    let key = OctetString::new(key.secret_sec1_der()).to_der_vec()?;
    let content = [&VERSION, algorithm, &key].concat();
    Ok(Sequence::new(content.into()).to_der_vec()?.into())
}

/// Returns the first and the last moment at which a certificate is valid.
pub(crate) fn validity(certificate: &X509Certificate<'_>) -> (SystemTime, SystemTime) {
    let time = |seconds: i64| {
        SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or_default())
    };
    let validity = certificate.validity();
    (
        time(validity.not_before.timestamp()),
        time(validity.not_after.timestamp()),
    )
}

/// Returns the first and the last moment at which the first certificate in a PEM text is valid.
/// `None` if the text has no certificate.
pub fn validity_in(pem: &[u8]) -> Option<(SystemTime, SystemTime)> {
    let der = CertificateDer::from_pem_slice(pem).ok()?;
    let (_, parsed) = X509Certificate::from_der(&der).ok()?;
    Some(validity(&parsed))
}

/// Whether a certificate with this validity should have been renewed before `now`. Issuers renew a
/// certificate long before the last part of its life, however short the life is.
pub fn is_old((from, to): (SystemTime, SystemTime), now: SystemTime) -> bool {
    let life = to.duration_since(from).unwrap_or_default();
    to.duration_since(now).unwrap_or_default() < (life / OLD_PART).min(OLD)
}

/// Returns only the first certificate of a PEM text.
pub fn first_pem(text: &str) -> String {
    const END: &str = "-----END CERTIFICATE-----";
    match (text.find("-----BEGIN CERTIFICATE-----"), text.find(END)) {
        (Some(from), Some(to)) if from < to => format!("{}\n", &text[from..to + END.len()]),
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests;
