//! Configuration files of the node's programs.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::super::control_plane::POD_RANGE;
use super::{NODE_ADDRESS, NODE_NAME};

/// The range of addresses of the Pods on this node, a part of [`POD_RANGE`].
const NODE_PODS: &str = "10.244.0.0/24";

/// Writes all files into `dir`.
pub(super) fn write(
    dir: &Path,
    cgroup: &str,
    environment: &BTreeMap<String, String>,
) -> Result<()> {
    fs::create_dir_all(dir.join("cni"))?;
    fs::create_dir_all(dir.join("kubelet"))?;
    let plugins = environment
        .get("CNI_BIN_DIR")
        .context("no CNI_BIN_DIR from scripts/get-node-tools")?;
    let dir_name = dir.display().to_string();
    for (name, text) in [
        ("containerd.toml", CONTAINERD),
        ("cni/10-pods.conflist", CNI),
        ("kubelet.yaml", KUBELET),
        ("kube-proxy.yaml", KUBE_PROXY),
        ("Corefile", COREFILE),
        ("resolv.conf", RESOLV_CONF),
    ] {
        let text = text
            .replace("@DIR@", &dir_name)
            .replace("@NODE@", NODE_NAME)
            .replace("@ADDRESS@", &NODE_ADDRESS.to_string())
            .replace("@CGROUP@", cgroup)
            .replace("@PLUGINS@", plugins)
            .replace("@NODE_PODS@", NODE_PODS)
            .replace("@PODS@", POD_RANGE);
        fs::write(dir.join(name), text)?;
    }
    Ok(())
}

/// The configuration of containerd. A test machine may itself be a container, in which no process
/// may lower its OOM score. Therefore `restrict_oom_score_adj` is set.
const CONTAINERD: &str = r#"version = 2
root = "@DIR@/containerd/root"
state = "@DIR@/containerd/state"
[grpc]
  address = "@DIR@/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "headgate.test/pause:1"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "@PLUGINS@"
    conf_dir = "@DIR@/cni"
"#;

const CNI: &str = r#"{"cniVersion": "0.4.0", "name": "pods", "plugins": [
  {"type": "bridge", "bridge": "pods", "isGateway": true, "ipMasq": false, "hairpinMode": true,
   "ipam": {"type": "host-local", "dataDir": "@DIR@/addresses",
            "ranges": [[{"subnet": "@NODE_PODS@"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}
]}
"#;

const KUBELET: &str = "apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: @ADDRESS@
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: true}
  x509: {clientCAFile: @DIR@/pki/ca.crt}
authorization: {mode: Webhook}
tlsCertFile: @DIR@/pki/kubelet-server.crt
tlsPrivateKeyFile: @DIR@/pki/kubelet-server.key
containerRuntimeEndpoint: unix://@DIR@/containerd.sock
cgroupDriver: cgroupfs
cgroupRoot: /@CGROUP@
failCgroupV1: false
failSwapOn: false
clusterDNS: [@ADDRESS@]
clusterDomain: cluster.local
resolvConf: @DIR@/resolv.conf
podLogsDir: @DIR@/pod-logs
volumePluginDir: @DIR@/volume-plugins
healthzBindAddress: 127.0.0.1
# Tests wait for what the kubelet does; it needn't be gentle to an API server with one node.
kubeAPIQPS: 200
kubeAPIBurst: 400
syncFrequency: 10s
evictionHard: {nodefs.available: 1%, imagefs.available: 1%, memory.available: 100Mi}
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
";

const KUBE_PROXY: &str = "apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
bindAddress: @ADDRESS@
healthzBindAddress: 127.0.0.1:10256
metricsBindAddress: 127.0.0.1:10249
clusterCIDR: @PODS@
hostnameOverride: @NODE@
clientConnection: {kubeconfig: @DIR@/pki/kube-proxy.kubeconfig}
# The machine's connection tracking isn't the node's to tune.
conntrack: {maxPerCore: 0, min: 0}
";

const COREFILE: &str = "cluster.local:53 {
  bind @ADDRESS@
  errors
  kubernetes cluster.local {
    kubeconfig @DIR@/pki/admin.kubeconfig
    ttl 5
  }
}
";

const RESOLV_CONF: &str = "nameserver @ADDRESS@\n";
