"""Checks that recomputation was advised, that applying it reduced the peak, and that the advice promised enough."""

import json
import sys
from pathlib import Path

before, after = (json.loads(Path(file).read_text()) for file in sys.argv[1:3])
advised = {advice["kind"]: advice for advice in before["advice"]}
if "recomputation" not in advised:
    sys.exit(f"recomputation must be advised for the first run; got {sorted(advised)}")
if "recomputation" in {advice["kind"] for advice in after["advice"]}:
    sys.exit("recomputation must not be advised for a run that recomputes")
(changes,) = after["changes"]
bound, saved = advised["recomputation"]["bytes"], changes["peak_before_bytes"] - changes["peak_after_bytes"]
if not 0 < saved <= bound:
    sys.exit(f"the peak must fall by at most the {bound:,} bytes of activations; it fell by {saved:,}")
gib = 1 << 30
print(
    f"peak {changes['peak_before_bytes'] / gib:.1f} GiB -> {changes['peak_after_bytes'] / gib:.1f} GiB:"
    f" {saved / gib:.1f} GiB saved, at most {bound / gib:.1f} GiB were promised"
)
