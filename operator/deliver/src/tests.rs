//! A small cluster for this module's tests.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use headgate_core::config::{FilterConfig, OutboundConfig, StageConfig};

use crate::adapter::Adapter;
use crate::cluster::{Cluster, Gateway, ObjectKey, Pod, PolicyObject, Route};
use crate::installed::Installed;
use crate::settings::Settings;
use crate::{envoy_gateway, istio};
use headgate_api::plan::{
    Attachment, Endpoints, GATEWAY_NAME_LABEL, Plan, ProxySelector, Share, TargetRef,
};
use headgate_api::validate::{Slots, check_file};
use headgate_fakes::accepted;

/// A plan and its cluster, built step by step.
#[derive(Default)]
pub(crate) struct Example {
    pub(crate) cluster: Cluster,
    pub(crate) plan: Plan,
}

/// The SHA-256 of a module.
pub(crate) const SHA256: &str = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";

pub(crate) fn settings() -> Settings {
    Settings {
        retry: std::time::Duration::from_secs(1),
        refused_retry: std::time::Duration::from_secs(1),
        ..super::settings::tests::settings(&[]).unwrap()
    }
}

pub(crate) fn installed() -> Installed {
    Installed {
        served: BTreeSet::from([Adapter::Istio, Adapter::EnvoyGateway]),
        classes: BTreeMap::from([
            ("istio".to_owned(), istio::CONTROLLER.to_owned()),
            ("eg".to_owned(), envoy_gateway::CONTROLLER.to_owned()),
            ("other".to_owned(), "example.com/controller".to_owned()),
        ]),
    }
}

pub(crate) fn labels(text: &str) -> BTreeMap<String, String> {
    let pairs = text.split(',').filter_map(|pair| pair.split_once('='));
    pairs.map(|(k, v)| (k.to_owned(), v.to_owned())).collect()
}

/// Returns the stage of the quick start's policy, under another name.
pub(crate) fn stage(policy: &str, routes: &[&str]) -> StageConfig {
    let file = include_bytes!("../../../examples/quickstart/policy.yaml");
    let report = check_file("policy.yaml", file);
    let mut stage = report.policies().next().unwrap().stage.clone();
    stage.policy = policy.to_owned();
    stage.parallelism = 4;
    stage.routes = routes.iter().map(|&r| r.to_owned()).collect();
    stage
}

impl Example {
    /// Adds a policy that is accepted and attached at `target` to the proxies in `namespace` with
    /// the labels `labelled`.
    pub(crate) fn policy(
        mut self,
        policy: &str,
        target: &str,
        (namespace, labelled): (&str, &str),
        routes: &[&str],
    ) -> Self {
        let target: TargetRef = target.parse().unwrap();
        let stage = stage(policy, routes);
        self.attach(Attachment {
            target: target.clone(),
            proxies: ProxySelector {
                namespace: namespace.to_owned(),
                labels: labels(labelled),
            },
            stage: Arc::new(stage.clone()),
            share: Share {
                slots: Slots::Total(4),
                proxies: 0,
                endpoints: Endpoints::Own,
            },
        });
        self.plan.in_cluster = true;
        self.plan.workloads.insert(
            target.clone(),
            Arc::new(FilterConfig {
                revision: "claimed".to_owned(),
                stages: vec![stage],
                ..FilterConfig::default()
            }),
        );
        let key: ObjectKey = policy.parse().unwrap();
        let uid = format!("uid-of-{}", key.name);
        Arc::make_mut(&mut self.cluster.policies).insert(
            key,
            PolicyObject {
                uid,
                generation: 1,
                created: None,
                targets: vec![target.clone()],
                accepted: Ok(()),
                effective: None,
            }
            .into(),
        );
        self.plan.policies.push(accepted(policy, vec![target]));
        self
    }

    /// Adds workflows, and an outbound configuration, to the only policy.
    pub(crate) fn with_workflows(mut self) -> Self {
        let file = include_bytes!("../../../examples/policies/workflows.yaml");
        let report = check_file("policy.yaml", file);
        let policy = report.policies().next().unwrap().clone();
        let mut attachment = self.plan.attachments[0].clone();
        let mut stage = (*attachment.stage).clone();
        stage.workflows = policy.stage.workflows.clone();
        let calls = headgate_api::compile::outbound(OutboundConfig {
            policy: stage.policy.clone(),
            ..policy.outbound.unwrap()
        });
        self.plan
            .outbound
            .insert(stage.policy.clone(), Arc::new(calls));
        attachment.stage = Arc::new(stage);
        self.plan.attachments = vec![attachment].into();
        self
    }

    /// Adds an attachment, with less precedence than the existing attachments.
    pub(crate) fn attach(&mut self, attachment: Attachment) {
        let mut all = self.plan.attachments.to_vec();
        all.push(attachment);
        self.plan.attachments = all.into();
    }

    /// Adds a policy of a Gateway's proxies.
    pub(crate) fn at_gateway(
        self,
        policy: &str,
        target: &str,
        gateway: &str,
        routes: &[&str],
    ) -> Self {
        let (namespace, name) = gateway.split_once('/').unwrap();
        let label = format!("{GATEWAY_NAME_LABEL}={name}");
        self.policy(policy, target, (namespace, &label), routes)
    }

    pub(crate) fn gateway(mut self, gateway: &str, class: &str) -> Self {
        let class = class.to_owned();
        Arc::make_mut(&mut self.cluster.gateways).insert(
            gateway.parse().unwrap(),
            Gateway {
                class,
                ..Gateway::default()
            },
        );
        self
    }

    pub(crate) fn route(mut self, route: &str, gateways: &[&str]) -> Self {
        let route_at = Route {
            gateways: gateways.iter().map(|g| g.parse().unwrap()).collect(),
            ..Route::default()
        };
        Arc::make_mut(&mut self.cluster.routes).insert(route.parse().unwrap(), route_at);
        self
    }

    /// Adds a Pod that mounts this ConfigMap.
    pub(crate) fn mounting(self, namespace: &str, name: &str, config_map: &str) -> Self {
        let mut example = self.pod(namespace, name, "app=file");
        let pod = ObjectKey::new(namespace, name);
        let pod = Arc::make_mut(&mut example.cluster.pods).get_mut(&pod);
        pod.unwrap().config_maps.push(config_map.to_owned());
        example
    }

    pub(crate) fn pod(mut self, namespace: &str, name: &str, labelled: &str) -> Self {
        let pod = Pod {
            labels: labels(labelled),
            ready: true,
            ..Pod::default()
        };
        Arc::make_mut(&mut self.cluster.pods).insert(ObjectKey::new(namespace, name), pod);
        self
    }
}
