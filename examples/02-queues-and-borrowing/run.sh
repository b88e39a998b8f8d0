#!/usr/bin/env bash
# Two teams, 32 virtual GPUs: team a borrows what team b leaves idle, b comes and takes it back, and what was sent
# away goes on where it stopped. Ends with an error when any of this does not happen.
set -euo pipefail
cd "$(dirname "$0")"

source ../story.sh

used() { # QUEUE WORD: how many GPUs
  muster queues --json | python -c 'import json, sys
rows = {row["name"]: row for row in json.load(sys.stdin)}
print(rows[sys.argv[1]]["resources"][0][sys.argv[2]].get("nvidia.com/gpu", "0"))' "$1" "$2"
}

finish() { # JOB: it stays until we have looked, see count.py
  for run_dir in "$MUSTER_HOME"/runs/default-"$1"-*/; do touch "$run_dir/finish"; done
}

act "A cluster of 4 nodes of 8 GPUs, shared by two teams"
muster local up --nodes 4x8
muster apply queues.yaml

act "Team a takes its own 16 GPUs, and borrows the 16 that team b leaves idle"
muster submit a-one.yaml
await "a-one" Running phase a-one
muster submit a-two.yaml
await "a-two" Running phase a-two
await_step a-two 10 # there must be something to lose
await "GPUs used by team a" 32 used team-a used
await "GPUs borrowed by team a" 16 used team-a borrowed
muster queues

act "Team b comes: its guarantee is taken back from the borrowing job that loses least, which waits again"
muster submit b-one.yaml
await_step b-one 1
await "a-two" Pending phase a-two
await "GPUs used by team a" 16 used team-a used
await "GPUs used by team b" 16 used team-b used
await "a-one" Running phase a-one
muster queues
muster jobs

act "Team b is done: what was sent away goes on where it stopped"
finish b-one
muster watch b-one --no-report
await "a-two" Running phase a-two
muster queues
finish a-two
muster watch a-two --no-report
muster logs a-two --index 0 --attempt 0
muster logs a-two --index 0

python verify.py "$MUSTER_HOME"/runs/default-a-two-* 200
