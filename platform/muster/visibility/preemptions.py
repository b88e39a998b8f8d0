"""Recent preemptions, collected from the statuses of jobs while they tell of them."""

from __future__ import annotations

from collections import OrderedDict

from muster.api.spec import TrainingJob
from muster.visibility.items import preemption_of
from muster.visibility.types import Preemption

_MAX_KEPT = 1000


class PreemptionLog:
    """The newest preemptions that this process has seen, at most 1,000. A new process sees those of jobs that have not
    started again since."""

    def __init__(self) -> None:
        self._seen: OrderedDict[tuple[str, int], Preemption] = OrderedDict()  # by uid and second

    def observe(self, job: TrainingJob) -> None:
        """Call it with every status of a job."""
        found = preemption_of(job)
        if found is None or (key := (found.metadata.uid, int(found.at))) in self._seen:
            return
        self._seen[key] = found
        if len(self._seen) > _MAX_KEPT:
            self._seen.popitem(last=False)

    def newest_first(self) -> tuple[Preemption, ...]:
        """All that are kept."""
        return tuple(sorted(self._seen.values(), key=preemption_key))


def preemption_key(preemption: Preemption) -> tuple[float, str]:
    """Sorts the newest first."""
    return -preemption.at, preemption.metadata.uid
