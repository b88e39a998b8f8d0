"""A job that has made no step for long, and has no time-out for that: a condition and an Event say so, and it goes on.
Its ranks are then asked where they are, which a second Event says.

Ten times the median step, at least ten minutes, since the job does not say how long a step may take. The condition
`Stalled` becomes False with the next step, and when the job no longer runs.
"""

from __future__ import annotations

from dataclasses import replace

from muster.api.spec import TrainingJob, TrainingJobStatus
from muster.cluster import Heartbeat
from muster.workload.conditions import (
    find_condition,
    is_admitted,
    is_condition_true,
    is_evicting,
    is_finished,
    set_condition,
)
from muster.workload.observation import Observation
from muster.workload.protocol import Transition

STALLED = "Stalled"
"""Of a job that has made no step for long; absent if it never did."""
NO_STEP = "NoStep"
"""Reason of that condition and of its Event."""
RANKS_STALLED = "RanksStalled"
"""Reason of the Event that says where the ranks are."""
STEPS = 10
MIN_S = 600.0


def has_stepped(heartbeat: Heartbeat, attempt: int, started_at: float) -> bool:
    """Whether a step of this attempt has ended."""
    is_own = heartbeat.at >= started_at if heartbeat.attempt is None else heartbeat.attempt == attempt
    return is_own and heartbeat.has_stepped


def record_stall(job: TrainingJob, status: TrainingJobStatus, observation: Observation) -> Transition:
    """Set the condition when it becomes true or false, with an Event when it becomes true. Where nothing is known of
    the steps of a job that runs, the condition stays as it is."""
    heartbeat, now = observation.heartbeat, observation.now
    was_stalled = is_condition_true(status, STALLED)
    runs = is_admitted(status) and not is_finished(status) and not is_evicting(status)
    if not runs or status.started_at is None or job.spec.has_step_timeout:
        return _not_stalled(status, now) if was_stalled else Transition(status)
    if heartbeat is None or heartbeat.step_time_s is None:
        return Transition(status)
    if not has_stepped(heartbeat, status.attempt, status.started_at):
        return Transition(status)
    due = max(status.started_at, heartbeat.step_changed_at) + max(MIN_S, STEPS * heartbeat.step_time_s)
    if now < due:
        return replace(_not_stalled(status, now) if was_stalled else Transition(status), wake_times=(due,))
    if was_stalled:
        return Transition(status)
    minutes = (now - heartbeat.step_changed_at) / 60
    since = f"no step for {minutes:.0f} min after step {heartbeat.step}"
    message = f"{since}; to see where its ranks are: muster trace {job.metadata.name} --stacks"
    return Transition(set_condition(status, STALLED, True, NO_STEP, message, now), ("Warning", NO_STEP, message))


def describe_stall(status: TrainingJobStatus, places: str) -> str:
    """The message of a second Event, which says where the ranks are; empty if a step has been made meanwhile, or the
    job does not run any more. `places`: as `muster.capture.stacks.describe_stacks`."""
    condition = find_condition(status, STALLED)
    if condition is None or not is_condition_true(status, STALLED) or not places:
        return ""
    return f"{condition.message.partition(';')[0]}; {places}"


def _not_stalled(status: TrainingJobStatus, now: float) -> Transition:
    return Transition(set_condition(status, STALLED, False, "Progressing", "", now))
