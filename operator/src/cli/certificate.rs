//! `headgate certificate`: a CA for xDS, the operator's certificate, and those of proxies.

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, anyhow};
use clap::{Args, Subcommand};
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};

use super::Output;
use crate::certificate::{Authority, Pair, Workload, new_authority};
use crate::kubernetes::client::Access;
use crate::xds::timestamp::rfc3339;

/// Issues certificates for TLS between the operator and proxies, as Secrets for `kubectl apply -f -` or as files.
#[derive(Debug, Clone, Args)]
pub struct CertificateArgs {
    /// The certificate to issue.
    #[command(subcommand)]
    pub what: What,
}

/// The certificate to issue.
#[derive(Debug, Clone, Subcommand)]
pub enum What {
    /// Make a CA
    Ca(CaArgs),
    /// Issue the operator's certificate (headgate run --tls-cert --tls-key --client-ca)
    Server(ServerArgs),
    /// Issue a certificate by which proxies prove their namespace (headgate bootstrap --xds-tls-cert ...)
    Proxy(ProxyArgs),
}

/// Where a certificate goes.
#[derive(Debug, Clone, Args)]
pub struct Destination {
    /// Write tls.crt, tls.key and ca.crt into this folder in place of printing a Secret
    #[arg(long, value_name = "DIR")]
    pub out_dir: Option<PathBuf>,
}

/// The CA that signs.
#[derive(Debug, Clone, Args)]
pub struct Signer {
    /// Secret with the CA as tls.crt and tls.key, read with your kubeconfig
    #[arg(
        long,
        value_name = "NAMESPACE/NAME",
        default_value = "headgate-system/headgate-ca"
    )]
    pub ca_secret: String,
    /// The CA's certificate from a file (PEM), in place of a Secret
    #[arg(
        long,
        value_name = "FILE",
        requires = "ca_key",
        conflicts_with = "ca_secret"
    )]
    pub ca_cert: Option<PathBuf>,
    /// The CA's key from a file (PEM)
    #[arg(long, value_name = "FILE", requires = "ca_cert")]
    pub ca_key: Option<PathBuf>,
    /// The Secret
    #[command(flatten)]
    pub access: Access,
}

/// Arguments of `headgate certificate ca`.
#[derive(Debug, Clone, Args)]
pub struct CaArgs {
    /// Namespace of the Secret
    #[arg(long, value_name = "NAME", default_value = "headgate-system")]
    pub namespace: String,
    /// Name of the Secret
    #[arg(long, value_name = "NAME", default_value = "headgate-ca")]
    pub secret_name: String,
    /// Days of validity
    #[arg(long, value_name = "DAYS", default_value_t = 3_650, value_parser = clap::value_parser!(u32).range(1..=36_500))]
    pub days: u32,
    #[command(flatten)]
    /// The place of the result
    pub to: Destination,
}

/// Arguments of `headgate certificate server`.
#[derive(Debug, Clone, Args)]
pub struct ServerArgs {
    /// Namespace of the operator and of the Secret
    #[arg(long, value_name = "NAME", default_value = "headgate-system")]
    pub namespace: String,
    /// Name of the Secret
    #[arg(long, value_name = "NAME", default_value = "headgate-xds-tls")]
    pub secret_name: String,
    /// Name of the operator's Service: proxies know it as NAME, NAME.NAMESPACE, NAME.NAMESPACE.svc and
    /// NAME.NAMESPACE.svc.cluster.local
    #[arg(long, value_name = "NAME", default_value = "headgate")]
    pub service: String,
    /// One more DNS name; may be repeated
    #[arg(long, value_name = "NAME")]
    pub dns_name: Vec<String>,
    /// An IP address; may be repeated
    #[arg(long, value_name = "IP")]
    pub ip_address: Vec<IpAddr>,
    /// Days of validity, at most those of the CA
    #[arg(long, value_name = "DAYS", default_value_t = 730, value_parser = clap::value_parser!(u32).range(1..=36_500))]
    pub days: u32,
    /// The CA that signs
    #[command(flatten)]
    pub signer: Signer,
    /// The place of the result
    #[command(flatten)]
    pub to: Destination,
}

