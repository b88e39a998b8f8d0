"""The rules that a plan follows: Muster's own, and simple ones for comparison."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Policy:
    """Quota, flavors, topology and nominations are the same under every policy.

    `order`: `fair` goes down the queue tree by guarantee and share, and by priority in the leaf; `submitted` and
    `priority` ignore queues. `backfill`: whether gangs may start behind one that waits: `none` (it blocks all others),
    or `easy` (gangs that do not delay its reservation).
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
