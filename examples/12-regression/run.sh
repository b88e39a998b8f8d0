#!/usr/bin/env bash
# Compares a program with a slower version of itself, with itself, and finds the commit that made it slower. Ends with an
# error if the regression or its commit is not found.
set -euo pipefail
cd "$(dirname "$0")"

source ../functions.sh

expect() { # CODE COMMAND...: run the command, which must end with this exit code
  local expected=$1 code=0
  shift
  "$@" || code=$?
  if [ "$code" != "$expected" ]; then fail "exit code $code instead of $expected: $*"; fi
}

results=$MUSTER_HOME/results

heading "Exponentials and logarithms are computed again"
expect 5 muster bench compare . env:VERSION=recomputed --suite suite.yaml --out "$results/slower.jsonl"

heading "Nothing changed"
muster bench compare . . --suite suite.yaml --out "$results/same.jsonl" || echo "a false alarm, or noise: see docs/tasks/regression.md"

heading "Five commits, of which the third is slower"
repository=$MUSTER_HOME/repository
mkdir "$repository"
cp softmax.py suite.yaml "$repository"
commit() { # MESSAGE
  git -C "$repository" add --all
  git -C "$repository" -c user.name=example -c user.email=example@example.com commit --quiet --message "$1"
}
git -C "$repository" init --quiet
commit "Add a softmax"
for number in 1 2 3 4; do
  if [ "$number" = 3 ]; then
    sed -i 's/"VERSION", "two-passes"/"VERSION", "recomputed"/' "$repository/softmax.py"
  fi
  echo "# change $number" >> "$repository/softmax.py"
  commit "Change $number"
done
expect 5 muster bench bisect HEAD~4 HEAD --suite "$repository/suite.yaml" --out "$results/bisect.jsonl"
