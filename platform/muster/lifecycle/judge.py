"""Has the present attempt of an admitted gang ended, and how?

Completion is asked first, before what the user wants now, since a gang that has done its work cannot fail any more, nor
be paused or cancelled. Then `judge` looks in this order: its size edited; a node or pod lost; a pod failed; out of
time; a node drained; stuck; all ready; not started in time. Loss comes before failure, since pods fail when their peers
vanish.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from muster.cluster import PodView
from muster.lifecycle import moves
from muster.lifecycle.bounds import Bounds
from muster.lifecycle.conditions import COMPLETE, FAILED, PODS_READY, is_leaving, is_true, set_condition, with_fields
from muster.lifecycle.failure import (
    Action,
    blame,
    cause,
    is_gone,
    is_infrastructure,
    last_failure,
    rule_for,
    sentence,
    slow_starters,
)
from muster.lifecycle.finished import SeatKey, recorded
from muster.lifecycle.moves import START_TIMEOUT
from muster.lifecycle.places import from_status, pod_name, seats, size
from muster.lifecycle.sight import Sight, max_grace
from muster.model import Placement, RolePlacement
from muster.spec import LastFailure, TrainingJob, TrainingJobStatus

Event: TypeAlias = tuple[Literal["Normal", "Warning"], str, str]


@dataclass(frozen=True, slots=True)
class Ruling:
    """The status after judgement, what a person should read of it, and when to judge again if nothing has ended."""

    status: TrainingJobStatus
    event: Event | None = None
    wakes: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class _Case:
    job: TrainingJob
    status: TrainingJobStatus
    sight: Sight
    bounds: Bounds
    pods: tuple[PodView, ...]  # of the present attempt
    cleared: bool  # nothing is left of older attempts
    finished: frozenset[SeatKey]  # pods that did their work and are gone


def judge(job: TrainingJob, status: TrainingJobStatus, sight: Sight, bounds: Bounds) -> Ruling:
    """The first finding that applies to a gang that is not through, or when to look again. One that leaves, leaves."""
    if is_leaving(status):
        return Ruling(status)
    case = _case(job, status, sight, bounds)
    for finding in _FINDINGS:
        ruling = finding(case)
        if ruling is not None:
            return ruling
    return Ruling(status, wakes=tuple(_deadlines(case).values()))


def _case(job: TrainingJob, status: TrainingJobStatus, sight: Sight, bounds: Bounds) -> _Case:
    pods = tuple(pod for pod in sight.pods if pod.attempt == status.attempt)
    finished = recorded(status) - {(pod.role, pod.index) for pod in pods}
    return _Case(job, status, sight, bounds, pods, len(pods) == len(sight.pods), finished)


def completed(job: TrainingJob, status: TrainingJobStatus, sight: Sight, bounds: Bounds) -> Ruling | None:
    """The end of an admitted gang whose essential pods have all exited with 0 by themselves; None while some have not.

    Also of a gang that leaves: what exits because it was told to does not count.
    """
    case = _case(job, status, sight, bounds)
    essential = {role.name for role in case.job.spec.roles if role.essential}
    wanted = sum(part.replicas for part in from_status(case.status.placement) if part.role in essential)
    done = [pod for pod in case.pods if pod.role in essential and pod.phase == "Succeeded" and not pod.deleting]
    gone = sum(role in essential for role, _ in case.finished)
    if wanted == 0 or len(done) + gone < wanted:
        return None
    now = case.sight.now
    message = f"all {wanted} essential pods exited with code 0" if wanted > 1 else "the pod exited with code 0"
    status = _started(case, case.status)
    status = moves.finish(status, COMPLETE, "Completed", message, now)
    return Ruling(status, ("Normal", "Completed", message))


def _edited(case: _Case) -> Ruling | None:
    """Sizes may change while the gang runs: above the most it restarts smaller, below the least it requeues."""
    most = {role.name: case.job.spec.most_replicas(role) for role in case.job.spec.roles}
    parts = from_status(case.status.placement)
    if all(part.role in most and _least(case, part.role) <= part.replicas <= most[part.role] for part in parts):
        return None
    if any(part.role not in most or part.replicas < _least(case, part.role) for part in parts):
        message = "its roles were edited; it needs another placement"
        return Ruling(moves.evict(case.status, "Edited", message, case.sight.now), ("Normal", "Edited", message))
    smaller: Placement = tuple(_cut(part, most[part.role]) for part in parts)
    status = moves.resize(case.status, smaller, "Edited", case.sight.now, eviction=None)
    return Ruling(status, ("Normal", "Resized", f"replicas was lowered: restarts with {_pods(size(status.placement))}"))


def _pods(number: int) -> str:
    return "1 pod" if number == 1 else f"{number} pods"


def _lost(case: _Case) -> Ruling | None:
    now, nodes = case.sight.now, case.sight.nodes
    places = {share.node for part in case.status.placement for share in part.nodes}
    gone = sorted(name for name in places if is_gone(nodes.get(name), now, case.bounds))
    sick = sorted(name for name in places if name not in gone and not nodes[name].ready)
    pods = [pod for pod in case.pods if _is_lost(case, pod)]
    there = len(case.pods) + len(case.finished)
    missing = 0 if case.status.started_at is None else size(case.status.placement) - there
    collateral = bool(sick) and cause(case.pods) is not None
    if not (gone or pods or missing > 0 or collateral):
        return None
    if gone or collateral:
        reason, message = "NodeLost", f"lost node {', '.join(gone or sick)}"
    elif pods:
        reason, message = "PodLost", f"lost pod {pods[0].name} on {pods[0].node}"
    else:
        reason, message = "PodLost", f"{missing} of its pods vanished"
    losses = case.status.node_losses + 1
    status = with_fields(case.status, {"node_losses": losses})  # nobody to blame: a node that is down takes no pods
    if losses > case.bounds.node_losses:
        message = f"{message}; {case.bounds.node_losses} such losses are the most a job may have"
        return Ruling(moves.finish(status, FAILED, "TooManyNodeLosses", message, now), ("Warning", "Failed", message))
    return Ruling(moves.evict(status, reason, message, now), ("Warning", reason, message))


def _failed(case: _Case) -> Ruling | None:
    pod = cause(case.pods)
    if pod is None:
        return None
    status = with_fields(case.status, {"last_failure": last_failure(pod, case.sight.now, case.bounds)})
    action = rule_for(case.job.spec.failure_policy, pod)
    return _after_failure(case, status, action or "RestartGang", ("Failed", sentence(pod)), pod.node)


def _out_of_time(case: _Case) -> Ruling | None:
    if case.sight.now < _deadlines(case).get("runtime", float("inf")):
        return None
    message = f"ran for its maxRuntimeSeconds of {case.job.spec.max_runtime_seconds}"
    status = moves.finish(case.status, FAILED, "MaxRuntimeExceeded", message, case.sight.now)
    return Ruling(status, ("Warning", "MaxRuntimeExceeded", message))


def _drained(case: _Case) -> Ruling | None:
    """Who drains a node asks its gangs to leave with a checkpoint: no failure, and no loss that counts."""
    nodes = sorted({share.node for part in case.status.placement for share in part.nodes})
    drained = [name for name in nodes if (view := case.sight.nodes.get(name)) is not None and view.draining]
    if not drained:
        return None
    message = f"leaves {', '.join(drained)}, which {'is' if len(drained) == 1 else 'are'} being drained"
    return Ruling(moves.evict(case.status, "Drained", message, case.sight.now), ("Normal", "Drained", message))


def _stuck(case: _Case) -> Ruling | None:
    if case.sight.now < _deadlines(case).get("stall", float("inf")):
        return None
    step = f"step {case.sight.beat.step}" if case.sight.beat is not None else "its start"
    message = f"no step for {case.job.spec.stall_timeout_seconds} s after {step}"
    pod = min(case.pods, key=lambda pod: (pod.index, pod.role))
    failure = LastFailure(pod=pod.name, node=pod.node, reason="Stalled", log_tail=message, at=case.sight.now)
    status = with_fields(case.status, {"last_failure": failure})
    return _after_failure(case, status, "RestartGang", ("Stalled", message), pod.node)


def _late(case: _Case) -> Ruling | None:
    now = case.sight.now
    if now < _deadlines(case).get("start", float("inf")):
        return None
    ready = {(pod.role, pod.index): pod for pod in case.pods if _is_up(pod)}
    pods = {(pod.role, pod.index): pod for pod in case.pods}
    wanted = list(seats(case.status.placement))
    late = [seat for seat in wanted if (seat.role, seat.index) not in ready.keys() | case.finished]
    blockers = Counter(pod.start_blocker for seat in late if (pod := pods.get((seat.role, seat.index))) is not None)
    counts = ", ".join(f"{name}: {count}" for name, count in sorted(blockers.items()) if name)
    who = f"{len(late)} of {len(wanted)} pods were" if len(wanted) > 1 else "the pod was"
    timeout_s = case.job.spec.start_timeout_seconds
    message = f"{who} not ready within {timeout_s} s{f' ({counts})' if counts else ''}"
    late_pods = ((seat.node, pods.get((seat.role, seat.index))) for seat in late)
    blamed = slow_starters(late_pods, ready.values(), long_enough=timeout_s >= case.bounds.sandbox_s)
    meta = case.job.metadata
    failure = LastFailure(
        pod=pod_name(meta.name, meta.uid, late[0].role, late[0].index, case.status.attempt),
        node=late[0].node,
        reason=START_TIMEOUT,
        log_tail=message,
        at=now,
    )
    fields = {"last_failure": failure, "blamed_nodes": blame(case.status.blamed_nodes, blamed, now, case.bounds)}
    return _start_again(case, with_fields(case.status, fields), message)


def _start_again(case: _Case, status: TrainingJobStatus, message: str) -> Ruling:
    """Queue a gang again that was not ready in time, after a backoff; or the end, as maxStartRetries says."""
    now, most, retries = case.sight.now, case.job.spec.failure_policy.max_start_retries, status.start_retries
    if most is not None and retries >= most:
        message = f"{message}; start retries: {retries}, maxStartRetries: {most}"
        return Ruling(moves.finish(status, FAILED, START_TIMEOUT, message, now), ("Warning", "Failed", message))
    status = with_fields(status, {"start_retries": retries + 1})
    limit = "" if most is None else f" of {most}"
    message = (
        f"{message}; start retry {retries + 1}{limit} after {moves.backoff_s(status, START_TIMEOUT, case.bounds):g} s"
    )
    return Ruling(moves.evict(status, START_TIMEOUT, message, now), ("Warning", START_TIMEOUT, message))


def _ready(case: _Case) -> Ruling | None:
    if is_true(case.status, PODS_READY) or not case.cleared:
        return None
    wanted = size(case.status.placement)
    if sum(_is_up(pod) for pod in case.pods) + len(case.finished) < wanted:
        return None
    status = with_fields(_started(case, case.status), {"pods_ready": wanted, "requeue_after": None, "start_retries": 0})
    status = set_condition(
        status,
        PODS_READY,
        True,
        "Ready",
        f"all {wanted} pods are ready" if wanted > 1 else "the pod is ready",
        case.sight.now,
    )
    return Ruling(status, wakes=tuple(_deadlines(_replace_status(case, status)).values()))


_FINDINGS: tuple[Callable[[_Case], Ruling | None], ...] = (
    _edited,
    _lost,
    _failed,
    _out_of_time,
    _drained,
    _stuck,
    _ready,
    _late,
)


def _after_failure(case: _Case, status: TrainingJobStatus, action: Action, why: tuple[str, str], node: str) -> Ruling:
    """Restart here, restart elsewhere, or the end: by rule, or because the restarts are used up."""
    now, most = case.sight.now, case.job.spec.failure_policy.max_restarts
    reason, message = why
    if action == "FailJob":
        message = f"{message}; a rule of its failurePolicy ends the job"
        return Ruling(moves.finish(status, FAILED, "FailedByRule", message, now), ("Warning", "Failed", message))
    if status.restarts >= most:
        message = f"{message}; {_restarted(status.restarts, most)}"
        end = reason if reason != "Failed" else "TooManyRestarts"
        return Ruling(moves.finish(status, FAILED, end, message, now), ("Warning", "Failed", message))
    status = with_fields(status, {"restarts": status.restarts + 1})
    cordoned = _cordoned(case)
    if action == "RestartElsewhere":
        status = with_fields(status, {"blamed_nodes": blame(status.blamed_nodes, [node], now, case.bounds)})
    elif cordoned:
        action, message = "RestartElsewhere", f"{message}; {', '.join(cordoned)} takes no new pods"
    if action != "RestartGang":
        return Ruling(moves.evict(status, action, message, now), ("Warning", action, message))
    delay_s = case.bounds.backoff(status.restarts)
    text = f"{message}; restart {status.restarts} of {most} in {delay_s:g} s"
    return Ruling(moves.restart(status, "Restarting", text, now, delay_s), ("Warning", "Restarting", text))


def _restarted(restarts: int, most: int) -> str:
    """Why no restart is left, as the end of a sentence about the failure."""
    if most == 0:
        return "no restarts are allowed (maxRestarts is 0)"
    times = "once" if restarts == 1 else f"{restarts} times"
    return f"it was restarted {times} already, maxRestarts is {most}"


def _deadlines(case: _Case) -> dict[str, float]:
    """When the attempt is out of time, stuck, or late, as far as these can still happen."""
    spec, status, ends = case.job.spec, case.status, {}
    admitted_at = case.sight.now if status.admitted_at is None else status.admitted_at
    if spec.max_runtime_seconds is not None:
        ends["runtime"] = admitted_at + spec.max_runtime_seconds
    if spec.stall_timeout_seconds is not None and status.started_at is not None and case.pods:
        stepped_at = status.started_at if case.sight.beat is None else case.sight.beat.step_at
        ends["stall"] = max(status.started_at, stepped_at) + spec.stall_timeout_seconds
    if not is_true(status, PODS_READY) and case.cleared:
        since = admitted_at if status.requeue_after is None else status.requeue_after + max_grace(case.job)
        ends["start"] = max(admitted_at, since) + spec.start_timeout_seconds
    return ends


def _started(case: _Case, status: TrainingJobStatus) -> TrainingJobStatus:
    return status if status.started_at is not None else with_fields(status, {"started_at": case.sight.now})


def _replace_status(case: _Case, status: TrainingJobStatus) -> _Case:
    return replace(case, status=status)


def _cordoned(case: _Case) -> list[str]:
    places = {share.node for part in case.status.placement for share in part.nodes}
    views = (case.sight.nodes.get(name) for name in sorted(places))
    return [view.name for view in views if view is not None and (view.cordoned or view.draining)]


def _is_up(pod: PodView) -> bool:
    return pod.phase == "Succeeded" or (pod.phase == "Running" and pod.ready)


def _is_lost(case: _Case, pod: PodView) -> bool:
    if pod.phase == "Lost" or (pod.deleting and pod.phase != "Succeeded"):
        return True
    infrastructure = pod.phase == "Failed" and is_infrastructure(pod)
    return infrastructure and rule_for(case.job.spec.failure_policy, pod) is None


def _least(case: _Case, role: str) -> int:
    part = next(part for part in case.job.spec.roles if part.name == role)
    return part.replicas if part.min_replicas is None else part.min_replicas


def _cut(part: RolePlacement, most: int) -> RolePlacement:
    nodes, left = [], most
    for node, count in part.nodes:
        if left > 0:
            nodes.append((node, min(count, left)))
            left -= count
    return RolePlacement(part.role, part.flavor, tuple(nodes))
