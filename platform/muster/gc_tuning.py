"""How often Python looks for garbage that refers to itself."""

from __future__ import annotations

import gc

_THRESHOLD_0, _THRESHOLD_1, _THRESHOLD_2 = 100_000, 20, 20


def reduce_gc_frequency() -> None:
    """Look a hundred times less often than Python does by itself.

    A plan makes thousands of small objects and drops them, none of which refer to one another in circles, while
    hundreds of thousands live on: jobs, pods, what is known of nodes. Looking through all of them takes a good part of
    the time of a plan. For programs that plan again and again.
    """
    gc.set_threshold(_THRESHOLD_0, _THRESHOLD_1, _THRESHOLD_2)
