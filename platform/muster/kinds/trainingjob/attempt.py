"""Whether the present attempt of an admitted gang has ended, and how.

Completion is checked first, before spec.cancel and spec.suspend, since a gang that has completed can no longer fail, be
suspended or be cancelled. Then `evaluate_attempt` checks in this order: roles edited; a pod rejected by a kubelet; a
node or pod lost; a pod failed; maximum run time; a node drained; stalled; all ready; start timeout. Loss comes before
failure, since pods fail when their peers disappear.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from muster.api.spec import LastFailure, TrainingJob, TrainingJobStatus
from muster.cluster import Heartbeat, PodView
from muster.kinds.trainingjob.attempt_context import AttemptContext
from muster.kinds.trainingjob.failure import (
    STALL,
    FailureAction,
    failure_message,
    first_failed_pod,
    is_infrastructure_failure,
    is_signal,
    matching_action,
    to_last_failure,
)
from muster.kinds.trainingjob.pods import max_grace_period_s
from muster.kinds.trainingjob.stalls import has_stepped
from muster.kinds.trainingjob.starting import check_rejected, requeue_late_gang
from muster.model import Placement
from muster.workload import transitions
from muster.workload.blame import add_blamed_nodes
from muster.workload.conditions import (
    COMPLETE,
    FAILED,
    PODS_READY,
    is_condition_true,
    is_evicting,
    with_status_fields,
)
from muster.workload.node_loss import is_node_lost
from muster.workload.observation import Observation
from muster.workload.placement import (
    ended_pods,
    first_pods,
    from_status,
    pod_count,
    pods_of_placement,
    recorded_finished_pods,
)
from muster.workload.protocol import Transition
from muster.workload.run_checks import check_drained, check_max_runtime, check_ready
from muster.workload.timeouts import Timeouts


def evaluate_attempt(
    job: TrainingJob, status: TrainingJobStatus, observation: Observation, timeouts: Timeouts
) -> Transition:
    """The first check that applies to a gang that has not completed, or when to evaluate again. A gang that is being
    evicted is not evaluated."""
    if is_evicting(status):
        return Transition(status)
    case = _attempt_context(job, status, observation, timeouts)
    for finding in _CHECKS:
        transition = finding(case)
        if transition is not None:
            return transition
    return Transition(status, wake_times=tuple(_deadlines(case).values()))


def _attempt_context(
    job: TrainingJob, status: TrainingJobStatus, observation: Observation, timeouts: Timeouts
) -> AttemptContext:
    pods = pods_of_placement(status, observation.pods)
    finished = recorded_finished_pods(status) - {(pod.role, pod.index) for pod in pods}
    running = sum(pod.holds_capacity for pod in observation.pods)
    old_pods_ended = running == sum(pod.holds_capacity for pod in pods)
    return AttemptContext(job, status, observation, timeouts, pods, old_pods_ended, finished)


def evaluate_completion(
    job: TrainingJob, status: TrainingJobStatus, observation: Observation, timeouts: Timeouts
) -> Transition | None:
    """Complete an admitted gang whose essential pods have all exited with 0 by themselves; None while some have not.
    Also for a gang that is being evicted: pods that exit because they are stopped count only if the last step is known
    to be done, since programs may exit with 0 after they have saved a checkpoint."""
    case = _attempt_context(job, status, observation, timeouts)
    essential = {role.name for role in case.job.spec.roles if role.essential}
    wanted = sum(part.replicas for part in from_status(case.status.placement) if part.role in essential)
    counted = [pod for pod in case.pods if pod.role in essential and pod.phase == "Succeeded"]
    all_steps, recorded = has_done_all_steps(status, observation.heartbeat), recorded_finished_pods(status)
    done = [pod for pod in counted if not pod.deleting or all_steps or (pod.role, pod.index) in recorded]
    finished = sum(role in essential for role, _ in case.finished)
    if wanted == 0 or len(done) + finished < wanted:
        return None
    now = case.observation.now
    message = f"all {wanted} essential pods exited with code 0" if wanted > 1 else "the pod exited with code 0"
    status = _with_started_at(case, case.status)
    status = transitions.finish(status, COMPLETE, "Completed", message, now)
    return Transition(status, ("Normal", "Completed", message))


def _check_roles_changed(context: AttemptContext) -> Transition | None:
    """Sizes may be edited while the gang runs: above the maximum it restarts smaller, below the minimum it requeues."""
    most = {role.name: context.job.spec.max_replicas(role) for role in context.job.spec.roles}
    parts = from_status(context.status.placement)
    if all(
        part.role in most and _min_replicas(context, part.role) <= part.replicas <= most[part.role] for part in parts
    ):
        return None
    unknown = any(part.role not in most or part.replicas < _min_replicas(context, part.role) for part in parts)
    if unknown or ended_pods(context.status, context.observation.pods):
        message = "roles were edited; a new placement is needed"
        return Transition(
            transitions.evict(context.status, "Edited", message, context.observation.now), ("Normal", "Edited", message)
        )
    smaller: Placement = tuple(first_pods(part, most[part.role]) for part in parts)
    status = transitions.resize(context.status, smaller, "Edited", context.observation.now, eviction=None)
    return Transition(
        status,
        ("Normal", "Resized", f"replicas was lowered: restarts with {_pod_count_text(pod_count(status.placement))}"),
    )


def _pod_count_text(number: int) -> str:
    return "1 pod" if number == 1 else f"{number} pods"


def _check_lost(context: AttemptContext) -> Transition | None:
    now, nodes = context.observation.now, context.observation.nodes
    places = {share.node for part in context.status.placement for share in part.nodes}
    lost = sorted(name for name in places if is_node_lost(nodes.get(name), now, context.timeouts))
    not_ready = sorted(name for name in places if name not in lost and not nodes[name].ready)
    pods = [pod for pod in context.pods if _is_pod_lost(context, pod)]
    there = len(context.pods) + len(context.finished)
    missing = 0 if context.status.started_at is None else pod_count(context.status.placement) - there
    failed_with_node = bool(not_ready) and first_failed_pod(context.pods) is not None
    if not (lost or pods or missing > 0 or failed_with_node):
        return None
    if lost or failed_with_node:
        reason, message = "NodeLost", f"lost node {', '.join(lost or not_ready)}"
    elif pods:
        reason, message = "PodLost", f"lost pod {pods[0].name} on {pods[0].node}{_cause_text(pods[0])}"
    else:
        reason, message = "PodLost", f"{missing} of its pods no longer exist"
    losses = context.status.node_losses + 1
    status = with_status_fields(
        context.status, {"node_losses": losses}
    )  # no node is excluded: a node that is down takes no pods anyway
    if losses > context.timeouts.max_node_losses:
        message = f"{message}; {context.timeouts.max_node_losses} node losses are the most a job may have"
        return Transition(
            transitions.finish(status, FAILED, "TooManyNodeLosses", message, now), ("Warning", "Failed", message)
        )
    delay_s = transitions.backoff_s(status, reason, context.timeouts)
    message += f"; starts again after {delay_s:g} s" if delay_s else ""
    return Transition(transitions.evict(status, reason, message, now), ("Warning", reason, message))


def _cause_text(pod: PodView) -> str:
    """` (DisruptionTarget: Taint manager: deleting due to NoExecute taint)`, as far as known."""
    cause = ": ".join(text for text in (pod.reason, pod.message) if text)
    return f" ({cause})" if cause else ""


def _check_failed(context: AttemptContext) -> Transition | None:
    pod = first_failed_pod(context.pods)
    if pod is None:
        return None
    failure = to_last_failure(pod, context.observation.now, context.timeouts)
    status = with_status_fields(context.status, {"last_failure": failure})
    action = matching_action(context.job.spec.failure_policy, pod)
    return _apply_failure_policy(
        context, status, action or "RestartGang", ("Failed", failure_message(pod, failure)), pod.node
    )


def _check_max_runtime(context: AttemptContext) -> Transition | None:
    max_runtime_s = context.job.spec.max_runtime_seconds
    return check_max_runtime(context.status, max_runtime_s, "maxRuntimeSeconds", context.observation.now)


def _check_drained(context: AttemptContext) -> Transition | None:
    return check_drained(context.status, context.observation)


def _check_stalled(context: AttemptContext) -> Transition | None:
    now, ends, spec = context.observation.now, _deadlines(context), context.job.spec
    if now >= ends.get("stall", math.inf) and context.observation.heartbeat is not None:
        message = f"no step for {spec.stall_timeout_seconds} s after step {context.observation.heartbeat.step}"
    elif now >= ends.get("first_step", math.inf):
        message = f"no step within {spec.first_step_timeout_seconds} s of its start"
    else:
        return None
    pod = min(context.pods, key=lambda pod: (pod.index, pod.role))
    failure = LastFailure(pod=pod.name, node=pod.node, reason=STALL, log_tail=message, at=context.observation.now)
    status = with_status_fields(context.status, {"last_failure": failure})
    return _apply_failure_policy(context, status, "RestartGang", (STALL, message), pod.node)


def _check_start_timeout(context: AttemptContext) -> Transition | None:
    if context.observation.now < _deadlines(context).get("start", float("inf")):
        return None
    return requeue_late_gang(context)


def _check_ready(context: AttemptContext) -> Transition | None:
    if not context.old_pods_ended:
        return None
    status = check_ready(context.status, context.pods, len(context.finished), context.observation.now)
    if status is None:
        return None
    return Transition(status, wake_times=tuple(_deadlines(_with_status(context, status)).values()))


_CHECKS: tuple[Callable[[AttemptContext], Transition | None], ...] = (
    _check_roles_changed,
    check_rejected,
    _check_lost,
    _check_failed,
    _check_max_runtime,
    _check_drained,
    _check_stalled,
    _check_ready,
    _check_start_timeout,
)


def _apply_failure_policy(
    context: AttemptContext,
    status: TrainingJobStatus,
    action: FailureAction,
    reason_and_message: tuple[str, str],
    node: str,
) -> Transition:
    """Restart here, restart elsewhere, or fail: by rule, or because maxRestarts is reached."""
    now, most = context.observation.now, context.job.spec.failure_policy.max_restarts
    reason, message = reason_and_message
    if action == "FailJob":
        message = f"{message}; a rule of failurePolicy fails the job"
        return Transition(
            transitions.finish(status, FAILED, "FailurePolicy", message, now), ("Warning", "Failed", message)
        )
    if status.restarts >= most:
        message = f"{message}; {_restarts_exhausted_message(status.restarts, most)}"
        end = reason if reason != "Failed" else "TooManyRestarts"
        return Transition(transitions.finish(status, FAILED, end, message, now), ("Warning", "Failed", message))
    status = with_status_fields(status, {"restarts": status.restarts + 1})
    cordoned = _cordoned_nodes(context)
    if action == "RestartElsewhere":
        status = with_status_fields(
            status, {"blamed_nodes": add_blamed_nodes(status.blamed_nodes, [node], action, now, context.timeouts)}
        )
    elif cordoned:
        action, message = "RestartElsewhere", f"{message}; {', '.join(cordoned)} accepts no new pods"
    elif ended := ended_pods(status, context.observation.pods):
        completed = f"{_pod_count_text(len(ended))} had completed, and the capacity is asked for again"
        action, message = "RestartElsewhere", f"{message}; {completed}"
    if action != "RestartGang":
        return Transition(transitions.evict(status, action, message, now), ("Warning", action, message))
    failure = status.last_failure
    killed = failure is not None and is_signal(failure.exit_code)
    delay_s = 0.0 if killed and status.restarts == 1 else context.timeouts.backoff(status.restarts)
    text = f"{message}; restart {status.restarts} of {most} {f'in {delay_s:g} s' if delay_s else 'at once'}"
    return Transition(transitions.restart(status, "Restarting", text, now, delay_s), ("Warning", "Restarting", text))


def _restarts_exhausted_message(restarts: int, max_restarts: int) -> str:
    """Why no restart is left, as the end of a sentence about the failure."""
    if max_restarts == 0:
        return "no restarts are allowed (maxRestarts is 0)"
    times = "once" if restarts == 1 else f"{restarts} times"
    return f"restarted {times}, maxRestarts is {max_restarts}"


def _deadlines(context: AttemptContext) -> dict[str, float]:
    """The times of maximum run time, stall, first step and start timeout, as far as they can still happen."""
    spec, status, ends = context.job.spec, context.status, {}
    admitted_at = context.observation.now if status.admitted_at is None else status.admitted_at
    if spec.max_runtime_seconds is not None:
        ends["runtime"] = admitted_at + spec.max_runtime_seconds
    if status.started_at is not None and context.pods:
        heartbeat = context.observation.heartbeat
        stepped = heartbeat is not None and has_stepped(heartbeat, status.attempt, status.started_at)
        # A heartbeat that cannot be read counts as new.
        since = status.started_at if heartbeat is None else max(status.started_at, heartbeat.step_changed_at)
        if spec.stall_timeout_seconds is not None and stepped:
            ends["stall"] = since + spec.stall_timeout_seconds
        has_saved = heartbeat is not None and (heartbeat.checkpoint_at or 0.0) > status.started_at
        if spec.first_step_timeout_seconds is not None and not (stepped or has_saved):
            ends["first_step"] = since + spec.first_step_timeout_seconds
    if not is_condition_true(status, PODS_READY) and context.old_pods_ended:
        grace_s = max_grace_period_s(context.job, context.observation.max_grace_s)
        since = admitted_at if status.requeue_after is None else status.requeue_after + grace_s
        ends["start"] = max(admitted_at, since) + spec.start_timeout_seconds
    return ends


def has_done_all_steps(status: TrainingJobStatus, heartbeat: Heartbeat | None) -> bool:
    """Whether this attempt has reported its last step, as its status or its heartbeat says, or saved its checkpoint."""
    known = status.progress
    if known is not None and known.steps is not None and known.step >= known.steps and known.attempt == status.attempt:
        return True
    if heartbeat is None or heartbeat.total_steps is None or status.started_at is None:
        return False
    reached = max(heartbeat.step, heartbeat.checkpoint_step or 0)
    return reached >= heartbeat.total_steps and has_stepped(heartbeat, status.attempt, status.started_at)


def _with_started_at(context: AttemptContext, status: TrainingJobStatus) -> TrainingJobStatus:
    return (
        status if status.started_at is not None else with_status_fields(status, {"started_at": context.observation.now})
    )


def _with_status(context: AttemptContext, status: TrainingJobStatus) -> AttemptContext:
    return replace(context, status=status)


def _cordoned_nodes(context: AttemptContext) -> list[str]:
    places = {share.node for part in context.status.placement for share in part.nodes}
    views = (context.observation.nodes.get(name) for name in sorted(places))
    return [view.name for view in views if view is not None and (view.cordoned or view.draining)]


def _is_pod_lost(context: AttemptContext, pod: PodView) -> bool:
    if pod.phase == "Lost" or (pod.deleting and pod.phase != "Succeeded"):
        return True
    if pod.tombstone and pod.deleting and (pod.role, pod.index) not in recorded_finished_pods(context.status):
        return not has_done_all_steps(context.status, context.observation.heartbeat)  # it was stopped
    infrastructure = pod.phase == "Failed" and is_infrastructure_failure(pod)
    return infrastructure and matching_action(context.job.spec.failure_policy, pod) is None


def _min_replicas(context: AttemptContext, role: str) -> int:
    part = next(part for part in context.job.spec.roles if part.name == role)
    return part.replicas if part.min_replicas is None else part.min_replicas
