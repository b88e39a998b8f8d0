#!/usr/bin/env bash
# The main job on one machine: submit through TorchX, wait in a queue, train two ranks with compiled FSDP, trace, report.
# Needs `torchx`, `muster` and `python` on PATH (`make demo` sets it). The report's path is the last line. MODEL names
# another recipe, for example a smaller one.
set -euo pipefail
cd "$(dirname "$0")"

# A MUSTER_HOME of its own, so that the demo does not change your queues.
export MUSTER_HOME=${MUSTER_HOME:-$(git rev-parse --show-toplevel 2>/dev/null || echo "$HOME")/.cache/muster-demo}
mkdir -p -m 700 "$MUSTER_HOME"

model=${MODEL:-gpt:10m}

bold='' plain=''
if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then bold=$'\033[1m' plain=$'\033[0m'; fi

say() { printf '\n%s$ %s%s\n' "$bold" "$*" "$plain"; }

# Text to train on that every machine has: the sources of Python's standard library.
data=$(python -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')
cpus=$(python -c "import os; print(max(2, os.cpu_count()))")

say "muster apply queues.yaml"
sed "s/cpu: 2/cpu: $cpus/" queues.yaml | muster apply -

say "torchx run -s muster_local muster.train.fsdp -j 1x2 --model $model --data $data --steps 60 --trace_steps 20:25 --queue research"
job=$(torchx run -s muster_local muster.train.fsdp -j 1x2 --model "$model" --data "$data" \
  --steps 60 --trace_steps 20:25 --queue research)
job=${job##*/}

say "muster queues"
muster queues

printf '\nto use this MUSTER_HOME in another terminal: export MUSTER_HOME=%s\n' "$MUSTER_HOME"

say "muster watch $job"
muster watch "$job"