/// Arguments of `headgate certificate proxy`.
#[derive(Debug, Clone, Args)]
pub struct ProxyArgs {
    /// Namespace of the proxies and of the Secret: they get this namespace's policies and no others
    #[arg(long, short, value_name = "NAME")]
    pub namespace: String,
    /// Service account in the certificate
    #[arg(long, value_name = "NAME", default_value = "default")]
    pub service_account: String,
    /// SPIFFE trust domain in the certificate
    #[arg(long, value_name = "NAME", default_value = "cluster.local")]
    pub trust_domain: String,
    /// Name of the Secret
    #[arg(long, value_name = "NAME", default_value = "headgate-proxy-tls")]
    pub secret_name: String,
    /// Days of validity, at most those of the CA
    #[arg(long, value_name = "DAYS", default_value_t = 365, value_parser = clap::value_parser!(u32).range(1..=36_500))]
    pub days: u32,
    /// The CA that signs
    #[command(flatten)]
    pub signer: Signer,
    /// The place of the result
    #[command(flatten)]
    pub to: Destination,
}

fn days(days: u32) -> Duration {
    Duration::from_secs(u64::from(days) * 86_400)
}

/// Runs the command.
///
/// # Errors
/// One line that names the argument at fault and what to do.
pub fn run(args: &CertificateArgs) -> anyhow::Result<Output> {
    let now = SystemTime::now();
    match &args.what {
        What::Ca(a) => {
            let pair = new_authority("headgate CA", days(a.days), now)?;
            deliver(&pair, &pair.cert, &a.namespace, &a.secret_name, &a.to)
        }
        What::Server(a) => {
            let authority = a.signer.load()?;
            let (service, namespace) = (&a.service, &a.namespace);
            let mut names = vec![
                format!("{service}.{namespace}.svc"),
                format!("{service}.{namespace}.svc.cluster.local"),
                format!("{service}.{namespace}"),
                service.clone(),
            ];
            names.extend(a.dns_name.iter().cloned());
            let pair = authority.server(&names, &a.ip_address, days(a.days), now)?;
            deliver(&pair, authority.cert(), namespace, &a.secret_name, &a.to)
        }
        What::Proxy(a) => {
            let authority = a.signer.load()?;
            let workload = Workload {
                trust_domain: &a.trust_domain,
                namespace: &a.namespace,
                service_account: &a.service_account,
            };
            let pair = authority
                .proxy(&workload, days(a.days), now)
                .context("--namespace, --service-account or --trust-domain")?;
            deliver(&pair, authority.cert(), &a.namespace, &a.secret_name, &a.to)
        }
    }
}

impl Signer {
    fn load(&self) -> anyhow::Result<Authority> {
        if let (Some(cert), Some(key)) = (&self.ca_cert, &self.ca_key) {
            let read = |argument: &str, path: &Path| {
                fs::read(path).with_context(|| format!("{argument} {}", path.display()))
            };
            let (cert_pem, key_pem) = (read("--ca-cert", cert)?, read("--ca-key", key)?);
            return Authority::from_pem(&cert_pem, &key_pem).with_context(|| {
                format!("--ca-cert {} --ca-key {}", cert.display(), key.display())
            });
        }
        let secret = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("starting the runtime failed")?
            .block_on(self.secret())?;
        let data = secret.data.unwrap_or_default();
        let part =
            |key: &str| {
                data.get(key).map(|bytes| bytes.0.as_slice()).ok_or_else(|| {
                anyhow!(
                    "--ca-secret {}: it has no {key}; a CA's Secret has tls.crt and tls.key",
                    self.ca_secret
                )
            })
            };
        Authority::from_pem(part("tls.crt")?, part("tls.key")?)
            .with_context(|| format!("--ca-secret {}", self.ca_secret))
    }

    async fn secret(&self) -> anyhow::Result<Secret> {
        let named = || format!("--ca-secret {}", self.ca_secret);
        let (namespace, name) = self
            .ca_secret
            .split_once('/')
            .ok_or_else(|| anyhow!("{}: write NAMESPACE/NAME", named()))?;
        let unknown = || {
            format!(
                "{}: no cluster is known; set KUBECONFIG, or sign with --ca-cert and --ca-key",
                named()
            )
        };
        let config = self.access.config(unknown).await?;
        let secrets = Api::<Secret>::namespaced(Client::try_from(config)?, namespace);
        secrets.get(name).await.map_err(|error| match error {
            kube::Error::Api(status) if status.code == 404 => anyhow!(
                "{}: no such Secret; the chart makes it, or headgate certificate ca | kubectl apply -f -",
                named()
            ),
            kube::Error::Api(status) if status.code == 403 => anyhow!(
                "{}: {}; whoever may read it can issue certificates for every namespace",
                named(),
                status.message
            ),
            error => anyhow::Error::new(error).context(named()),
        })
    }
}

