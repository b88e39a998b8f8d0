#!/usr/bin/env bash
# The life cycle of a job with kubectl only, in a cluster with Muster (docs/start/install.md) and a flavor `default`.
# It uses a namespace and two queues of its own and deletes them at the end.
set -euo pipefail
cd "$(dirname "$0")"

heading() { printf '\n\033[1m%s\033[0m\n' "$*"; }
job() { kubectl --namespace muster-example "$@"; }
clean_up() {
  kubectl delete --ignore-not-found --timeout=120s namespace muster-example > /dev/null
  kubectl delete --ignore-not-found --timeout=120s -f queue.yaml -f later.yaml > /dev/null
}
trap clean_up EXIT

heading "A namespace, and a queue for it"
kubectl create namespace muster-example
kubectl apply -f queue.yaml
kubectl get mq muster-example

heading "A job of two pods is admitted as a gang and runs"
kubectl apply -f first.yaml
job wait tj/first --for=condition=PodsReady --timeout=300s
job get tj,pods
job describe tj first | sed -n '/^Events/,$p'

heading "Suspending releases its resources; then it resumes"
job patch tj first --type=merge -p '{"spec": {"suspend": true}}'
job wait tj/first --for=condition=Suspended --timeout=120s
job get tj first
job patch tj first --type=merge -p '{"spec": {"suspend": false}}'
job wait tj/first --for=condition=Complete --timeout=300s
job logs --selector=muster.dev/job=first --container=main --prefix

heading "The API server rejects an invalid object"
if kubectl apply -f wrong.yaml; then
  echo "it was accepted" >&2
  exit 1
fi

heading "A job waits for a missing queue and starts when it is created"
kubectl apply -f second.yaml
job wait tj/second --for=jsonpath='{.status.reason}'=QueueNotFound --timeout=120s
job get tj second -o jsonpath='{.status.conditions[?(@.type=="Admitted")].message}{"\n"}'
kubectl apply -f later.yaml
job wait tj/second --for=condition=Complete --timeout=300s
job get tj

heading "Deleting jobs deletes their pods"
job delete tj --all --timeout=120s
job wait pods --all --for=delete --timeout=120s
echo "nothing is left"
