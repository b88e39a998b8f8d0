#!/usr/bin/env bash
# A Job, a JobSet and a TrainingJob share the quota of one queue; `muster jobs` says who waits for whom.
# Needs a cluster with Muster (chart value queuedKinds: [Job, JobSet]), JobSet's controller and a flavor `default`. It uses a
# namespace and a queue of its own and deletes them at the end.
set -euo pipefail
cd "$(dirname "$0")"

heading() { printf '\n\033[1m%s\033[0m\n' "$*"; }
jobs() { ${MUSTER:-muster} --kubeconfig "${KUBECONFIG:-$HOME/.kube/config}" jobs --namespace muster-shared; }
clean_up() {
  kubectl delete --ignore-not-found --timeout=120s namespace muster-shared > /dev/null
  kubectl delete --ignore-not-found --timeout=120s -f queue.yaml > /dev/null
}
# Wait until the object of a Workload is in a phase.
phase() {
  local i
  for i in $(seq 600); do
    kubectl --namespace muster-shared get mw \
      -o jsonpath='{range .items[*]}{.spec.objectRef.name}={.status.phase}{"\n"}{end}' | grep -qx "$1=$2" && return
    sleep 0.5
  done
  echo "$1 is not $2" >&2
  jobs >&2
  return 1
}
trap clean_up EXIT

heading "A namespace whose labelled objects queue, and a queue of one CPU"
kubectl create namespace muster-shared
kubectl label namespace muster-shared muster.dev/queueing=enabled
kubectl apply -f queue.yaml

heading "The Job is admitted; the JobSet waits for it, and the TrainingJob behind the JobSet"
kubectl apply -f job.yaml
phase job Running
kubectl apply -f jobset.yaml
phase jobset Pending
sleep 2 # times of creation are in seconds: the TrainingJob comes after the JobSet
kubectl apply -f trainingjob.yaml
kubectl --namespace muster-shared wait tj/training --for=jsonpath='{.status.queuePosition}'=2 --timeout=120s
jobs

heading "Each gets its turn"
phase job Succeeded
phase jobset Running
jobs
phase jobset Succeeded
kubectl --namespace muster-shared wait tj/training --for=condition=Complete --timeout=300s
jobs
echo "all three have run"
