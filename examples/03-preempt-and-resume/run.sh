#!/usr/bin/env bash
# A long training job of low priority makes way for an urgent one, saves a checkpoint, and goes on from that very step.
# Ends with an error when a step was repeated or left out.
set -euo pipefail
cd "$(dirname "$0")"

source ../story.sh

train() { # NAME PRIORITY STEPS: submits and prints the job's name
  local handle
  handle=$(torchx run -s muster_local muster.train.fsdp --name "$1" -j 1x1 --model gpt:1m --data "$data" --steps "$3" \
    --seq_len 64 --global_batch 8 --compile False --queue shared --priority "$2" 2> /dev/null)
  echo "${handle##*/}"
}

step() { # JOB: the newest step that rank 0 has done
  cat "$MUSTER_HOME"/runs/default-"$1"-*/metrics/rank-0.jsonl 2> /dev/null | tail -n 1 |
    python -c 'import json, sys; print(json.loads(sys.stdin.read() or "{\"step\": 0}")["step"])'
}

# Python's own JSON package: a few files of text.
data=$(python -c 'import json, os; print(os.path.dirname(json.__file__))')

muster local up > /dev/null
muster apply queues.yaml

act "A long job of priority 0 trains"
low=$(train low 0 100)
for _ in $(seq 200); do
  if [ "$(step "$low")" -ge 10 ]; then break; fi
  sleep 0.3
done
[ "$(step "$low")" -ge 10 ] || fail "$low does not get to step 10"
muster jobs

act "An urgent one of priority 10 comes: the long one saves a checkpoint and makes way"
high=$(train high 10 10)
muster watch "$high" --no-report
muster describe "$low"

act "The long job goes on from its checkpoint"
muster watch "$low" --no-report
python verify.py "$MUSTER_HOME"/runs/default-"$low"-* 100
