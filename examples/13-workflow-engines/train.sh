#!/bin/sh
# A task of a workflow engine: `train.sh JOB.yaml NAME` submits the job of the file, with NAME in the place of job-name,
# and ends with it. A retry of the task follows the job of the earlier try; one that has failed is followed by NAME-2,
# NAME-3, ... SIGTERM cancels the job.
set -u
file=$1 name=$2
grep -q 'name: *job-name' "$file" || {
  echo "error: $file: metadata.name must be job-name, which is replaced by $name" >&2
  exit 2
}

# Whether the job exists and its phase is one of $1, such as "Failed|Cancelled"; any if empty.
exists() { muster describe "$job" --json 2> /dev/null | grep -Eq "\"phase\": *\"(${1:-.*})\""; }

job=$name number=1
while exists "Failed|Cancelled|Terminating"; do
  number=$((number + 1))
  job=$name-$number
done

trap 'trap "" TERM INT; muster cancel "$job"; kill "$watch" 2> /dev/null; exit 143' TERM INT
watch=
exists || sed "s/job-name/$job/" "$file" | muster submit - || exit $?
muster watch "$job" --no-report &
watch=$!
wait "$watch"
