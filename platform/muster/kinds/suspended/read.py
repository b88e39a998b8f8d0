"""Reads an object of a kind: what its row names, and the labels and annotations that Muster knows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from muster.errors import InvalidSpec
from muster.kinds.suspended.pod_shape import PodShape, pod_shape
from muster.kinds.suspended.table import (
    CANCEL_ANNOTATION,
    PRIORITY_ANNOTATION,
    QUEUE_LABEL,
    START_TIMEOUT_ANNOTATION,
    SUSPEND_ANNOTATION,
    KindRow,
    PodSetRow,
)
from muster.model import Resources

DEFAULT_START_TIMEOUT_S = 600.0
_MAX_COUNT = 100_000  # pods of one set
_MAX_PRIORITY = 2**31 - 1
_MAX_SECONDS = 10**9


@dataclass(frozen=True, slots=True)
class PodSet:
    """Pods of one template: how many are needed now, and what each asks for. `pointer`: of its template (RFC 6901);
    `known_request`: what such pods request as the API server creates them, once it has; `later`: they are created after
    others were ready or have completed."""

    row: PodSetRow
    name: str
    count: int
    shape: PodShape
    pointer: str = ""
    later: bool = False
    known_request: Resources | None = None

    @property
    def request(self) -> Resources:
        """What one of its pods is charged for."""
        return self.shape.request if self.known_request is None else self.known_request


@dataclass(frozen=True, slots=True)
class ObjectState:
    """What an object says. `outcome`: how it has ended, with the reason and message of its controller; `has_started`:
    its controller has started it, and it must be reset before its templates may change."""

    queue: str
    suspend: bool
    pod_sets: tuple[PodSet, ...]
    outcome: Literal["", "Complete", "Failed"] = ""
    outcome_reason: str = ""
    outcome_message: str = ""
    has_started: bool = False
    max_runtime_s: float | None = None
    priority: int = 0
    start_timeout_s: float = DEFAULT_START_TIMEOUT_S
    user_suspends: bool = False
    user_cancels: bool = False
    patch_managers: tuple[str, ...] | None = None
    """Of its runtime patches; None if it has no such list."""


def read_object(row: KindRow, document: Mapping[str, Any]) -> ObjectState:
    """The state of a document with metadata, spec and status. Raises InvalidSpec, pydantic's ValidationError and what
    else an arbitrary document may cause."""
    meta = document.get("metadata") or {}
    labels, annotations = meta.get("labels") or {}, meta.get("annotations") or {}
    outcome, reason, message = _outcome(row, (document.get("status") or {}).get("conditions") or ())
    return ObjectState(
        queue=str(labels.get(QUEUE_LABEL, "")),
        suspend=at_path(document, row.suspend) is True,
        pod_sets=() if row.shown_by is not None else read_pod_sets(row, document),
        outcome=outcome,
        outcome_reason=reason,
        outcome_message=message,
        has_started=bool(row.start_time) and at_path(document, row.start_time) is not None,
        max_runtime_s=_max_runtime_s(row, document),
        priority=_number(annotations, PRIORITY_ANNOTATION, 0, -_MAX_PRIORITY, _MAX_PRIORITY),
        start_timeout_s=float(
            _number(annotations, START_TIMEOUT_ANNOTATION, int(DEFAULT_START_TIMEOUT_S), 1, _MAX_SECONDS)
        ),
        user_suspends=annotations.get(SUSPEND_ANNOTATION) == "true",
        user_cancels=annotations.get(CANCEL_ANNOTATION) == "true",
        patch_managers=_patch_managers(row, document),
    )


def read_pod_sets(row: KindRow, document: Mapping[str, Any]) -> tuple[PodSet, ...]:
    """The pod sets of a document. Raises as `read_object` does."""
    found = [_pod_set(one, document) for one in row.pod_sets if not one.each]
    for one in row.pod_sets:
        for number, item in enumerate(at_path(document, one.each) or () if one.each else ()):
            pointer = f"/{one.each.replace('.', '/')}/{number}"
            found.append(_pod_set(one, item, str(item["name"]), pointer))
    total = sum(one.count for one in found)
    if total > _MAX_COUNT:
        raise InvalidSpec(f"has {total} pods, more than {_MAX_COUNT}")
    return tuple(one for one in found if one.count)


def _patch_managers(row: KindRow, document: Mapping[str, Any]) -> tuple[str, ...] | None:
    patches = at_path(document, row.runtime_patches) if row.runtime_patches else None
    return None if patches is None else tuple(str(one["manager"]) for one in patches)


def at_path(document: Mapping[str, Any], path: str) -> Any:
    """The value at a path such as `spec.template`; None if there is none."""
    found: Any = document
    for name in path.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def value_at(path: str, value: Any) -> dict[str, Any]:
    """The document that has this value at a path, and nothing else."""
    for name in reversed(path.split(".")):
        value = {name: value}
    assert isinstance(value, dict)
    return value


def _pod_set(row: PodSetRow, document: Mapping[str, Any], name: str = "", pointer: str = "") -> PodSet:
    template = at_path(document, row.template)
    if not isinstance(template, Mapping):
        field = f"{row.each}[{name}].{row.template}" if name else row.template
        raise InvalidSpec(f"{field}: must be a pod template", field=field)
    return PodSet(
        row,
        name or row.name,
        _count(row, document),
        pod_shape(template),
        f"{pointer}/{row.template.replace('.', '/')}",
        later=bool(row.later and at_path(document, row.later)),
    )


def _count(row: PodSetRow, document: Mapping[str, Any]) -> int:
    """How many pods are needed now: those that have completed need no other."""
    counts = [int(found) for path in row.counts if (found := at_path(document, path)) is not None]
    total = at_path(document, row.total) if row.total else None
    if total is not None:
        counts = [*(counts or [1]), int(total) - int(at_path(document, row.completed) or 0)]
    one = max(1, min(counts, default=1))
    times = at_path(document, row.times) if row.times else None
    count = one if times is None else one * max(0, int(times))
    if count > _MAX_COUNT:
        message = f"{', '.join(row.counts) or row.total}: must be at most {_MAX_COUNT} pods at once (got {count})"
        raise InvalidSpec(message, field=(*row.counts, row.total)[0])
    return count


def _max_runtime_s(row: KindRow, document: Mapping[str, Any]) -> float | None:
    seconds = at_path(document, row.max_runtime) if row.max_runtime else None
    if seconds is None or (seconds == 0 and row.shown_by is not None):  # TrainJobs: not set
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < float("inf"):
        message = f"{row.max_runtime}: must be a finite number of seconds that is not negative (got {seconds!r})"
        raise InvalidSpec(message, field=row.max_runtime)
    return float(seconds)


def _outcome(row: KindRow, conditions: Any) -> tuple[Literal["", "Complete", "Failed"], str, str]:
    for one in conditions:
        if one.get("status") == "True" and one.get("type") in (row.complete, row.failed):
            outcome: Literal["Complete", "Failed"] = "Complete" if one["type"] == row.complete else "Failed"
            return outcome, str(one.get("reason") or outcome), str(one.get("message") or "")
    return "", "", ""


def _number(annotations: Mapping[str, str], name: str, default: int, least: int, most: int) -> int:
    text = annotations.get(name)
    if text is None:
        return default
    try:
        number = int(text)
    except ValueError:
        number = most + 1
    if not least <= number <= most:
        raise InvalidSpec(f"annotation {name}: must be an integer from {least} to {most} (got {text!r})", field=name)
    return number
