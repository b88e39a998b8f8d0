#!/usr/bin/env bash
# A model and a data set of one's own, unmodified, trained with FSDP2 on two ranks. Ends with an error if the loss has
# not fallen.
set -euo pipefail
cd "$(dirname "$0")"

source ../functions.sh

muster local up > /dev/null
muster apply queues.yaml

heading "The factory towers:build and the data set towers:Pairs on two ranks"
handle=$(submit -s muster_local muster.train.fsdp --name towers -j 1x2 --model towers:build --data towers:Pairs \
  --steps 60 --global_batch 64 --lr 0.003 --compile False --gpu 0 --queue shared -- \
  --model_args width=32,layers=2 --micro_batch 16)
job=${handle##*/}
muster watch "$job" --no-report
await "$job" Succeeded phase "$job"
python ../verify_loss.py "$MUSTER_HOME"/runs/default-"$job"-* 60 0.7
