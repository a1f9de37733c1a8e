#!/usr/bin/env bash
# Usage: examples/sidecar/kind.sh [CLUSTER]
#
# Runs the example of this folder on a kind cluster of its own (default name: headgate): builds the
# images, creates the cluster, installs the chart and the service, and shows the policy in force.
# Another run updates all of it. kind delete cluster --name headgate removes everything.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
  awk 'NR > 1 { if (!/^#/) exit; sub(/^# ?/, ""); print }' examples/sidecar/kind.sh
  exit 0
fi
cluster=${1:-headgate}

say() { printf '==> %s\n' "$*" >&2; }
need() {
  command -v "$1" >/dev/null 2>&1 || {
    printf 'error: %s not found: %s\n' "$1" "$2" >&2
    exit 1
  }
}
need docker "install Docker; kind's nodes are its containers"
need kind "install it as https://kind.sigs.k8s.io says"
need kubectl "install it as https://kubernetes.io/docs/tasks/tools says"
need helm "install it as https://helm.sh/docs/intro/install says"

say "Building the command line and the images"
scripts/build operator
scripts/build test-images

if ! kind get clusters 2>/dev/null | grep -qx "$cluster"; then
  say "Making the cluster $cluster"
  kind create cluster --name "$cluster" --config examples/sidecar/kind.yaml --wait 120s
fi
# Commands use this cluster, independent of the current context.
kubectl() { command kubectl --context "kind-$cluster" "$@"; }
helm() { command helm --kube-context "kind-$cluster" "$@"; }

say "Loading the images"
kind load image-archive dist/headgate-image.tar --name "$cluster"
kind load image-archive dist/headgate-backend-image.tar --name "$cluster"

say "Installing Headgate"
helm upgrade --install headgate charts/headgate --namespace headgate-system --create-namespace \
  --set image.tag=dev --wait --timeout 3m
# The images keep their names, so only a restart makes Pods use the ones just loaded.
kubectl --namespace headgate-system rollout restart deployment/headgate
kubectl --namespace headgate-system rollout status deployment/headgate --timeout=3m

say "Installing the service"
kubectl create namespace shop --dry-run=client --output=yaml | kubectl apply -f -
dist/headgate inject --image headgate:dev examples/sidecar/search.yaml | kubectl apply -f -
kubectl apply -f examples/sidecar/policy.yaml
kubectl --namespace shop rollout status deployment/search --timeout=3m
kubectl --namespace shop wait --for=condition=Programmed admissionpolicy/search --timeout=60s
kubectl --namespace shop get admissionpolicies

say "Next, an overload of a minute, and what became of it:"
cat <<'NEXT'
kubectl apply -f examples/sidecar/load.yaml
kubectl --namespace shop wait --for=condition=Complete job/load --timeout=120s
kubectl --namespace shop logs job/load
NEXT
