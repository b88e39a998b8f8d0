"""Jobs whose queue exists but is invalid, or with a role for which every flavor is invalid."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from muster.errors import Refused
from muster.spec import Queue, TrainingJob
from muster.validation.queue_readiness import path_to_root, usable_flavors

DependencyError = tuple[Literal["QueueInactive", "UnknownFlavor"], str]
"""Reason and message."""


def invalid_dependency(
    queue: str,
    role_flavors: Iterable[Sequence[str]],
    queues: Mapping[str, Queue],
    invalid_queues: Mapping[str, str],
    invalid_flavors: Mapping[str, str],
) -> DependencyError | None:
    """The error that prevents the start of a job in this queue; `role_flavors` has the flavors that each role may use,
    none for any. `invalid_queues` and `invalid_flavors` are error messages by name."""
    if not (invalid_queues or invalid_flavors):
        return None
    for one in path_to_root(queue, queues):
        name = one.metadata.name
        if name in invalid_queues:
            which = f"queue {name}" if name == queue else f"queue {name}, above queue {queue},"
            return "QueueInactive", f"{which} cannot be read: {invalid_queues[name]}"
    for flavors in role_flavors:
        names = flavors or usable_flavors(queue, queues)
        if names and all(name in invalid_flavors for name in names):
            message = "; ".join(f"flavor {name} cannot be read: {invalid_flavors[name]}" for name in names)
            return "UnknownFlavor", message
    return None


def check_dependencies_valid(
    job: TrainingJob, queues: Mapping[str, Queue], invalid_queues: Mapping[str, str], invalid_flavors: Mapping[str, str]
) -> None:
    """Raise `Refused` QueueInactive or UnknownFlavor if `invalid_dependency` returns an error."""
    role_flavors = (role.flavors or job.spec.flavors for role in job.spec.roles)
    fault = invalid_dependency(job.spec.queue, role_flavors, queues, invalid_queues, invalid_flavors)
    if fault is not None:
        field = "spec.queue" if fault[0] == "QueueInactive" else "spec.flavors"
        raise Refused(f"{field}: {fault[1]}", field=field, reason=fault[0])
