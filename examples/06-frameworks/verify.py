"""Checks that the preempted script resumed after its last step, and was traced; exits with an error otherwise."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

folder, framework = Path(sys.argv[1]), sys.argv[2]
lines = [json.loads(line) for line in (folder / "metrics" / "rank-0.jsonl").read_text().splitlines()]
done = {attempt: len({line["step"] for line in lines if line["attempt"] == attempt}) for attempt in (0, 1)}
starts = []
for attempt in (0, 1):
    log = (folder / "logs" / f"trainer-0.attempt-{attempt}.log").read_text()
    found = re.findall(r"starts after step (\d+) on (\d+) ranks", log)
    if len(found) != 1 or found[0][1] != "2":
        sys.exit(f"attempt {attempt} must start once, on 2 ranks; got {found}")
    starts.append(int(found[0][0]))
if starts != [0, done[0]]:
    sys.exit(f"the attempts must start after steps {[0, done[0]]}; got {starts}")
traces = sorted(path.name for path in (folder / "traces").glob("*.json.gz"))
# Accelerate counts no steps, so those of each attempt are counted; others count over all attempts.
traced = (0, 1) if framework == "accelerate" else (0,)
wanted = [f"rank-{rank}.attempt-{attempt}.steps-20-23.json.gz" for rank in (0, 1) for attempt in traced]
if traces != wanted:
    sys.exit(f"the traces must be {wanted}; got {traces}")
if not (folder / "report" / "report.html").is_file():
    sys.exit("there is no report")
print(
    f"preempted after step {done[0]}, resumed after step {starts[1]}; "
    f"{done[1]} more steps, {len(traces)} traces, a report"
)
