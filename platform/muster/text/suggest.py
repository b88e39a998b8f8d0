"""What somebody may have meant who wrote a name that is not known."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

MIN_SIMILARITY = 0.6
"""From this likeness on (1: the same) a name may have been meant."""


def closest_match(name: str, known: Iterable[str], min_similarity: float = MIN_SIMILARITY) -> str | None:
    """The known name that is most like this one; None when none is."""
    return next(iter(difflib.get_close_matches(name, list(known), 1, min_similarity)), None)


def did_you_mean(name: str, known: Iterable[str], fallback: str) -> str:
    """The end of a sentence about an unknown name: `did you mean 'x'?`, or `otherwise`."""
    near = closest_match(name, known)
    return fallback if near is None else f"did you mean {near!r}?"
