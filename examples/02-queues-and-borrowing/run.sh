#!/usr/bin/env bash
# Two teams, 32 GPUs on virtual nodes: team a borrows what team b leaves idle, team b reclaims it, and the evicted job
# resumes from its checkpoint. Ends with an error if any of this does not happen.
set -euo pipefail
cd "$(dirname "$0")"

source ../functions.sh

used() { # QUEUE WORD: how many GPUs
  muster queues --json | python -c 'import json, sys
rows = {row["name"]: row for row in json.load(sys.stdin)}
print(rows[sys.argv[1]]["resources"][0][sys.argv[2]].get("nvidia.com/gpu", "0"))' "$1" "$2"
}

finish() { # JOB: allow its last step, see count.py
  for run_dir in "$MUSTER_HOME"/runs/default-"$1"-*/; do touch "$run_dir/finish"; done
}

heading "A cluster of 4 nodes of 8 GPUs, shared by two teams"
muster local up --nodes 4x8
muster apply queues.yaml

heading "Team a takes its own 16 GPUs, and borrows the 16 that team b leaves idle"
muster submit a-one.yaml
await "a-one" Running phase a-one
muster submit a-two.yaml
await "a-two" Running phase a-two
await_step a-two 10 # so that there is work to lose
await "GPUs used by team a" 32 used team-a used
await "GPUs borrowed by team a" 16 used team-a borrowed
muster queues

heading "Team b reclaims its guarantee: the borrowing job that loses the least work is evicted and waits again"
muster submit b-one.yaml
await_step b-one 1
await "a-two" Pending phase a-two
await "GPUs used by team a" 16 used team-a used
await "GPUs used by team b" 16 used team-b used
await "a-one" Running phase a-one
muster queues
muster jobs

heading "Team b is done: the evicted job resumes from its checkpoint"
finish b-one
muster watch b-one --no-report
await "a-two" Running phase a-two
muster queues
finish a-two
muster watch a-two --no-report
muster logs a-two --index 0 --attempt 0
muster logs a-two --index 0

python verify.py "$MUSTER_HOME"/runs/default-a-two-* 200
