#!/usr/bin/env bash
# A project of a TorchX user: .torchxconfig has the defaults, so that a run needs no options. The same command for a cluster
# carries the project's code to the pods without an image build; it is only printed here.
set -euo pipefail
cd "$(dirname "$0")"

source ../functions.sh

muster local up > /dev/null
muster apply queues.yaml

heading "On this host: two processes, in the queue of .torchxconfig"
handle=$(submit muster.train.script --name sum --gpu 0 --script train.py)
job=${handle##*/}
await "$job" Succeeded phase "$job"
muster logs "$job" | grep "sum up to 1"

heading "On a cluster: the job that would be submitted, with the code of this folder"
torchx run -s muster --dryrun muster.train.script --name sum --gpu 2 --script train.py 2> /dev/null > "$MUSTER_HOME/job.txt"
sed -n '/^=== SCHEDULER REQUEST/,$p' "$MUSTER_HOME/job.txt"
grep -q '  queue: research' "$MUSTER_HOME/job.txt"
grep -q 'workspace.tar.gz -C /muster/workspace' "$MUSTER_HOME/job.txt"
