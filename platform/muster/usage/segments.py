"""Segments of a job: periods in which it was charged the same amounts."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from muster.api.quantity import clamp_quantity, format_quantity
from muster.api.spec import FlavorAmounts, JobUsageStatus, ObjectMeta, QueueingStatus, TrainingJob, UsageSegment
from muster.api.spec.fields import LABEL_VALUE
from muster.model import GangKey
from muster.workload.conditions import is_admitted

if TYPE_CHECKING:  # each start of `muster` imports this module
    from muster.workload.protocol import Workload

USER_LABEL = "muster.dev/user"
"""Label of a job: to whom its usage is attributed."""
_MAX_LABEL = 63
_REPLACEMENTS = (("@", "_at_"), ("/", "_._"), (":", "__"))  # the chart's admission policy has the same
SEGMENTS_PER_ATTEMPT = 1000
MAX_ENDED = 100
"""Segments kept in a status until the durable record has them. While a job has so many, a segment that ends is lost,
not those before it: with a few edits a user could otherwise remove a long one."""

Charge: TypeAlias = Mapping[tuple[str, str, str], int]
"""Amounts by (queue, flavor, resource), in the units of `muster.model`."""


class Charged(Protocol):
    """A workload or its object, with the usage in its status."""

    @property
    def metadata(self) -> ObjectMeta: ...

    @property
    def status(self) -> QueueingStatus: ...


def with_user(job: TrainingJob, name: str) -> TrainingJob:
    """The job with the label of this user (`label_of_user`), unless it has one or the user has none."""
    value = label_of_user(name)
    if USER_LABEL in job.metadata.labels or not value:
        return job
    metadata = job.metadata.model_copy(update={"labels": {**job.metadata.labels, USER_LABEL: value}})
    return job.model_copy(update={"metadata": metadata})


def label_of_user(name: str) -> str:
    """The label of a user: the name, with `@`, `/` and `:` replaced by `_at_`, `_._` and `__`. Empty for a name that is
    no label then, or contains a replacement itself, so that no two users have the same label."""
    label = name
    for character, replacement in _REPLACEMENTS:
        label = label.replace(character, replacement)
    restored = label
    for character, replacement in _REPLACEMENTS:
        restored = restored.replace(replacement, character)
    return label if restored == name and len(label) <= _MAX_LABEL and re.fullmatch(LABEL_VALUE, label) else ""


def is_recorded_resource(resource: str) -> bool:
    """Whether usage of the resource is recorded: cpu, and extended resources such as GPUs."""
    return resource == "cpu" or ("/" in resource and not resource.startswith("hugepages-"))


def next_usage(
    job: Workload,
    status: QueueingStatus,
    charge_of: Callable[[QueueingStatus], Charge | None],
    recorded: int,
    now: float,
) -> JobUsageStatus | None:
    """The usage to write with `status`, the next one of `job`, whose status is the present one.

    `charge_of`: what the job takes under a status in which it is admitted; None if unknown, then nothing changes while
    it stays admitted. `recorded`: number of segments that the durable record has of it. The same object if nothing
    changes.
    """
    old = job.status.usage
    current = _current_segment(job, charge_of)
    is_full = old is not None and len(old.ended) - max(recorded - old.first, 0) >= MAX_ENDED
    new: UsageSegment | None = None
    if is_admitted(status):
        charge = charge_of(status)
        new = current if charge is None else _segment(job, charge, now)
        if current is not None and new is not None and _takes_same(current, new, is_full):
            new = current
    if old is not None and new is old.current:
        return old
    ended = list(old.ended) if old is not None else []
    # an index of an array that is retried has no usage yet, and its segments follow those of its earlier attempts
    first = old.first if old is not None else max(recorded, job.status.attempt * SEGMENTS_PER_ATTEMPT)
    if current is not None and new is not current:
        ended.append(current.model_copy(update={"until": max(current.since, _to_ms(now) / 1000)}))
    dropped = max(min(recorded - first, len(ended)), 0)
    if old is None and new is None and not ended:
        return None
    return JobUsageStatus.model_construct(first=first + dropped, ended=ended[dropped:][:MAX_ENDED], current=new)


def _current_segment(job: Workload, charge_of: Callable[[QueueingStatus], Charge | None]) -> UsageSegment | None:
    """The segment of an admitted job that has not ended. A job that was admitted by a version without segments has one
    since its admission or last resize."""
    status = job.status
    if not is_admitted(status):
        return None
    if status.usage is not None and status.usage.current is not None:
        return status.usage.current
    charge = charge_of(status)
    if charge is None or status.admitted_at is None:
        return None
    return _segment(job, charge, max(status.admitted_at, status.resized_at or 0.0))


def _segment(job: Workload, charge: Charge, since: float) -> UsageSegment:
    flavors: dict[str, dict[str, str]] = {}
    for (_, flavor, resource), amount in sorted(charge.items()):
        if amount and is_recorded_resource(resource):
            flavors.setdefault(flavor, {})[resource] = format_quantity(amount, resource)
    return UsageSegment.model_construct(
        queue=job.queue,
        user=job.metadata.labels.get(USER_LABEL, ""),
        since=_to_ms(since) / 1000,
        until=None,
        flavors=[FlavorAmounts.model_construct(flavor=name, amounts=amounts) for name, amounts in flavors.items()],
    )


def _takes_same(one: UsageSegment, other: UsageSegment, by_any_user: bool) -> bool:
    """Whether the segments differ in their times alone, or, `by_any_user`, also in their user."""
    return (one.queue, one.flavors) == (other.queue, other.flavors) and (by_any_user or one.user == other.user)


def _to_ms(time_s: float) -> int:
    return round(time_s * 1000)


@dataclass(frozen=True, slots=True)
class ChargedSegment:
    """A segment in the units of sums. Times are Unix milliseconds; `amounts` by (flavor, resource) in the units of
    `muster.model`."""

    namespace: str
    queue: str
    user: str
    since_ms: int
    until_ms: int
    amounts: tuple[tuple[tuple[str, str], int], ...]


@dataclass(frozen=True, slots=True)
class JobSegments:
    """All segments of a job that are known now. `ended` begins with number `first`; `current` ends now. `until_ms`:
    the time up to which `current` counts."""

    uid: str
    first: int
    ended: tuple[ChargedSegment, ...]
    current: ChargedSegment | None

    @property
    def count(self) -> int:
        return self.first + len(self.ended)

    @property
    def namespace(self) -> str:
        segments = self.ended if self.current is None else (*self.ended, self.current)
        return segments[0].namespace if segments else ""

    def count_until(self, until_ms: int) -> int:
        """Number of segments that ended until a time."""
        return self.first + sum(segment.until_ms <= until_ms for segment in self.ended)

    def after(self, recorded: int) -> Sequence[ChargedSegment]:
        """Segments that have ended, without the first `recorded`."""
        return self.ended[max(0, recorded - self.first) :]

    def with_end(self) -> JobSegments:
        """The segments of a job that was deleted at the end of `current`."""
        if self.current is None:
            return self
        return JobSegments(self.uid, self.first, (*self.ended, self.current), None)


def segments_of(job: Charged, now: float, key: GangKey | None = None) -> JobSegments | None:
    """The segments in the status of a job; None if it has none. `key`: of the gang, if it is not the only one."""
    usage = job.status.usage
    if usage is None:
        return None
    namespace, now_ms = job.metadata.namespace or "default", _to_ms(now)
    ended = tuple(_to_segment(namespace, one, _to_ms(one.until or one.since)) for one in usage.ended)
    current = None
    if usage.current is not None:
        current = _to_segment(namespace, usage.current, max(now_ms, _to_ms(usage.current.since)))
    return JobSegments(key or job.metadata.uid, usage.first, ended, current)


def _to_segment(namespace: str, one: UsageSegment, until_ms: int) -> ChargedSegment:
    amounts = tuple(
        ((part.flavor, resource), clamp_quantity(amount, resource))
        for part in one.flavors
        for resource, amount in part.amounts.items()
    )
    return ChargedSegment(namespace, one.queue, one.user, _to_ms(one.since), until_ms, amounts)
