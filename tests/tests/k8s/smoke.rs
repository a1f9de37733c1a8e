//! The API server of the tests itself. The conclusions of other tests depend on these tests.

use anyhow::Result;
use headgate_tests::kube::ApiServer;
use headgate_tests::wait::until;

const DEPLOYMENT: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: search}
spec:
  replicas: 2
  selector: {matchLabels: {app: search}}
  template:
    metadata: {labels: {app: search}}
    spec: {containers: [{name: search, image: example.com/search:1}]}
";

#[test]
fn controllers_make_pods_and_the_garbage_collector_removes_them() -> Result<()> {
    let server = ApiServer::shared();
    let namespace = server.namespace("pods")?;
    let space = format!("--namespace={namespace}");
    let pods = || {
        let names = server.kubectl(&["get", "pods", &space, "--output=name"])?;
        Ok::<_, anyhow::Error>(names.lines().count())
    };
    let expect = |wanted: usize| {
        until("Pods", || match pods() {
            Ok(count) if count == wanted => Ok(()),
            other => Err(format!("{other:?}")),
        })
    };
    until("the namespace's service account", || {
        server
            .kubectl(&["get", "serviceaccount", "default", &space])
            .map_err(|e| e.to_string())
    })?;
    server.kubectl_as(
        server.kubeconfig(),
        &["apply", &space, "--filename=-"],
        Some(DEPLOYMENT),
    )?;
    expect(2)?;
    server.kubectl(&["delete", "deployment", "search", &space])?;
    expect(0)
}

#[test]
fn rbac_refuses_what_was_not_granted_and_the_audit_log_says_who_asked() -> Result<()> {
    let server = ApiServer::shared();
    let namespace = server.namespace("rbac")?;
    let space = format!("--namespace={namespace}");
    server.kubectl(&["create", "serviceaccount", "reader", &space])?;
    let grants: [&[&str]; 2] = [
        &[
            "create",
            "role",
            "reader",
            "--verb=list",
            "--resource=services",
            &space,
        ],
        &[
            "create",
            "rolebinding",
            "reader",
            "--role=reader",
            &format!("--serviceaccount={namespace}:reader"),
            &space,
        ],
    ];
    for grant in grants {
        server.kubectl(grant)?;
    }
    let nobody = server.user_kubeconfig("nobody", Some("nobodies"))?;
    let reader = server.service_account_kubeconfig(&namespace, "reader")?;
    let ask = |kubeconfig, resource| {
        server.kubectl_as(
            kubeconfig,
            &["get", resource, &space, "--output=name"],
            None,
        )
    };

    let mark = server.audit_mark();
    let refusal = format!("{:#}", ask(&nobody, "services").unwrap_err());
    assert!(
        refusal.contains("Forbidden") && refusal.contains("\"nobody\""),
        "{refusal}"
    );
    // An authorizer learns of a new binding through a watch.
    until("the role to count", || {
        ask(&reader, "services").map_err(|e| format!("{e:#}"))
    })?;
    let refusal = format!("{:#}", ask(&reader, "pods").unwrap_err());
    assert!(refusal.contains("Forbidden"), "{refusal}");

    let account = format!("system:serviceaccount:{namespace}:reader");
    until("the requests in the audit log", || {
        let events = server.audit(mark).map_err(|e| format!("{e:#}"))?;
        let logged = |user: &str, resource: &str, code: u16| {
            events.iter().any(|event| {
                (event.user.as_str(), event.verb.as_str()) == (user, "list")
                    && (event.resource.as_str(), event.code) == (resource, code)
                    && event.namespace == namespace
            })
        };
        let all = logged("nobody", "services", 403)
            && logged(&account, "services", 200)
            && logged(&account, "pods", 403);
        if all {
            Ok(())
        } else {
            Err(format!("{events:#?}"))
        }
    })
}

#[test]
fn written_objects_survive_a_restart_and_a_pause_of_etcd() -> Result<()> {
    let server = ApiServer::start()?;
    let get = || server.kubectl(&["get", "configmap", "kept", "--output=jsonpath={.data.a}"]);
    server.kubectl(&["create", "configmap", "kept", "--from-literal=a=1"])?;

    server.stop_api_server()?;
    assert!(get().is_err(), "nobody should answer");
    server.start_api_server()?;
    assert_eq!(get()?, "1");

    server.pause_etcd();
    let write = ["create", "configmap", "late", "--request-timeout=1s"];
    assert!(server.kubectl(&write).is_err(), "a write without etcd");
    server.resume_etcd();
    until("etcd to be back", || {
        let write = ["annotate", "configmap", "kept", "a=b", "--overwrite"];
        server.kubectl(&write).map_err(|e| format!("{e:#}"))
    })?;
    assert_eq!(get()?, "1");
    Ok(())
}

#[test]
fn the_repositorys_crds_are_served() -> Result<()> {
    let server = ApiServer::shared();
    server.install_crds()?;
    let columns = server.kubectl(&["get", "admissionpolicies", "--all-namespaces"])?;
    assert_eq!(columns.trim(), "");
    let taught = server.kubectl(&["explain", "admissionpolicies.spec"])?;
    assert!(taught.contains("targetRefs"), "{taught}");
    Ok(())
}
