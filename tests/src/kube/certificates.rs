//! Keys and certificates of a cluster, from one authority for servers and clients, and kubeconfigs
//! for clients.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::Result;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose, SanType,
};

/// A certificate authority whose files are in one folder.
pub(super) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    dir: PathBuf,
}

impl Authority {
    /// Creates an authority. Writes `ca.crt` and `ca.key`, and the key pair `sa.key` and `sa.pub`
    /// for tokens of service accounts.
    pub(super) fn create(dir: &Path) -> Result<Self> {
        fs::create_dir_all(dir)?;
        let mut params = CertificateParams::default();
        params
            .distinguished_name
            .push(DnType::CommonName, "headgate-tests");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
        fs::write(dir.join("ca.crt"), issuer.pem())?;
        fs::write(dir.join("ca.key"), issuer.key().serialize_pem())?;
        let tokens = KeyPair::generate()?;
        fs::write(dir.join("sa.key"), tokens.serialize_pem())?;
        fs::write(dir.join("sa.pub"), tokens.public_key_pem())?;
        Ok(Self {
            issuer,
            dir: dir.to_owned(),
        })
    }

    /// Returns the path of a file in the authority's folder.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Writes `NAME.crt` and `NAME.key` for a server with these names and addresses.
    pub(super) fn server(&self, name: &str, names: &[&str], addresses: &[IpAddr]) -> Result<()> {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let mut params = CertificateParams::new(names)?;
        let addresses = addresses.iter().copied().map(SanType::IpAddress);
        params.subject_alt_names.extend(addresses);
        params.distinguished_name.push(DnType::CommonName, name);
        self.issue(name, params, ExtendedKeyUsagePurpose::ServerAuth)
    }

    /// Writes `NAME.crt` and `NAME.key` for a client whose certificate names `user` and `group`.
    pub(super) fn client(&self, name: &str, user: &str, group: Option<&str>) -> Result<()> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, user);
        if let Some(group) = group {
            params
                .distinguished_name
                .push(DnType::OrganizationName, group);
        }
        self.issue(name, params, ExtendedKeyUsagePurpose::ClientAuth)
    }

    fn issue(
        &self,
        name: &str,
        mut params: CertificateParams,
        usage: ExtendedKeyUsagePurpose,
    ) -> Result<()> {
        params.extended_key_usages = vec![usage];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        fs::write(self.file(&format!("{name}.crt")), certificate.pem())?;
        fs::write(self.file(&format!("{name}.key")), key.serialize_pem())?;
        Ok(())
    }

    /// Issues a client certificate, writes `NAME.kubeconfig` with it, and returns the path.
    pub(super) fn kubeconfig(
        &self,
        url: &str,
        name: &str,
        user: &str,
        group: Option<&str>,
    ) -> Result<PathBuf> {
        self.client(name, user, group)?;
        let credentials = format!(
            "{{client-certificate: {}, client-key: {}}}",
            self.file(&format!("{name}.crt")).display(),
            self.file(&format!("{name}.key")).display()
        );
        self.write_kubeconfig(url, name, &credentials)
    }

    /// Writes `NAME.kubeconfig` with a bearer token and returns the path.
    pub(super) fn token_kubeconfig(&self, url: &str, name: &str, token: &str) -> Result<PathBuf> {
        self.write_kubeconfig(url, name, &format!("{{token: {token}}}"))
    }

    fn write_kubeconfig(&self, url: &str, name: &str, credentials: &str) -> Result<PathBuf> {
        let path = self.file(&format!("{name}.kubeconfig"));
        let ca = self.file("ca.crt");
        let text = format!(
            "apiVersion: v1\n\
             kind: Config\n\
             clusters: [{{name: tests, cluster: {{server: \"{url}\", certificate-authority: \
             {}}}}}]\n\
             users: [{{name: user, user: {credentials}}}]\n\
             contexts: [{{name: tests, context: {{cluster: tests, user: user}}}}]\n\
             current-context: tests\n",
            ca.display()
        );
        fs::write(&path, text)?;
        Ok(path)
    }
}
