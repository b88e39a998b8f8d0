# Functions for the run.sh of the examples. Each example uses a MUSTER_HOME of its own, which is removed at the end, and
# waits for conditions instead of fixed times, so that it also works on a slow machine.

MUSTER_HOME=$(mktemp -d)
export MUSTER_HOME
trap 'muster local down --force > /dev/null 2>&1; rm -rf "$MUSTER_HOME"' EXIT

TIMEOUT_S=600

bold='' plain=''
if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then bold=$'\033[1m' plain=$'\033[0m'; fi

heading() { printf '\n%s%s%s\n' "$bold" "$*" "$plain"; }

fail() {
  printf '\nthe example failed: %s\n' "$*" >&2
  muster jobs >&2
  exit 1
}

submit() { # ARGUMENT...: torchx run, which prints the job's handle; what it logs is shown only if it fails
  torchx run "$@" 2> "$MUSTER_HOME/torchx.log" || {
    cat "$MUSTER_HOME/torchx.log" >&2
    return 1
  }
}

await() { # NAME EXPECTED COMMAND...: wait until the command prints the expected value
  local name=$1 expected=$2 found until=$((SECONDS + TIMEOUT_S))
  shift 2
  while found=$("$@") && [ "$found" != "$expected" ]; do
    if [ "$SECONDS" -ge "$until" ]; then fail "$name: $found instead of $expected after $TIMEOUT_S s"; fi
    sleep 1 # each look costs half a second of CPU
  done
}

await_step() { # JOB STEP: wait until rank 0 has done this step
  local until=$((SECONDS + TIMEOUT_S))
  while [ "$(step "$1")" -lt "$2" ]; do
    if [ "$SECONDS" -ge "$until" ]; then fail "$1 is at step $(step "$1") instead of $2 after $TIMEOUT_S s"; fi
    sleep 0.3
  done
}

phase() { muster describe "$1" --json | python -c 'import json, sys; print(json.load(sys.stdin)[0]["status"]["phase"])'; }

step() { # JOB: the newest step that rank 0 has done
  cat "$MUSTER_HOME"/runs/default-"$1"-*/metrics/rank-0.jsonl 2> /dev/null | tail -n 1 |
    python -c 'import json, sys; print(json.loads(sys.stdin.read() or "{\"step\": 0}")["step"])'
}
