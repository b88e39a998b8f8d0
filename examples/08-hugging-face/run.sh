#!/usr/bin/env bash
# A model of Transformers from a configuration: trained with FSDP2, saved, opened by from_pretrained, and trained on.
# Ends with an error if the loss has not fallen, or if the second run does not begin where the first ended.
set -euo pipefail
cd "$(dirname "$0")"

source ../functions.sh

train() { # NAME MODEL STEPS SAVED FLAG...: trains on two ranks and prints the job's name
  local handle
  handle=$(submit -s muster_local muster.train.fsdp --name "$1" -j 1x2 --model "$2" --data "$data" --steps "$3" \
    --seq_len 64 --global_batch 16 --lr 0.003 --compile False --gpu 0 --queue shared -- \
    --tokenizer "$tokenizer" --save_pretrained "$4" "${@:5}")
  echo "${handle##*/}"
}

# Python's own JSON package: a few files of text.
data=$(python -c 'import json, os; print(os.path.dirname(json.__file__))')
tokenizer=$MUSTER_HOME/tokenizer saved=$MUSTER_HOME/saved

muster local up > /dev/null
muster apply queues.yaml

heading "A tokenizer of 512 tokens, trained on the text"
python make_tokenizer.py "$data" "$tokenizer"

heading "A GPT-2 of two layers from random weights, on two ranks"
first=$(train first hf:gpt2 60 "$saved" --model_args \
  n_layer=2,n_head=4,n_embd=64,vocab_size=512,n_positions=64,bos_token_id=0,eos_token_id=0)
muster watch "$first" --no-report
await "$first" Succeeded phase "$first"
python ../verify_loss.py "$MUSTER_HOME"/runs/default-"$first"-* 60 0.9
ls "$saved"

heading "Transformers opens what was saved"
python generate.py "$saved" "$tokenizer"

heading "A second run starts from the saved weights"
second=$(train second "hf:$saved" 10 "$MUSTER_HOME/saved-again")
muster watch "$second" --no-report
await "$second" Succeeded phase "$second"
python verify.py "$MUSTER_HOME"/runs/default-"$first"-* "$MUSTER_HOME"/runs/default-"$second"-*
