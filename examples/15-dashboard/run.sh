#!/usr/bin/env bash
# The read API over the socket of the daemon, usage over time, and the pages of the dashboard. With --open the dashboard stays until
# Ctrl-C, and opens your browser if there is a screen. Ends with an error if the three do not agree.
set -euo pipefail
cd "$(dirname "$0")"

source ../functions.sh

read_api() { # ROUTE: the answer of the daemon, as JSON
  curl --silent --fail --unix-socket "$MUSTER_HOME/daemon.sock" \
    "http://localhost/apis/visibility.muster.dev/v1alpha1/$1"
}

position() { # JOB: its position in the queue
  read_api namespaces/default/pendingjobs | python -c 'import json, sys
print(next((item.get("position") for item in json.load(sys.stdin)["items"] if item["metadata"]["name"] == sys.argv[1]), None))' "$1"
}

heading "Two jobs of 16 GPUs on 2 nodes of 8 GPUs: one runs, with 8 borrowed GPUs, and one waits"
muster local up --nodes 2x8
muster apply cluster.yaml
muster submit runs.yaml
await "runs" Running phase runs
muster submit waits.yaml
await "the position of waits" 1 position waits

if [ "${1:-}" = --open ]; then
  muster dashboard
  exit
fi

heading "The read API: why it waits, and when it is expected to start"
read_api namespaces/default/pendingjobs | python -c 'import json, sys
for item in json.load(sys.stdin)["items"]:
    print(item["metadata"]["name"], item["queue"], item["position"], item["reason"], item["message"], item["estimatedStart"])'

heading "Usage until now"
muster usage --since 1d

heading "The dashboard: a page for each of these"
coproc dashboard { exec muster dashboard --no-browser; }
pid=$dashboard_PID
trap 'kill "$pid" 2> /dev/null || true; muster local down --force > /dev/null 2>&1; rm -rf "$MUSTER_HOME"' EXIT
until [[ "${url:-}" = http://* ]]; do read -r -u "${dashboard[0]}" url; done
base=${url%%/\?*}
get() { curl --silent --fail --cookie-jar "$MUSTER_HOME/cookies" --cookie "$MUSTER_HOME/cookies" "$1"; }
get "$url" > /dev/null # begins the session
for page in / /pending /jobs /jobs/default/waits /timeline /nodes /preemptions /usage; do
  get "$base$page" > "$MUSTER_HOME/page.html"
  printf '%-22s %6s bytes\n' "$page" "$(wc -c < "$MUSTER_HOME/page.html")"
done
get "$base/pending" > "$MUSTER_HOME/page.html"
grep -q '<strong>waits</strong>' "$MUSTER_HOME/page.html"
grep -o 'Capacity is held by' "$MUSTER_HOME/page.html"
kill "$pid" # a shell that was started in the background ignores SIGINT
wait "$pid" || true
