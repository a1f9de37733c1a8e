//! Tests of the identity of a request from Envoy's own data: dynamic metadata, and the certificate
//! of the peer.

use anyhow::{Result, ensure};
use headgate_core::config::FilterConfig;
use headgate_tests::bootstrap::Bootstrap;
use headgate_tests::wait::{lock_machine, until};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose, SanType,
};
use serde_json::{Value, json};

use super::app::{App, Behaviour};
use super::sidecar::{Sidecar, inbound, outbound, workflows};

#[test]
fn a_workflow_comes_from_metadata_or_from_the_type() -> Result<()> {
    let _lock = lock_machine()?;
    let mut by_metadata = workflows();
    by_metadata["identify"] = json!([
        {"type": "Metadata", "path": ["test.claims", "tenant"]},
        {"type": "Metadata", "path": ["test.claims", "number"]},
        {"type": "Type"},
    ]);
    let app = App::start(Behaviour::default())?;
    // A filter before Headgate puts claims into metadata, as the one for JWTs does.
    let rule = |header: &str, key: &str, kind: &str| {
        json!({
            "header": header,
            "on_header_present": {"metadata_namespace": "test.claims", "key": key, "type": kind},
        })
    };
    let claims = json!({
        "name": "claims",
        "typed_config": {
            "@type":
                "type.googleapis.com/envoy.extensions.filters.http.header_to_metadata.v3.Config",
            "request_rules": [
                rule("x-tenant", "tenant", "STRING"),
                rule("x-number", "number", "NUMBER"),
            ],
        },
    });
    let sidecar = Sidecar::start(app.addr, &inbound(&by_metadata)?, None, |bootstrap| {
        bootstrap.prepend_filter(claims)
    })?;
    for (path, headers, workflow) in [
        ("/", &[("x-tenant", "acme")][..], "acme"),
        ("/", &[("x-number", "4711")], "4711"),
        ("/search", &[], "search"),
        // The client's own header is not among the sources in this test.
        ("/", &[("baggage", "workflow=stolen")], "default"),
    ] {
        ensure!(sidecar.get(path, headers)?.status == 200);
        sidecar.wait_for(workflow, "rq_offered", 1)?;
    }
    sidecar.check()
}

/// The SPIFFE ids of two processes of the mesh.
const FRONT: &str = "spiffe://mesh.test/ns/shop/sa/front";
const BACK: &str = "spiffe://mesh.test/ns/shop/sa/back";

/// The CA of a mesh.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn create() -> Result<Self> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "mesh");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        Ok(Self(CertifiedIssuer::self_signed(
            params,
            KeyPair::generate()?,
        )?))
    }

    /// Returns a TLS context of Envoy that proves the identity `id` and requires the identity `of`
    /// from the peer.
    fn context(&self, id: &str, of: &str) -> Result<Value> {
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![SanType::URI(id.try_into()?)];
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.0)?;
        let text = |pem: String| json!({"inline_string": pem});
        let mut context = json!({
            "@type": format!("type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.{of}"),
            "common_tls_context": {
                "tls_certificates": [{
                    "certificate_chain": text(certificate.pem()),
                    "private_key": text(key.serialize_pem()),
                }],
                "validation_context": {"trusted_ca": text(self.0.pem())},
            },
        });
        if of == "DownstreamTlsContext" {
            context["require_client_certificate"] = json!(true);
        }
        Ok(json!({"name": "envoy.transport_sockets.tls", "typed_config": context}))
    }
}

/// Returns the configuration of [`workflows`], with peers that match these patterns.
fn of_peers(peers: &[&str]) -> Result<FilterConfig> {
    let mut workflows = workflows();
    workflows["peers"] = json!(peers);
    inbound(&workflows)
}

#[test]
fn headers_count_from_peers_with_a_proven_identity() -> Result<()> {
    let _lock = lock_machine()?;
    let authority = Authority::create()?;
    let (a, b) = (
        App::start(Behaviour::default())?,
        App::start(Behaviour::default())?,
    );
    let tls = authority.context(BACK, "DownstreamTlsContext")?;
    let limit = |mut config: FilterConfig| {
        for stage in &mut config.stages {
            if let Some(workflows) = &mut stage.workflows {
                workflows.sharing = headgate_core::config::SharingConfig::StaticGuarantees;
                let bulk = headgate_core::config::WorkflowConfig {
                    guarantee: Some(5.0),
                    ..Default::default()
                };
                workflows.workflows.insert("bulk".into(), bulk);
            }
        }
        config
    };
    let secure = |bootstrap: &mut Bootstrap| {
        let listener = &mut bootstrap.root()["static_resources"]["listeners"][0];
        listener["filter_chains"][0]["transport_socket"] = tls;
        Ok(())
    };
    let back = Sidecar::start(
        b.addr,
        &limit(of_peers(&["spiffe://mesh.test/ns/shop/*"])?),
        None,
        secure,
    )?;
    let tls = authority.context(FRONT, "UpstreamTlsContext")?;
    let calls = outbound(&json!({"peers": [BACK]}))?;
    let front = Sidecar::start(
        a.addr,
        &inbound(&workflows())?,
        Some((&calls, &[("b", back.addr)])),
        |bootstrap| {
            bootstrap.cluster("b")?["transport_socket"] = tls;
            Ok(())
        },
    )?;
    a.behave(Behaviour {
        calls: front.outbound.map(|addr| (addr, vec!["b"])),
        // Only Headgate's header carries the id, so the id depends on trust.
        copies: vec!["x-headgate-request"],
        answers: Vec::new(),
    });
    let bulk = [("x-headgate-workflow", "bulk")];
    let limited = || {
        until("the rate of a believed process", || {
            let answer = front.get("/bulk", &bulk).map_err(|e| e.to_string())?;
            // The refusal is by the proxy of `a`. A refusal by the proxy of `b` would pass through
            // `a` without a reason.
            let limited = answer.refusal_reason() == Some("rate_limit");
            limited
                .then_some(())
                .ok_or_else(|| format!("{} {:?} {:?}", answer.status, front.stats(), back.stats()))
        })
    };
    limited()?;
    let believed = back.wait_for("bulk", "rq_offered", 1)?;

    // Both proxies now expect another peer. The proxy of `b` ignores the headers of `a`, and the
    // proxy of `a` ignores those of `b`.
    back.configure(headgate_xds::DEFAULT_SLOT, &limit(of_peers(&[BACK])?))?;
    front.configure(
        headgate_xds::OUTBOUND_SLOT,
        &outbound(&json!({"peers": [FRONT]}))?,
    )?;
    front.wait_for_rate_above("bulk", 50)?;
    front.wait_until_served("/bulk", &bulk)?;
    let before = back.workflow_stat("_other", "rq_offered")?;
    let known = back.workflow_stat("bulk", "rq_offered")?;
    ensure!(known >= believed);
    for _ in 0..20 {
        let answer = front.get("/bulk", &bulk)?;
        ensure!(answer.status == 200, "{answer:?}");
        ensure!(b.last("/bulk")?.header("x-headgate-process").is_none());
    }
    back.wait_for("_other", "rq_offered", before + 20)?;
    ensure!(back.workflow_stat("bulk", "rq_offered")? == known);
    front.check()?;
    back.check()
}
