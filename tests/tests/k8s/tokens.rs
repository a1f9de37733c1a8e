//! Real Envoys that prove their namespace with real tokens of service accounts.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use headgate_tests::bootstrap::Bootstrap;
use headgate_tests::envoy::EnvoyProcess;
use headgate_tests::headgate;
use headgate_tests::kube::ApiServer;
use headgate_tests::operator::{Operator, OperatorOptions};
use headgate_tests::pki::Pki;
use headgate_tests::policies::{Cluster, policy, service};
use headgate_tests::wait::{until, until_within};
use serde_json::Value;
use tempfile::TempDir;

/// The longest wait. Envoy alone waits up to 5 s between attempts to connect.
const LONG: Duration = Duration::from_secs(60);

struct Rig {
    operator: Operator,
    pki: Option<Pki>,
    dir: TempDir,
}

/// A projected volume with a token, as the kubelet writes it: the token is a link into `..data`,
/// and `..data` is a link to a folder.
struct Volume(TempDir);

impl Volume {
    fn new(token: &str) -> Result<Self> {
        let volume = Self(tempfile::tempdir()?);
        volume.renew(token)?;
        symlink("..data/token", volume.file("token"))?;
        Ok(volume)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn renew(&self, token: &str) -> Result<()> {
        let version = tempfile::Builder::new()
            .prefix("..v")
            .tempdir_in(self.0.path())?
            .keep();
        fs::write(version.join("token"), token)?;
        let next = self.file("..data_tmp");
        symlink(version.file_name().context("a name")?, &next)?;
        fs::rename(next, self.file("..data"))?;
        Ok(())
    }
}

fn token(server: &ApiServer, namespace: &str, audience: &str) -> Result<String> {
    let (space, audience) = (format!("-n={namespace}"), format!("--audience={audience}"));
    let create = ["create", "token", "default", &space, &audience];
    // A service account is created a moment after its namespace.
    let token = until("the token", || {
        server.kubectl(&create).map_err(|e| format!("{e:#}"))
    })?;
    Ok(token.trim().to_owned())
}

impl Rig {
    /// Starts an Envoy that claims to be a Pod of `namespace` with `app=search`, and proves its
    /// namespace with `identity`.
    fn envoy(&self, name: &str, namespace: &str, identity: Vec<String>) -> Result<EnvoyProcess> {
        let output = self.dir.path().join(format!("{name}.yaml"));
        let mut arguments: Vec<String> = [
            "bootstrap",
            "--listen=127.0.0.1:0",
            "--admin=127.0.0.1:0",
            "--upstream=127.0.0.1:1",
            "--label=app=search",
        ]
        .map(str::to_owned)
        .into();
        arguments.push(format!("--xds={}", self.operator.xds()));
        arguments.push(format!("--namespace={namespace}"));
        arguments.push(format!("--node-id={name}"));
        arguments.push(format!("--output={}", output.display()));
        arguments.extend(identity);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        headgate::run_command(&arguments)?;
        EnvoyProcess::start(&Bootstrap::parse(&fs::read_to_string(output)?)?, 1)
    }

    fn by_token(&self, name: &str, namespace: &str, volume: &Volume) -> Result<EnvoyProcess> {
        let pki = self.pki.as_ref().context("no PKI")?;
        let mut identity = pki.server_arguments();
        identity.push(format!("--xds-token={}", volume.file("token").display()));
        self.envoy(name, namespace, identity)
    }

