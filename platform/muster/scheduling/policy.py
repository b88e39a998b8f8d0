"""Which rules a plan follows. Muster's own, and the plain ones it is compared with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Policy:
    """Quota, flavors, topology and holds are the same under every policy; the rest is chosen here.

    `order`: `fair` goes down the queue tree by guarantee and share, and by priority in the leaf; `submitted` and
    `priority` look at all gangs alike. `behind_head`: may gangs start behind one that waits: `none` (it blocks all
    others), or `easy` (those that do not delay its reservation).
    """

    name: str
    order: Literal["fair", "submitted", "priority"]
    backfill: Literal["none", "easy"]
    preempts: bool = False
    grows_elastic: bool = False


MUSTER = Policy("muster", order="fair", backfill="easy", preempts=True, grows_elastic=True)
FIFO = Policy("fifo", order="submitted", backfill="none")
PRIORITY = Policy("priority", order="priority", backfill="none")
BACKFILL = Policy("backfill", order="submitted", backfill="easy")
