//! SHA-256 digests, which identify modules and configurations.

use sha2::{Digest as _, Sha256};

/// Returns the first 64 bits of the SHA-256 of `bytes`, in hex. They identify content in versions
/// and file names.
pub fn hash(bytes: &[u8]) -> String {
    let mut hash = sha256(bytes);
    hash.truncate(16);
    hash
}

/// Returns the whole SHA-256 of `bytes`, in hex.
pub fn sha256(bytes: &[u8]) -> String {
    format!("{:x}", Sha256::digest(bytes))
}
