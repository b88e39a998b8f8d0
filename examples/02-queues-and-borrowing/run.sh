#!/usr/bin/env bash
# Two teams, 32 pretended GPUs: team a borrows what team b leaves idle, b comes and takes it back, and what was sent
# away goes on where it stopped. Ends with an error when any of this does not happen.
set -euo pipefail
cd "$(dirname "$0")"

source ../story.sh

phase() { muster describe "$1" --json | python -c 'import json, sys; print(json.load(sys.stdin)[0]["status"]["phase"])'; }

await() { # JOB PHASE
  for _ in $(seq 100); do
    if [ "$(phase "$1")" = "$2" ]; then return; fi
    sleep 0.3
  done
  fail "$1 is not $2 but $(phase "$1")"
}

used() { # QUEUE WORD: how many GPUs
  muster queues --json | python -c 'import json, sys
rows = {row["name"]: row for row in json.load(sys.stdin)}
print(rows[sys.argv[1]]["resources"][0][sys.argv[2]].get("nvidia.com/gpu", "0"))' "$1" "$2"
}

expect() { # WHAT FOUND WANTED
  if [ "$2" != "$3" ]; then fail "$1: $2 instead of $3"; fi
}

act "A cluster of 4 nodes of 8 GPUs, shared by two teams"
muster local up --nodes 4x8
muster apply queues.yaml

act "Team a takes its own 16 GPUs, and borrows the 16 that team b leaves idle"
muster submit a-one.yaml
await a-one Running
muster submit a-two.yaml
await a-two Running
sleep 2 # let it count a little: there must be something to lose
muster queues
expect "GPUs used by team a" "$(used team-a used)" 32
expect "GPUs borrowed by team a" "$(used team-a borrowed)" 16

act "Team b comes: its guarantee is taken back from the borrowing job that loses least, which waits again"
muster submit b-one.yaml
await b-one Running
await a-two Pending
muster queues
muster jobs
expect "GPUs used by team a" "$(used team-a used)" 16
expect "GPUs used by team b" "$(used team-b used)" 16
expect "a-one" "$(phase a-one)" Running

act "Team b is done: what was sent away goes on where it stopped"
muster watch b-one --no-report
await a-two Running
muster queues
muster watch a-two --no-report
muster logs a-two --index 0 --attempt 0
muster logs a-two --index 0

python verify.py "$MUSTER_HOME"/runs/default-a-two-* 200
