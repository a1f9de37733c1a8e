//! `headgate certificate` with a CA in a Secret of a real API server, as a user would.

use anyhow::Result;
use headgate_tests::headgate;
use headgate_tests::kube::ApiServer;
use serde_json::Value;

fn secret(server: &ApiServer, namespace: &str, name: &str) -> Result<Value> {
    let space = format!("--namespace={namespace}");
    let json = server.kubectl(&["get", "secret", name, &space, "--output=json"])?;
    Ok(serde_json::from_str(&json)?)
}

#[test]
fn certificates_are_issued_from_the_secret_that_the_user_can_read() -> Result<()> {
    let server = ApiServer::shared();
    let (system, shop) = (server.namespace("system")?, server.namespace("shop")?);
    let authority = headgate::run_command(&["certificate", "ca", "--namespace", &system])?;
    server.apply(&authority)?;

    let ca_secret = format!("{system}/headgate-ca");
    let kubeconfig = server.kubeconfig().display().to_string();
    let issue = |kind: &str, namespace: &str, ca: &str, kubeconfig: &str| {
        headgate::run_command(&[
            "certificate",
            kind,
            "--namespace",
            namespace,
            "--ca-secret",
            ca,
            "--kubeconfig",
            kubeconfig,
        ])
    };
    server.apply(&issue("proxy", &shop, &ca_secret, &kubeconfig)?)?;
    server.apply(&issue("server", &system, &ca_secret, &kubeconfig)?)?;
    let ca = secret(server, &system, "headgate-ca")?;
    let of_proxy = secret(server, &shop, "headgate-proxy-tls")?;
    let of_server = secret(server, &system, "headgate-xds-tls")?;
    for issued in [&of_proxy, &of_server] {
        assert_eq!(issued["type"], "kubernetes.io/tls");
        assert_eq!(issued["data"]["ca.crt"], ca["data"]["tls.crt"]);
        assert_ne!(issued["data"]["tls.crt"], ca["data"]["tls.crt"]);
    }

    let missing = issue("proxy", &shop, &format!("{shop}/headgate-ca"), &kubeconfig);
    let missing = format!("{:#}", missing.unwrap_err());
    assert!(
        missing.contains("no such Secret; the chart makes it"),
        "{missing}"
    );
    let nobody = server.user_kubeconfig("somebody", None)?;
    let denied = issue("proxy", &shop, &ca_secret, &nobody.display().to_string());
    let denied = format!("{:#}", denied.unwrap_err());
    assert!(
        denied.contains("somebody") && denied.contains("certificates for every namespace"),
        "{denied}"
    );
    Ok(())
}
