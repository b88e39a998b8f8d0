"""How sure a verdict is."""

from __future__ import annotations

import numpy as np

from muster.tracing.ranks.attribution import Float64

HALF = 0.5


def confidence(ms: Float64, threshold_ms: float, explained: float = 1.0) -> float:
    """From 0.5 to 0.99, from a cost in each step: by how many of its errors the mean exceeds the threshold, and less if
    the cause explains less than half of the cost.

    The error is that of the mean (the spread between the steps by the root of their number), and at least a tenth of
    the mean by the same root, since a few steps that are alike say little about the others.
    """
    mean, root = float(ms.mean()), float(np.sqrt(len(ms)))
    spread = float(ms.std(ddof=1)) if len(ms) > 1 else mean
    error = max(spread, 0.1 * mean) / root + 0.1 * threshold_ms
    distance = max(mean - threshold_ms, 0.0) / max(error, 1e-9)
    return round(0.5 + 0.49 * float(1 - np.exp(-distance / 3)) * min(max(explained, 0.0) / HALF, 1.0), 2)
