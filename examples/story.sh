# What the stories of the examples share; sourced by their run.sh. A cluster of its own, so that nothing of yours is
# touched, and gone at the end.

MUSTER_HOME=$(mktemp -d)
export MUSTER_HOME
trap 'muster local down --force > /dev/null 2>&1; rm -rf "$MUSTER_HOME"' EXIT

act() { printf '\n\033[1m%s\033[0m\n' "$*"; }

fail() {
  printf '\nthe story fails: %s\n' "$*" >&2
  muster jobs >&2
  exit 1
}
