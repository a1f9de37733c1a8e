//! A PKI for xDS, as users have one: a CA, the operator's certificate, and the certificates of
//! proxies.

use std::fmt;
use std::fs;
use std::net::Ipv4Addr;
use std::path::PathBuf;

use anyhow::Result;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, SanType};
use tonic::transport::{Certificate, ClientTlsConfig, Identity};

/// The name of the operator in its certificate.
const SERVER_NAME: &str = "headgate.headgate-system.svc";

/// A CA and the certificates that it has signed, in a folder.
pub struct Pki {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: PathBuf,
}

impl fmt::Debug for Pki {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pki")
            .field("folder", &self.folder)
            .finish_non_exhaustive()
    }
}

impl Pki {
    /// Creates in `folder` a CA and the operator's certificate, which is also valid for 127.0.0.1.
    ///
    /// # Errors
    /// If the folder can't be written to.
    pub fn new(folder: PathBuf) -> Result<Self> {
        fs::create_dir_all(&folder)?;
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "a CA");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
        let this = Self { issuer, folder };
        fs::write(this.folder.join("ca.crt"), this.issuer.pem())?;
        let names = [
            SanType::DnsName(SERVER_NAME.try_into()?),
            SanType::IpAddress(Ipv4Addr::LOCALHOST.into()),
        ];
        this.issue("server", names.into())?;
        Ok(this)
    }

    fn issue(&self, name: &str, names: Vec<SanType>) -> Result<()> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.subject_alt_names = names;
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        fs::write(self.folder.join(format!("{name}.key")), key.serialize_pem())?;
        fs::write(self.folder.join(format!("{name}.crt")), certificate.pem())?;
        Ok(())
    }

    fn argument(&self, name: &str, file: &str) -> String {
        format!("--{name}={}", self.folder.join(file).display())
    }

    /// Returns the arguments of `headgate run` that name the CA and the operator's certificate.
    pub fn operator_arguments(&self) -> Vec<String> {
        vec![
            self.argument("tls-cert", "server.crt"),
            self.argument("tls-key", "server.key"),
            self.argument("client-ca", "ca.crt"),
        ]
    }

    /// Returns the arguments of `headgate bootstrap` for a proxy that verifies the operator. The
    /// proxy's own identity comes from other arguments.
    pub fn server_arguments(&self) -> Vec<String> {
        vec![
            self.argument("xds-tls-ca", "ca.crt"),
            format!("--xds-server-name={SERVER_NAME}"),
        ]
    }

    /// Issues a certificate of `namespace`, unless it exists. A running proxy watches the files of
    /// its certificate, and must never read half of a new pair.
    fn issue_to_proxies(&self, namespace: &str) -> Result<()> {
        if self.folder.join(format!("{namespace}.crt")).exists() {
            return Ok(());
        }
        let id = format!("spiffe://cluster.local/ns/{namespace}/sa/default");
        self.issue(namespace, vec![SanType::URI(id.as_str().try_into()?)])
    }

    /// Returns the settings of an xDS client with a certificate of `namespace`.
    ///
    /// # Errors
    /// If the certificate can't be written.
    pub fn client(&self, namespace: &str) -> Result<ClientTlsConfig> {
        self.issue_to_proxies(namespace)?;
        let read = |name: String| fs::read(self.folder.join(name));
        let certificate = read(format!("{namespace}.crt"))?;
        let identity = Identity::from_pem(certificate, read(format!("{namespace}.key"))?);
        let ca = Certificate::from_pem(self.issuer.pem());
        let tls = ClientTlsConfig::new().ca_certificate(ca);
        Ok(tls.identity(identity).domain_name(SERVER_NAME))
    }

    /// Returns arguments of `headgate bootstrap` for a proxy with a certificate of `namespace`.
    ///
    /// # Errors
    /// If the certificate can't be written.
    pub fn proxy_arguments(&self, namespace: &str) -> Result<Vec<String>> {
        self.issue_to_proxies(namespace)?;
        let mut arguments = self.server_arguments();
        arguments.push(self.argument("xds-tls-cert", &format!("{namespace}.crt")));
        arguments.push(self.argument("xds-tls-key", &format!("{namespace}.key")));
        Ok(arguments)
    }
}
