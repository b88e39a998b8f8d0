#!/usr/bin/env bash
# Who holds a GPU's memory: two jobs, without and with recomputation of activations, and the memory that it saves. Without
# a GPU it analyses snapshots that were recorded on an H200.
set -euo pipefail
cd "$(dirname "$0")"

source ../functions.sh

model=${MODEL:-gpt2:124m}

record() { # NAME FLAG...: train on one GPU and record the memory of three steps; the run folder is $MUSTER_HOME/runs/default-NAME-*
  local name=$1 handle job
  shift
  # Without a CUDA graph: its replays allocate nothing that could be recorded.
  handle=$(submit -s muster_local muster.train.fsdp --name "$name" -j 1x1 --cpu 2 --gpu 1 --model "$model" \
    --data "$PWD/../../docs" --steps 100000 --global_batch 32 --checkpoint_every 0 --queue shared \
    -- --no_cuda_graph "$@")
  job=${handle##*/}
  await_step "$job" 10
  muster trace "$job" --memory --steps 3
  muster cancel "$job"
  await "$name" Cancelled phase "$job"
}

if python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2> /dev/null; then
  muster local up > /dev/null
  muster apply queues.yaml
  heading "$model on one GPU"
  record plain
  heading "$model on one GPU, with recomputation"
  record full --activation_checkpointing full
  before=$(echo "$MUSTER_HOME"/runs/default-plain-*) after=$(echo "$MUSTER_HOME"/runs/default-full-*)
else
  before=plain.pickle.gz after=full.pickle.gz
fi

heading "Who holds the memory"
muster memory "$before"

heading "With recomputation, compared"
muster memory "$after" --compare "$before"

muster memory "$before" --json > "$MUSTER_HOME/before.json"
muster memory "$after" --compare "$before" --json > "$MUSTER_HOME/after.json"
heading "Saved"
python verify.py "$MUSTER_HOME/before.json" "$MUSTER_HOME/after.json"
