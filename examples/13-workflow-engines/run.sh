#!/usr/bin/env bash
# What a task of a workflow engine does: submit, wait, and end with the job's outcome; a second run of the task.
set -euo pipefail
cd "$(dirname "$0")"

source ../functions.sh

muster local up > /dev/null

heading "A task submits the job and ends with it"
sh train.sh job.yaml nightly-training

heading "A retry of the task finds the job and submits no other"
sh train.sh job.yaml nightly-training
muster jobs
