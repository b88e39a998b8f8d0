"""Ends with an error unless the first verdict names the slow loader of rank 1."""

import json
import sys

with open(sys.argv[1]) as file:
    verdicts = json.load(file)["verdicts"]
first = verdicts[0] if verdicts else {}
if (first.get("ranks"), first.get("cause")) != ([1], "data-loading"):
    sys.exit(f"expected data-loading on rank 1; got {verdicts}")
print(f"found: rank 1, {first['cause']}, {first['cost_ms']:.0f} ms per step")
