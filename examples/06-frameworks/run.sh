#!/usr/bin/env bash
# An unmodified script of a training framework is started by TorchX's own dist.ddp, then traced,
# preempted and resumed. Ends with an error if it does not resume after its last step.
#   bash examples/06-frameworks/run.sh accelerate|deepspeed|lightning|transformers
set -euo pipefail
cd "$(dirname "$0")"
framework=${1:?one of accelerate, deepspeed, lightning, transformers}
script=train_$framework.py

source ../functions.sh

steps() { # JOB ATTEMPT: how many optimizer steps rank 0 has done in this attempt
  python - "$MUSTER_HOME"/runs/default-"$1"-*/metrics/rank-0.jsonl "$2" << 'END'
import json, sys
try:
    lines = [json.loads(line) for line in open(sys.argv[1]) if line.endswith("\n")]
except FileNotFoundError:
    lines = []
print(len({line["step"] for line in lines if line["attempt"] == int(sys.argv[2])}))
END
}

await_steps() { # JOB ATTEMPT STEPS
  local until=$((SECONDS + TIMEOUT_S)) done_steps
  while done_steps=$(steps "$1" "$2") && [ "$done_steps" -lt "$3" ]; do
    if [ "$SECONDS" -ge "$until" ] || [[ $(phase "$1") =~ Failed|Succeeded ]]; then
      muster logs "$1" >&2 || true
      fail "$1 has done $done_steps steps of attempt $2 instead of $3"
    fi
    sleep 1
  done
}

muster local up > /dev/null
muster apply queues.yaml

heading "TorchX's dist.ddp: torchrun starts two ranks of $script"
torchx run -s muster_local --wait --log dist.ddp -j 1x2 --cpu 2 --script "$script" -- --steps 60 --save_every 30 \
  --output "$MUSTER_HOME/output/\${app_id}" 2>&1 | tee "$MUSTER_HOME/ddp.log"
grep -q "starts after step 0 on 2 ranks" "$MUSTER_HOME/ddp.log"
grep -q "done after step 60" "$MUSTER_HOME/ddp.log"

heading "muster.train.script: the same script with heartbeats, and a trace of steps 20 to 22"
handle=$(submit -s muster_local muster.train.script --name "$framework" -j 1x2 --script "$script" --trace_steps 20:23 \
  --queue shared -- --steps 1000000 --save_every 100000 --output "$MUSTER_HOME/output/\${app_id}")
job=${handle##*/}
await_steps "$job" 0 50
muster jobs

heading "A job of higher priority preempts it: the script saves a checkpoint on SIGTERM and ends"
muster submit urgent.yaml --wait

heading "It restarts and resumes from its checkpoint; it is cancelled after 50 more steps"
await_steps "$job" 1 50
muster cancel "$job"
await "$job" Cancelled phase "$job"
muster describe "$job"
muster watch "$job" || true # waits for the report
python verify.py "$MUSTER_HOME"/runs/default-"$job"-* "$framework"
