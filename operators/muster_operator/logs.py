"""Logs to stderr as one JSON object per line: time, level, message, and the fields of `extra`.

Each scheduling cycle logs one line; at level debug one more for each decision.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime

from muster.cluster import CreatePod, DeletePod, WritePhase, WriteStatus
from muster.engine import CycleResult
from muster.model import Admit, Decision, Evict, Nominate, Placement, Resize, Wait
from muster_operator.cache.cluster_cache import ClusterCache

_STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}

CYCLE: ContextVar[str | None] = ContextVar("cycle", default=None)
"""Id of the scheduling cycle in progress: a field of every log line, Event and job status that it writes."""


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line: dict[str, object] = {"time": at, "level": record.levelname.lower(), "message": record.getMessage()}
        line |= {name: value for name, value in vars(record).items() if name not in _STANDARD_FIELDS}
        if (cycle := CYCLE.get()) is not None:
            line["cycle"] = cycle
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def log_to_stderr(level: str) -> None:
    """Set up logging for the whole process."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


_LOG = logging.getLogger("muster.operator.cycle")


@dataclass(slots=True)
class CycleDurations:
    """Seconds of each step of a cycle; `write_s` includes deferred statuses."""

    observe_s: float
    reconcile_s: float
    plan_s: float
    write_s: float = 0.0

    @property
    def decide_s(self) -> float:
        return self.observe_s + self.reconcile_s + self.plan_s


def log_cycle(cycle: CycleResult, durations: CycleDurations, cache: ClusterCache, unwritten: int) -> None:
    """Log the cycle, at level info if it decided or wrote anything other than waits, else at level debug.

    `unwritten`: jobs with writes that were not made. `JsonFormatter` adds the id of the cycle.
    """
    if not _LOG.isEnabledFor(logging.INFO):
        return
    decisions = [one for one in cycle.decisions if not isinstance(one, Wait)]
    admitted = sum(isinstance(one, Admit) for one in decisions)
    writes = _count_writes((*cycle.phases, cycle.deferred))
    fields: dict[str, float] = {
        **{name: round(getattr(durations, name), 6) for name in CycleDurations.__slots__},
        "gangs_considered": len(cycle.waits.keys() | {one.gang_uid for one in decisions if isinstance(one, Admit)}),
        "gangs_admitted": admitted,
        "gangs_preempted": sum(_preemptor(one) is not None for one in decisions),
        "gangs_waiting": len(cycle.waits),
        **writes,
        "jobs_unwritten": unwritten,
    }
    level = logging.INFO if decisions or any(writes.values()) else logging.DEBUG
    _LOG.log(level, "scheduling cycle", extra=fields)
    if _LOG.isEnabledFor(logging.DEBUG):
        for one in (*decisions, *cycle.waits.values()):
            _log_decision(one, cache)


def _count_writes(phases: Iterable[WritePhase]) -> dict[str, int]:
    writes = [write for phase in phases for item in phase for write in item.writes]
    statuses = sum(isinstance(one, WriteStatus) for one in writes)
    created, deleted = (sum(isinstance(one, kind) for one in writes) for kind in (CreatePod, DeletePod))
    return {"writes": len(writes), "status_writes": statuses, "pods_created": created, "pods_deleted": deleted}


def _preemptor(decision: Decision) -> str | None:
    return decision.preemptor if isinstance(decision, Evict | Resize) else None


def _log_decision(decision: Decision, cache: ClusterCache) -> None:
    fields: dict[str, object] = {"job": _job_name(decision.gang_uid, cache), "decision": type(decision).__name__}
    if isinstance(decision, Wait | Evict | Resize):
        fields["reason"] = decision.reason
    if isinstance(decision, Wait):
        fields |= {"why": decision.message, "position": decision.position}
        if decision.estimated_start is not None:
            fields["estimated_start"] = _format_time(decision.estimated_start)
    else:
        if not isinstance(decision, Evict):
            fields["placement"] = _format_placement(decision.placement)
        if isinstance(decision, Admit) and decision.backfilled:
            fields["backfilled"] = True
        if isinstance(decision, Nominate):
            fields["preempted"] = [_job_name(uid, cache) for uid in decision.victims]
            fields["expires_at"] = _format_time(decision.expires_at)
        if (preemptor := _preemptor(decision)) is not None:
            fields["preemptor"] = _job_name(preemptor, cache)
    _LOG.debug("decision", extra=fields)


def _format_time(time_s: float) -> str:
    """In UTC, to the second. `time_s` may be beyond what a date can be."""
    try:
        return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (OverflowError, ValueError, OSError):
        return str(time_s)


def _job_name(uid: str, cache: ClusterCache) -> str:
    known = cache.workload(uid)
    return uid if known is None else known.key


def _format_placement(placement: Placement) -> str:
    """ROLE@FLAVOR: NODE=PODS, ..."""
    return "; ".join(
        f"{part.role}@{part.flavor}: {', '.join(f'{node}={pods}' for node, pods in part.nodes)}" for part in placement
    )
