#!/usr/bin/env bash
# An unmodified model of Transformers as a pipeline of two stages, and the same model in one process. Ends with an error
# if their losses differ.
set -euo pipefail
cd "$(dirname "$0")"

source ../functions.sh

muster local up > /dev/null
muster apply queues.yaml

# The embedding is also the head's matrix: the first and the last stage have a copy, and sum its gradients.
shape=n_layer=4,n_embd=64,n_head=4,n_positions=64,vocab_size=256,attn_pdrop=0,embd_pdrop=0,resid_pdrop=0

train() { # NAME COMPONENT REPLICAS ARGUMENT...: train to the end
  local name=$1 component=$2 replicas=$3 handle
  shift 3
  handle=$(submit -s muster_local "muster.train.$component" --name "$name" -j "$replicas" --model hf:gpt2 \
    --data "$PWD/../../docs" --steps 20 --seq_len 64 --global_batch 16 --lr 0.003 --compile False --gpu 0 \
    --queue shared "$@" -- --model_args "$shape")
  muster watch "${handle##*/}" --no-report
  await "$name" Succeeded phase "${handle##*/}"
}

heading "hf:gpt2 in two stages, micro-batches in the order of Interleaved1F1B"
train staged pipeline 1x2 --pipeline_schedule Interleaved1F1B --micro_batch 2

heading "The same model in one process"
train whole fsdp 1x1

python verify.py "$MUSTER_HOME"/runs/default-staged-* "$MUSTER_HOME"/runs/default-whole-*
