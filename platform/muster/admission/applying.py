"""What is told at `muster apply`, before a queue could only be Active=False or Overcommitted=True.

Only what the new documents cause is refused: a tree that was already wrong elsewhere does not stop anyone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from muster.admission.queues import QueueVerdict, queue_verdicts
from muster.admission.submitting import nearest
from muster.errors import NotFound, Refused
from muster.spec import Flavor, Queue, TrainingJob

_Object = TrainingJob | Queue | Flavor
_REASONS = {"Cycle": "QueueCycle", "ParentNotFound": "ParentNotFound", "Overcommitted": "Overcommitted"}


def check_apply(documents: Sequence[_Object], existing: Iterable[_Object]) -> None:
    """Compare the objects as they would be with the objects as they are.

    Raises `Refused`: QueueCycle, ParentNotFound, Overcommitted, UnknownFlavor (a queue names a flavor that exists
    neither here nor among the documents, while others do). Jobs among the documents are `check_submit`'s matter.
    """
    existing = list(existing)
    before = {item.metadata.name: item for item in existing if isinstance(item, Queue)}
    new = {item.metadata.name: item for item in documents if isinstance(item, Queue)}
    after = {**before, **new}
    flavors = {item.metadata.name for item in (*existing, *documents) if isinstance(item, Flavor)}
    verdicts_before, verdicts = queue_verdicts(before.values()), queue_verdicts(after.values())
    for name, verdict in verdicts.items():
        fault = _fault(verdict)
        known = name in verdicts_before and _fault(verdicts_before[name]) == fault
        if fault is not None and not (known and name not in new):
            field = "spec.resources" if fault[0] == "Overcommitted" else "spec.parent"
            told = f"queue {name!r}: {field}: {fault[1]}"
            if fault[0] == "ParentNotFound":
                told = f"{told}; {nearest(str(after[name].spec.parent), [*after], 'queue')}"
            raise Refused(told, field=field, reason=_REASONS[fault[0]])
    for queue in new.values():
        for index, entry in enumerate(queue.spec.resources):
            if flavors and entry.flavor not in flavors:
                field = f"spec.resources[{index}].flavor"
                place = f"queue {queue.metadata.name!r}: {field}"
                hint = nearest(entry.flavor, flavors, "flavor")
                raise NotFound(
                    f"{place}: flavor {entry.flavor!r} does not exist; {hint}", field=field, reason="UnknownFlavor"
                )


def _fault(verdict: QueueVerdict) -> tuple[str, str] | None:
    """(reason, message) of what is wrong with the queue itself, or with what it promises; inherited faults are not."""
    if verdict.reason in ("Cycle", "ParentNotFound"):
        return verdict.reason, verdict.message
    if verdict.overcommitted_message is not None:
        return "Overcommitted", verdict.overcommitted_message
    return None
