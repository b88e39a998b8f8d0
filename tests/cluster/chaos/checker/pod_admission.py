"""A gang of one pod may be admitted by the creation of its pod, which records it until the job's status does.

The record has the flavor and the generation of the job that was decided on; the rest is in the pod's labels, owner and
node affinity. The signature of the record is not checked here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tests.cluster.chaos.checker.objects import Job, Pod

DECISION_AGE_S = 75.0  # nothing guards a pod's creation against an edit; one without an answer is retried for 65 s


@dataclass(frozen=True, slots=True)
class PodAdmission:
    """The pod that admits its job, the job as it was decided on, and when the pod was created."""

    pod: Pod
    decided: Job
    since: float

    def applies_to(self, written: Job) -> bool:
        """Whether the record still counts beside this status of the job."""
        status_decides = written.admitted or written.finished or written.suspended
        return not status_decides and written.attempt == self.pod.attempt

    def applied_to(self, written: Job) -> Job:
        """The job as admitted by its pod."""
        assert self.pod.record is not None
        return replace(
            written,
            queue=self.decided.queue,
            requests=self.decided.requests,
            admitted=True,
            evicted=False,
            waits_for_preemption=False,
            ready=False,
            phase="Admitted",
            pods_wanted=1,
            pods_ready=0,
            placement={self.pod.slot: self.pod.pin},
            flavors={self.pod.slot[0]: self.pod.record.flavor},
            not_before=0.0,
            nomination=None,
            eviction_for="",
            admitted_by=self.pod.key,
        )


def rejection(job: Job, decided: Job | None, pod: Pod) -> str:
    """Why a pod cannot admit a job of this status; "" if it can. `decided`: the job of the recorded generation, None if
    there was none, or only long ago."""
    if pod.record is None or not pod.record.flavor or not pod.pin:
        return "the pod records no placement"
    if pod.key.partition("/")[0] != job.key.partition("/")[0]:
        return "the pod is in another namespace"
    if job.admitted or job.finished or job.suspended:
        return f"it is {job.phase}"
    if job.nomination is not None:
        return "it has a nomination"
    if pod.attempt != job.attempt:
        return f"it is at attempt {job.attempt}, the pod is of {pod.attempt}"
    if decided is None:
        return f"it is at generation {job.generation}, and was not recently at {pod.record.generation}"
    role, index = pod.slot
    if index != 0 or decided.min_pods.get(role) != 1 or len(decided.min_pods) != 1:
        return "it is not a gang of one pod"
    return ""