    /// Waits until the proxy runs the policies of `namespace`, and the operator's status has its
    /// namespace as proved.
    fn until_runs(&self, name: &str, namespace: &str) -> Result<()> {
        let policies = [format!("{namespace}/search")];
        until_within(LONG, &format!("{name} to run {policies:?}"), || {
            let status = self.operator.status().map_err(|e| e.to_string())?;
            let proxies = status["proxies"].as_array().into_iter().flatten();
            let found = proxies
                .into_iter()
                .find(|p| p["node"] == name && p["state"] == "Running");
            let id = format!("spiffe://cluster.local/ns/{namespace}/sa/default");
            let runs =
                |p: &Value| p["policies"] == Value::from(&policies[..]) && p["certificate"] == id;
            match found.is_some_and(runs) {
                true => Ok(()),
                false => Err(format!("{status}\n{}", self.operator.child().tail())),
            }
        })
    }
}

/// Waits until Envoy has logged `what`. In this log, gRPC escapes spaces and quotes.
fn until_said(envoy: &EnvoyProcess, what: &str) -> Result<()> {
    until_within(LONG, what, || {
        let output = envoy.output().replace("%20", " ").replace("%22", "\"");
        match output.contains(what) {
            true => Ok(()),
            false => Err(output),
        }
    })
}

#[test]
fn a_token_is_an_identity_that_the_kubelet_renews() -> Result<()> {
    // The test stops its API server, so it can't share the server of other tests.
    let server = &ApiServer::start()?;
    server.install_crds()?;
    let cluster = Cluster::new(server);
    let system = cluster.namespace("system")?;
    let (shop, bank) = (cluster.namespace("shop")?, cluster.namespace("bank")?);
    for space in [&shop, &bank] {
        cluster.apply(&service(space, "search", "app=search"))?;
        cluster.apply(&policy(space, "search", "Service", "search", 4))?;
    }
    let dir = tempfile::tempdir()?;
    let pki = Pki::new(dir.path().join("pki"))?;
    let mut options = OperatorOptions::new("tokens", &system);
    options.extra = pki.operator_arguments();
    let certified = pki.proxy_arguments(&shop)?;
    let kubeconfig = server.user_kubeconfig("tokens", Some("system:masters"))?;
    let operator = Operator::start(&kubeconfig, &options)?;
    let rig = Rig {
        operator,
        pki: Some(pki),
        dir,
    };

    // A proxy with a token gets the policies of the token's namespace. A proxy with a certificate
    // gets those of the certificate's namespace.
    let of_shop = Volume::new(&token(server, &shop, "headgate")?)?;
    let of_bank = Volume::new(&token(server, &bank, "headgate")?)?;
    let _shop = rig.by_token("of-shop", &shop, &of_shop)?;
    rig.until_runs("of-shop", &shop)?;
    let _bank = rig.by_token("of-bank", &bank, &of_bank)?;
    rig.until_runs("of-bank", &bank)?;
    let _certified = rig.envoy("certified", &shop, certified)?;
    rig.until_runs("certified", &shop)?;

    // The operator refuses, with a reason, claims of another namespace and tokens for another
    // audience.
    let thief = rig.by_token("thief", &bank, &of_shop)?;
    until_said(
        &thief,
        "correct the metadata, or give the proxy an identity of namespace",
    )?;
    drop(thief);
    let late = Volume::new(&token(server, &shop, "elsewhere")?)?;
    let envoy = rig.by_token("late", &shop, &late)?;
    until_said(&envoy, "the API server doesn't accept the token")?;
    until_said(
        &envoy,
        "needs a token of its service account for audience \"headgate\"",
    )?;

    // Envoy uses a renewed token without a restart.
    late.renew(&token(server, &shop, "headgate")?)?;
    rig.until_runs("late", &shop)?;

    // While the API server is unreachable, a proxy with a reviewed token may connect. A proxy with
    // a new token has to wait.
    let new = Volume::new(&token(server, &bank, "headgate")?)?;
    server.stop_api_server()?;
    let _again = rig.by_token("again", &shop, &of_shop)?;
    rig.until_runs("again", &shop)?;
    let waiting = rig.by_token("waiting", &bank, &new)?;
    until_said(&waiting, "the API server can't review the token")?;
    for (name, space) in [
        ("of-shop", &shop),
        ("of-bank", &bank),
        ("certified", &shop),
        ("late", &shop),
    ] {
        rig.until_runs(name, space)?;
    }
    server.start_api_server()?;
    rig.until_runs("waiting", &bank)?;
    let refused = rig
        .operator
        .metric("headgate_xds_streams_refused_total", &[])?;
    ensure!(refused >= 3.0, "{refused}");
    Ok(())
}

/// Users create no certificates: two operators create and publish one CA, and a proxy needs only
/// its token.
#[test]
fn operators_make_a_ca_and_publish_it_in_each_namespace() -> Result<()> {
    let server = ApiServer::shared();
    server.install_crds()?;
    let cluster = Cluster::new(server);
    let (system, shop) = (cluster.namespace("system")?, cluster.namespace("shop")?);
    cluster.apply(&service(&shop, "search", "app=search"))?;
    cluster.apply(&policy(&shop, "search", "Service", "search", 4))?;
    let dir = tempfile::tempdir()?;
    let kubeconfig = server.user_kubeconfig("authority", Some("system:masters"))?;
    let start = |name: &str| {
        let mut options = OperatorOptions::new(name, &system);
        let own = dir.path().join(name);
        fs::create_dir(&own)?;
        let file =
            |argument: &str, file: &str| format!("--{argument}={}", own.join(file).display());
        options.extra = vec![
            file("tls-cert", "tls.crt"),
            file("tls-key", "tls.key"),
            file("client-ca", "ca.crt"),
            "--tls-authority=headgate-ca".to_owned(),
            "--tls-name=127.0.0.1".to_owned(),
            "--publish-ca=headgate-ca".to_owned(),
        ];
        Operator::start(&kubeconfig, &options)
    };
    let (first, second) = std::thread::scope(|scope| {
        let other = scope.spawn(|| start("second"));
        (start("first"), other.join())
    });
    let (first, second) = (first?, second.map_err(|_| anyhow!("it panicked"))??);
    let published = |namespace: &str| {
        until_within(LONG, &format!("the CA in {namespace}"), || {
            let space = format!("-n={namespace}");
            let data = "-o=jsonpath={.data.ca\\.crt}";
            let found = server.kubectl(&["get", "configmap", "headgate-ca", &space, data]);
            found.map_err(|error| format!("{error:#}\n{}\n{}", first.output(), second.output()))
        })
    };
    let ca = published(&shop)?;
    ensure!(published(&cluster.namespace("later")?)? == ca, "another CA");
    server.kubectl(&["delete", "configmap", "headgate-ca", &format!("-n={shop}")])?;
    ensure!(published(&shop)? == ca, "another CA");

    let file = dir.path().join("ca.crt");
    fs::write(&file, &ca)?;
    let volume = Volume::new(&token(server, &shop, "headgate")?)?;
    for operator in [first, second] {
        let rig = Rig {
            operator,
            pki: None,
            dir: tempfile::tempdir()?,
        };
        let identity = vec![
            format!("--xds-tls-ca={}", file.display()),
            format!("--xds-token={}", volume.file("token").display()),
        ];
        let _envoy = rig.envoy("proxy", &shop, identity)?;
        rig.until_runs("proxy", &shop)?;
    }
    Ok(())
}
