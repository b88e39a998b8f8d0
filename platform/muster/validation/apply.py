"""The checks of `muster apply` and `muster delete`.

Only errors that the new documents cause are refused: an error elsewhere in the queue tree does not block an apply.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from muster.errors import Conflict, NotFound, Refused
from muster.spec import Flavor, Queue, TrainingJob
from muster.validation.queue_readiness import QueueReadiness, queue_readiness
from muster.validation.submit import name_hint

_Object = TrainingJob | Queue | Flavor
_REASONS = {"Cycle": "QueueCycle", "ParentNotFound": "ParentNotFound", "Overcommitted": "Overcommitted"}
_MAX_JOBS_SHOWN = 8


def check_apply(documents: Sequence[_Object], existing: Iterable[_Object]) -> None:
    """Check the queues that would exist after `documents` are applied.

    Raises `Refused`: QueueCycle, ParentNotFound, Overcommitted, UnknownFlavor (a queue names a flavor that exists
    neither in `existing` nor in `documents`, while others do). Jobs are checked by `check_submit`.
    """
    existing = list(existing)
    before = {item.metadata.name: item for item in existing if isinstance(item, Queue)}
    new = {item.metadata.name: item for item in documents if isinstance(item, Queue)}
    after = {**before, **new}
    flavors = {item.metadata.name for item in (*existing, *documents) if isinstance(item, Flavor)}
    verdicts_before, verdicts = queue_readiness(before.values()), queue_readiness(after.values())
    for name, verdict in verdicts.items():
        fault = _queue_error(verdict)
        known = name in verdicts_before and _queue_error(verdicts_before[name]) == fault
        if fault is not None and not (known and name not in new):
            field = "spec.resources" if fault[0] == "Overcommitted" else "spec.parent"
            message = f"queue {name!r}: {field}: {fault[1]}"
            if fault[0] == "ParentNotFound":
                message = f"{message}; {name_hint(str(after[name].spec.parent), [*after], 'queue')}"
            raise Refused(message, field=field, reason=_REASONS[fault[0]])
    for queue in new.values():
        for index, entry in enumerate(queue.spec.resources):
            if flavors and entry.flavor not in flavors:
                field = f"spec.resources[{index}].flavor"
                place = f"queue {queue.metadata.name!r}: {field}"
                hint = name_hint(entry.flavor, flavors, "flavor")
                raise NotFound(
                    f"{place}: flavor {entry.flavor!r} does not exist; {hint}", field=field, reason="UnknownFlavor"
                )


def check_no_children(name: str, queues: Iterable[Queue]) -> None:
    """Raise `Conflict` HasChildren if other queues name the queue as their parent: without it they admit nothing.
    Queues that are being deleted do not count."""
    children = sorted(
        queue.metadata.name
        for queue in queues
        if queue.spec.parent == name and queue.metadata.deletion_timestamp is None
    )
    if children:
        message = f"queue {name!r} has queues below it: {', '.join(children)}; without it they would admit nothing."
        raise Conflict(
            f"{message} Delete them first, or together: muster delete queue {' '.join([*children, name])}; or give them"
            " another spec.parent",
            reason="HasChildren",
        )


def check_flavor_unused(name: str, users: Iterable[str]) -> None:
    """Raise `Conflict` FlavorInUse if there are jobs with pods on the flavor's nodes. `users` are their names."""
    jobs = sorted(users)
    if jobs:
        more = f" and {len(jobs) - _MAX_JOBS_SHOWN} more" if len(jobs) > _MAX_JOBS_SHOWN else ""
        message = f"flavor {name!r} is in use by {', '.join(jobs[:_MAX_JOBS_SHOWN])}{more}; let them end first"
        raise Conflict(message, reason="FlavorInUse")


def _queue_error(readiness: QueueReadiness) -> tuple[str, str] | None:
    """(reason, message) of the queue's own error or of its guarantees; None for an error inherited from its parent."""
    if readiness.reason in ("Cycle", "ParentNotFound"):
        return readiness.reason, readiness.message
    if readiness.overcommitted_message is not None:
        return "Overcommitted", readiness.overcommitted_message
    return None
