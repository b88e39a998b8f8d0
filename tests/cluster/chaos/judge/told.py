"""A gang of one pod may be admitted by the creation of its pod, which tells so until the job's status does.

The pod says which flavor, and which generation of the job was decided about; the rest stands in its labels, its owner
and its pin. Whether the operator sealed it, nobody can tell here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tests.cluster.chaos.judge.objects import Job, Pod

UNHEARD_S = 75.0  # nothing guards a pod's creation against an edit; one that got no answer is tried for 65 s


@dataclass(frozen=True, slots=True)
class Telling:
    """A pod by which its job is admitted, the job as it was decided about, and when the pod was created."""

    pod: Pod
    decided: Job
    since: float

    def holds(self, written: Job) -> bool:
        """Whether this status of the job leaves it to the pod to say."""
        status_says = written.admitted or written.finished or written.suspended
        return not status_says and written.attempt == self.pod.attempt

    def shows(self, written: Job) -> Job:
        """The job as its pod has it."""
        assert self.pod.told is not None
        return replace(
            written,
            queue=self.decided.queue,
            asks=self.decided.asks,
            admitted=True,
            leaving=False,
            waits_for_room=False,
            ready=False,
            phase="Admitted",
            pods_wanted=1,
            pods_ready=0,
            places={self.pod.seat: self.pod.pin},
            flavors={self.pod.seat[0]: self.pod.told.flavor},
            not_before=0.0,
            hold=None,
            eviction_for="",
            by=self.pod.key,
        )


def refusal(job: Job, decided: Job | None, pod: Pod) -> str:
    """Why a pod cannot admit a job of this status; "" if it can. `decided`: the job as the pod says it was then, None
    if it never was, or long ago."""
    if pod.told is None or not pod.told.flavor or not pod.pin:
        return "the pod tells of no place"
    if pod.key.partition("/")[0] != job.key.partition("/")[0]:
        return "the pod is in another namespace"
    if job.admitted or job.finished or job.suspended:
        return f"it is {job.phase}"
    if job.hold is not None:
        return "room is held for it"
    if pod.attempt != job.attempt:
        return f"it is at attempt {job.attempt}, the pod is of {pod.attempt}"
    if decided is None:
        return f"it is at generation {job.generation}, and was not at {pod.told.generation} lately"
    role, index = pod.seat
    if index != 0 or decided.fewest.get(role) != 1 or len(decided.fewest) != 1:
        return "it is no gang of one pod"
    return ""
