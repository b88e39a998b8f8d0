"""What has to happen in time: gangs are complete or deleted, and a status agrees with its pods.

Time counts only while the operator can act: while one holder renews the Lease, at most RENEWAL_GAP_S apart. In a
cluster without changes, QUIET_S are enough. While other objects change, which may keep the operator busy on a slow
machine, the job itself must be unchanged for BUSY_S.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.cluster.chaos.checker.model import ClusterModel
from tests.cluster.chaos.checker.objects import Job, Lease, Pod
from tests.cluster.chaos.checker.violation import Finding

QUIET_S = 10.0  # without a change of any job, pod or node, every status has to agree with its pods
BUSY_S = 60.0  # without a change of this job, its pods and their nodes
RENEWAL_GAP_S = 4.0


class Deadlines:
    """Remembers when objects last changed."""

    def __init__(self) -> None:
        self._job_changed_at: dict[str, float] = {}  # by job uid
        self._last_change_at = 0.0
        self._node_changed_at: dict[str, float] = {}
        self._partial_since: dict[str, float] = {}
        self._leading_since: float | None = None  # by one holder without a gap
        self._renewed_at = 0.0

    # ---- events

    def on_pod(self, old: Pod | None, new: Pod | None, at: float) -> None:
        """A pod changed."""
        self._last_change_at = at
        for pod in (old, new):
            if pod is not None and pod.job:
                self._job_changed_at[pod.job] = at

    def on_job(self, old: Job | None, new: Job | None, at: float) -> None:
        """A job changed."""
        self._last_change_at = at
        for job in (old, new):
            if job is not None:
                self._job_changed_at[job.uid] = at

    def on_node(self, name: str, at: float) -> None:
        """A node changed, was created or deleted."""
        self._last_change_at = at
        self._node_changed_at[name] = at

    def on_lease(self, old: Lease | None, lease: Lease, at: float) -> None:
        """The Lease was acquired or renewed. Those of Kubernetes itself do not count."""
        if lease.key.startswith("kube-"):
            return
        same = old is not None and old.holder == lease.holder and at - self._renewed_at <= RENEWAL_GAP_S
        if not same or self._leading_since is None:
            self._leading_since = at
        if not lease.holder:
            self._leading_since = None
        self._renewed_at = at

    # ---- what should have happened by now

    def leading_since(self, now: float) -> float:
        """Since when one holder has renewed the Lease without a gap; `now` if none does."""
        leads = self._leading_since is not None and now - self._renewed_at <= RENEWAL_GAP_S
        return self._leading_since if leads and self._leading_since is not None else now

    def overdue(self, model: ClusterModel, now: float) -> Iterator[Finding]:
        """Check all jobs."""
        leading_since = self.leading_since(now)
        quiet = now - max(self._last_change_at, leading_since) > QUIET_S
        for uid, job in model.jobs.items():
            pods = model.pods_of(uid)
            yield from self._partial(job, pods, leading_since, now)
            nodes = {pod.node for pod in pods} | set(job.placement.values())
            changed_at = max((self._node_changed_at.get(node, 0.0) for node in nodes), default=0.0)
            changed_at = max(changed_at, self._job_changed_at.get(uid, now), leading_since, job.not_before)
            if now - changed_at > (QUIET_S if quiet else BUSY_S):
                for message in _differences(job, pods):
                    objects = (("TrainingJob", job.key), *(("Pod", pod.key) for pod in pods))
                    yield "status equals pods", job.key, message, objects
        for uid in self._partial_since.keys() - model.jobs.keys():
            del self._partial_since[uid]

    def _partial(self, job: Job, pods: list[Pod], leading_since: float, now: float) -> Iterator[Finding]:
        bound = sum(pod.attempt == job.attempt and bool(pod.node) for pod in pods)
        if not job.runs or job.deleted or not 0 < bound < len(job.placement):
            self._partial_since.pop(job.uid, None)
            return
        since = self._partial_since.setdefault(job.uid, now)
        if now - since > job.start_timeout_s + BUSY_S and now - leading_since > BUSY_S:
            message = f"{bound} of {len(job.placement)} pods are bound for {now - since:.0f} s, and are not deleted"
            objects = (("TrainingJob", job.key), *(("Pod", pod.key) for pod in pods))
            yield "no partial gang", job.key, message, objects


def _differences(job: Job, pods: list[Pod]) -> Iterator[str]:
    """How a status differs from its pods, when nothing has changed for long enough."""
    active = [pod for pod in pods if pod.live and not pod.stopping]
    if job.deleted or not job.admitted or job.finished:
        if active:
            yield f"is {job.phase}, and {active[0].key} is not stopped"
        return
    if job.evicted:
        if not pods:
            yield "its pods are deleted, and it is not queued again"
        elif active:
            yield f"is evicted, and {active[0].key} is not stopped"
        return
    stale = [pod for pod in pods if pod.attempt != job.attempt]
    if stale:
        if any(not pod.stopping for pod in stale):
            yield f"is at attempt {job.attempt}, and {stale[0].key} of attempt {stale[0].attempt} is not stopped"
        return
    by_slot = {pod.slot: pod for pod in pods}
    if by_slot.keys() != job.placement.keys():
        yield f"has {len(by_slot)} pods of {len(job.placement)}"
        return
    lost = next((pod for pod in pods if pod.phase == "Failed" or (pod.stopping and pod.phase != "Succeeded")), None)
    if lost is not None:
        yield f"continues without {lost.key}, which is {'stopped' if lost.stopping else lost.phase}"
        return
    started = sum(pod.started for pod in pods)
    if job.ready != (started == len(job.placement)) or (job.ready and job.pods_ready != started):
        yield f"says ready: {job.ready}, {job.pods_ready} pods; ready are {started} of {len(job.placement)}"
    if all(pod.phase == "Succeeded" for pod in pods if pod.slot[0] in job.essential):
        yield "all its essential pods succeeded, and it is not complete"