fn deliver(
    pair: &Pair,
    ca: &str,
    namespace: &str,
    secret_name: &str,
    to: &Destination,
) -> anyhow::Result<Output> {
    let notes = format!("valid until {}\n", rfc3339(pair.expires));
    let text = match &to.out_dir {
        None => secret(pair, ca, namespace, secret_name),
        Some(dir) => {
            let failed = || format!("--out-dir {}", dir.display());
            fs::create_dir_all(dir).with_context(failed)?;
            for (name, content, mode) in [
                ("tls.key", pair.key.as_str(), 0o600),
                ("tls.crt", &pair.cert, 0o644),
                ("ca.crt", ca, 0o644),
            ] {
                write(dir, name, content, mode).with_context(failed)?;
            }
            String::new()
        }
    };
    Ok(Output {
        text,
        notes,
        ok: true,
    })
}

/// Replaces a file as a whole: whoever follows it never sees half of one.
fn write(dir: &Path, name: &str, content: &str, mode: u32) -> std::io::Result<()> {
    let partial = dir.join(format!(".{name}.{}", std::process::id()));
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(mode)
        .open(&partial)?;
    file.write_all(content.as_bytes())?;
    file.sync_all()?;
    fs::rename(partial, dir.join(name))
}

/// A Secret for `kubectl apply`. PEM has no characters that YAML could take for something else.
fn secret(pair: &Pair, ca: &str, namespace: &str, name: &str) -> String {
    let mut text = format!(
        "apiVersion: v1\nkind: Secret\nmetadata:\n  name: {name}\n  namespace: {namespace}\n  labels:\n    \
         app.kubernetes.io/managed-by: headgate\ntype: kubernetes.io/tls\nstringData:\n"
    );
    for (key, content) in [
        ("tls.crt", pair.cert.as_str()),
        ("tls.key", &pair.key),
        ("ca.crt", ca),
    ] {
        // Writing to a String can't fail.
        let _ = writeln!(text, "  {key}: |");
        for line in content.lines() {
            let _ = writeln!(text, "    {line}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_hold_what_the_files_do() {
        let pair = new_authority("ca", days(1), SystemTime::now()).unwrap();
        let text = secret(&pair, &pair.cert, "shop", "headgate-proxy-tls");
        let read: Secret = serde_saphyr::from_str(&text).unwrap();
        assert_eq!(read.metadata.namespace.as_deref(), Some("shop"));
        let data = read.string_data.unwrap();
        assert_eq!(data["tls.crt"].trim(), pair.cert.trim().replace('\r', ""));
        assert_eq!(data["tls.key"].trim(), pair.key.trim().replace('\r', ""));
    }

    #[test]
    fn files_are_signed_with_files_and_keys_are_private() {
        use std::os::unix::fs::PermissionsExt as _;

        let dir = tempfile::tempdir().unwrap();
        let (ca, proxy) = (dir.path().join("ca"), dir.path().join("proxy"));
        let run = |line: &[&str]| {
            use clap::Parser as _;
            let line = ["headgate", "certificate"].iter().chain(line);
            match super::super::Cli::try_parse_from(line).unwrap().command {
                super::super::Command::Certificate(args) => run(&args),
                _ => unreachable!(),
            }
        };
        run(&["ca", "--out-dir", ca.to_str().unwrap()]).unwrap();
        let (cert, key) = (ca.join("tls.crt"), ca.join("tls.key"));
        let signer = [
            "--ca-cert",
            cert.to_str().unwrap(),
            "--ca-key",
            key.to_str().unwrap(),
        ];
        let mut line = vec!["proxy", "--namespace", "shop", "--out-dir"];
        line.push(proxy.to_str().unwrap());
        line.extend(signer);
        run(&line).unwrap();
        let mode = fs::metadata(proxy.join("tls.key"))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(
            fs::read(proxy.join("ca.crt")).unwrap(),
            fs::read(&cert).unwrap()
        );
        line[2] = "Shop";
        let error = format!("{:#}", run(&line).unwrap_err());
        assert!(
            error.contains("--namespace") && error.contains("\"Shop\""),
            "{error}"
        );
    }
}
