"""What somebody may have meant who wrote a name that is not known."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

ALIKE = 0.6
"""From this likeness on (1: the same) a name may have been meant."""


def nearest(name: str, known: Iterable[str], alike: float = ALIKE) -> str | None:
    """The known name that is most like this one; None when none is."""
    return next(iter(difflib.get_close_matches(name, list(known), 1, alike)), None)


def meant(name: str, known: Iterable[str], otherwise: str) -> str:
    """The end of a sentence about an unknown name: `did you mean 'x'?`, or `otherwise`."""
    near = nearest(name, known)
    return otherwise if near is None else f"did you mean {near!r}?"
