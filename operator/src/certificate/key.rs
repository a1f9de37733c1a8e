//! Private keys in the forms that tools write them.
//!
//! The signer takes PKCS #8 alone. OpenSSL's `ecparam`, Go's x509 package and with it cert-manager write
//! elliptic-curve keys in SEC 1's form, which PKCS #8 merely wraps.

use rcgen::KeyPair;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};

use super::IssueError;

const EC_PUBLIC_KEY: &[u8] = &[6, 7, 0x2a, 0x86, 0x48, 0xce, 0x3d, 2, 1];
pub(super) const P256: &[u8] = &[6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 3, 1, 7];
const P384: &[u8] = &[6, 5, 0x2b, 0x81, 4, 0, 0x22];

/// A key that can sign.
pub(super) fn from_pem(pem: &[u8]) -> Result<KeyPair, IssueError> {
    let key = PrivateKeyDer::from_pem_slice(pem)
        .map_err(|e| IssueError(format!("the CA's key is no private key in PEM: {e}")))?;
    let pkcs8 = match key {
        PrivateKeyDer::Pkcs8(key) => key,
        PrivateKeyDer::Sec1(key) => PrivatePkcs8KeyDer::from(wrap(key.secret_sec1_der())?),
        _ => {
            return Err(IssueError::new(
                "the CA's key is of PKCS #1; convert it with openssl pkcs8 -topk8 -nocrypt",
            ));
        }
    };
    KeyPair::try_from(&pkcs8).map_err(|e| {
        IssueError(format!(
            "the CA's key can't be used ({e}); ECDSA with P-256 or P-384, Ed25519 and RSA can"
        ))
    })
}

/// RFC 5958's `OneAsymmetricKey` around RFC 5915's `ECPrivateKey`.
pub(super) fn wrap(sec1: &[u8]) -> Result<Vec<u8>, IssueError> {
    let curve = [P256, P384]
        .into_iter()
        .find(|oid| sec1.windows(oid.len()).any(|w| w == *oid))
        .ok_or_else(|| {
            IssueError::new("the CA's key is of no known curve; ECDSA with P-256 or P-384 is")
        })?;
    let algorithm = element(0x30, &[EC_PUBLIC_KEY, curve].concat());
    let key = element(4, sec1);
    Ok(element(0x30, &[&[2, 1, 0], &algorithm[..], &key].concat()))
}

/// DER: tag, length, content.
pub(super) fn element(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = content.len().to_be_bytes();
    let significant: Vec<u8> = length.into_iter().skip_while(|b| *b == 0).collect();
    let mut out = vec![tag];
    match significant.as_slice() {
        [] => out.push(0),
        [short] if *short < 0x80 => out.push(*short),
        long => {
            out.push(0x80 | u8::try_from(long.len()).unwrap_or_default());
            out.extend(long);
        }
    }
    out.extend(content);
    out
}
