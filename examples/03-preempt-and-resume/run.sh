#!/usr/bin/env bash
# A long training job of low priority is preempted by an urgent one, saves a checkpoint, and resumes at the next step.
# Ends with an error if a step was repeated or left out.
set -euo pipefail
cd "$(dirname "$0")"

source ../functions.sh

train() { # NAME PRIORITY STEPS: submits and prints the job's name
  local handle
  handle=$(submit -s muster_local muster.train.fsdp --name "$1" -j 1x1 --model gpt:1m --data "$data" --steps "$3" \
    --cpu 1 --gpu 0 --seq_len 64 --global_batch 8 --compile False --queue shared --priority "$2" -- --warmup 5)
  echo "${handle##*/}"
}

attempts() { # JOB: in how many attempts rank 0 has done steps
  python -c 'import json, sys; print(len({json.loads(line)["attempt"] for line in open(sys.argv[1])}))' \
    "$MUSTER_HOME"/runs/default-"$1"-*/metrics/rank-0.jsonl
}

# Python's own JSON package: a few files of text.
data=$(python -c 'import json, os; print(os.path.dirname(json.__file__))')

muster local up > /dev/null
muster apply queues.yaml

heading "A long job of priority 0 trains until it is cancelled"
low=$(train low 0 100000)
await_step "$low" 10
muster jobs

heading "A job of priority 10 preempts it: the long job saves a checkpoint and ends"
high=$(train high 10 10)
muster watch "$high" --no-report
muster describe "$low"

heading "The long job resumes from its checkpoint; it is cancelled after 20 more steps"
await "attempts of $low" 2 attempts "$low"
await_step "$low" $(($(step "$low") + 20))
muster cancel "$low"
await "$low" Cancelled phase "$low"
muster describe "$low"
python verify.py "$MUSTER_HOME"/runs/default-"$low"-*
