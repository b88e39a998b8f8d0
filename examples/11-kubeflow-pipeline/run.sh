#!/usr/bin/env bash
# A pipeline of Kubeflow on this host: its train step is a TrainingJob. kfp has an environment of its own.
set -euo pipefail
cd "$(dirname "$0")"

source ../functions.sh
trap 'muster local down --force > /dev/null 2>&1; rm -rf "$MUSTER_HOME" "$outputs"' EXIT

outputs=$(mktemp -d)
../../tools/environment.sh .cache/kfp kfp
muster local up > /dev/null
muster apply queues.yaml

heading "Prepare, train, evaluate"
../../.cache/kfp/bin/python -W ignore pipeline.py "$outputs" "$(command -v python)"

heading "The job of the train step, and its report as an artifact"
muster jobs
ls "$outputs"/*/train/report
