#!/usr/bin/env bash
# TorchTitan's debug model on two ranks without a GPU, suspended and resumed. Ends with an error if a step is repeated or
# left out.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

source "$here/../functions.sh"
mkdir "$MUSTER_HOME/work"
cd "$MUSTER_HOME/work" # TorchTitan reads its assets from here
python "$here/assets.py"
cp "$here/debug_model.toml" .

muster local up > /dev/null
muster apply "$here/queues.yaml"

heading "TorchTitan with its own configuration; a trace of steps 9 and 10, counted over all attempts"
handle=$(submit -s muster_local muster.train.titan -j 1x2 --cpu 2 --gpu 0 --queue shared --trace_steps 9:11 -- \
  --job.config_file=debug_model.toml)
job=${handle##*/}
await_step "$job" 3

heading "Suspended: all ranks save the same step and end; then it goes on from there"
muster suspend "$job"
await "$job" Suspended phase "$job"
muster resume "$job"
await "$job" Succeeded phase "$job"
muster describe "$job"
python - "$MUSTER_HOME"/runs/default-"$job"-* << 'END'
import json, sys
from pathlib import Path

folder = Path(sys.argv[1])
lines = [json.loads(line) for line in (folder / "metrics" / "rank-0.jsonl").read_text().splitlines()]
steps = [line["step"] for line in lines]
if steps != list(range(1, 13)):
    sys.exit(f"steps were repeated, skipped or out of order: {steps}")
print(f"12 steps in {len({line['attempt'] for line in lines})} attempts, loss {lines[0]['loss']:.2f} -> {lines[-1]['loss']:.2f}")
END
