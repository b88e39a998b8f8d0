#!/usr/bin/env bash
# Traces a running job and finds the rank that makes the others wait. Ends with an error if another rank or cause is named.
set -euo pipefail
cd "$(dirname "$0")"

source ../functions.sh

muster local up > /dev/null
muster apply queues.yaml

heading "A script with two ranks, started under Muster's hook"
handle=$(submit -s muster_local muster.train.script --name straggler -j 1x2 --gpu 0 --queue shared \
  --script "$PWD/train.py")
job=${handle##*/}
await_step "$job" 3

heading "Four steps of both ranks, while it runs"
muster trace "$job" --steps 4

heading "Which rank is slow, and why"
muster trace analyze "$job"

muster trace analyze "$job" --json > "$MUSTER_HOME/analysis.json"
muster cancel "$job"
python verify.py "$MUSTER_HOME/analysis.json"
