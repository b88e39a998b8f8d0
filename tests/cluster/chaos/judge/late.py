"""What has to happen in time: gangs are whole or torn down, and a status says what its pods are.

Time counts only while the operator has a chance: while one holder renews the Lease, at most RENEWAL_GAP_S apart. In
a cluster that is quiet, QUIET_S are enough. While others have news that the operator may be busy with, on a machine
that may be slow, a job's own quiet has to last BUSY_S.

An admission that only a pod tells so far is written at once in a cluster that is quiet. Where there is no quiet, or
more than a CROWD of such jobs, it is written UNWRITTEN_S later at most.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.cluster.chaos.judge.objects import Job, Lease, Pod
from tests.cluster.chaos.judge.world import World

Finding = tuple[str, str, str, tuple[tuple[str, str], ...]]
QUIET_S = 10.0  # without news of any job, pod or node, every status has to equal its pods
BUSY_S = 60.0  # without news of this job, its pods and their nodes
CROWD = 64  # jobs that their pods alone admit: beyond that, their statuses may wait
UNWRITTEN_S = 75.0  # a minute, and time for writing
RENEWAL_GAP_S = 4.0


class Late:
    """Remembers when something last happened."""

    def __init__(self) -> None:
        self._news_at: dict[str, float] = {}  # by job uid
        self._any_news_at = 0.0
        self._nodes_at: dict[str, float] = {}
        self._partial_since: dict[str, float] = {}
        self._led_since: float | None = None  # by one holder without a gap
        self._renewed_at = 0.0

    # ---- what happens

    def pod(self, old: Pod | None, new: Pod | None, at: float) -> None:
        """A pod changed."""
        self._any_news_at = at
        for one in (old, new):
            if one is not None and one.job:
                self._news_at[one.job] = at

    def job(self, was: Job | None, job: Job | None, at: float) -> None:
        """A job changed."""
        self._any_news_at = at
        for one in (was, job):
            if one is not None:
                self._news_at[one.uid] = at

    def node(self, name: str, at: float) -> None:
        """A node changed, came or went."""
        self._any_news_at = at
        self._nodes_at[name] = at

    def lease(self, was: Lease | None, lease: Lease, at: float) -> None:
        """The Lease was taken or renewed. Those of Kubernetes itself do not count."""
        if lease.key.startswith("kube-"):
            return
        same = was is not None and was.holder == lease.holder and at - self._renewed_at <= RENEWAL_GAP_S
        if not same or self._led_since is None:
            self._led_since = at
        if not lease.holder:
            self._led_since = None
        self._renewed_at = at

    # ---- what should have happened by now

    def overdue(self, world: World, now: float) -> Iterator[Finding]:
        """Judge all jobs."""
        led = self._led_since is not None and now - self._renewed_at <= RENEWAL_GAP_S
        led_since = self._led_since if led and self._led_since is not None else now
        quiet = now - max(self._any_news_at, led_since) > QUIET_S
        for uid, job in world.jobs.items():
            pods = world.pods_of(uid)
            yield from self._partial(job, pods, led_since, now)
            nodes = {pod.node for pod in pods} | set(job.places.values())
            news_at = max((self._nodes_at.get(node, 0.0) for node in nodes), default=0.0)
            news_at = max(news_at, self._news_at.get(uid, now), led_since, job.not_before)
            due = news_at + (QUIET_S if quiet else BUSY_S)
            telling = world.tellings.get(uid)
            if telling is not None and (not quiet or len(world.tellings) > CROWD):
                due = max(due, telling.since + UNWRITTEN_S)
            if now > due:
                for message in _differs(job, pods):
                    shown = (("TrainingJob", job.key), *(("Pod", pod.key) for pod in pods))
                    yield "status equals pods", job.key, message, shown
        for uid in self._partial_since.keys() - world.jobs.keys():
            del self._partial_since[uid]

    def _partial(self, job: Job, pods: list[Pod], led_since: float, now: float) -> Iterator[Finding]:
        bound = sum(pod.attempt == job.attempt and bool(pod.node) for pod in pods)
        if not job.runs or job.deleted or not 0 < bound < len(job.places):
            self._partial_since.pop(job.uid, None)
            return
        since = self._partial_since.setdefault(job.uid, now)
        if now - since > job.start_timeout_s + BUSY_S and now - led_since > BUSY_S:
            message = f"{bound} of {len(job.places)} pods are bound, for {now - since:.0f} s, and it is not torn down"
            shown = (("TrainingJob", job.key), *(("Pod", pod.key) for pod in pods))
            yield "no partial gang", job.key, message, shown


def _differs(job: Job, pods: list[Pod]) -> Iterator[str]:
    """In what a status is not what its pods are, when nothing has happened for long enough."""
    going = [pod for pod in pods if pod.live and not pod.stopping]
    if job.by and not job.deleted:
        yield f"is admitted by {job.by}, and its status does not say so"
        return
    if job.deleted or not job.admitted or job.finished:
        if going:
            yield f"is {job.phase}, and {going[0].key} is not told to stop"
        return
    if job.leaving:
        if not pods:
            yield "its pods are gone, and it is not queued again"
        elif going:
            yield f"leaves, and {going[0].key} is not told to stop"
        return
    stale = [pod for pod in pods if pod.attempt != job.attempt]
    if stale:
        if any(not pod.stopping for pod in stale):
            yield f"is at attempt {job.attempt}, and {stale[0].key} of attempt {stale[0].attempt} is not told to stop"
        return
    by_seat = {pod.seat: pod for pod in pods}
    if by_seat.keys() != job.places.keys():
        yield f"has {len(by_seat)} pods of {len(job.places)}"
        return
    lost = next((pod for pod in pods if pod.phase == "Failed" or (pod.stopping and pod.phase != "Succeeded")), None)
    if lost is not None:
        yield f"goes on without {lost.key}, which is {'stopped' if lost.stopping else lost.phase}"
        return
    up = sum(pod.up for pod in pods)
    if job.ready != (up == len(job.places)) or (job.ready and job.pods_ready != up):
        yield f"says ready: {job.ready}, {job.pods_ready} pods; ready are {up} of {len(job.places)}"
    if all(pod.phase == "Succeeded" for pod in pods if pod.seat[0] in job.essential):
        yield "all its essential pods succeeded, and it is not complete"
