"""At the end nothing is left of jobs that are gone, and Events were not more than there was news."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tests.cluster.chaos.judge.objects import Job
from tests.cluster.chaos.judge.world import Event, World

Finding = tuple[str, str, str, tuple[tuple[str, str], ...]]
EVENTS_A_WRITE, EVENTS_FREE = (
    3,
    5,
)  # a pod that admits its job is a write of the job; an operator that is killed tells some things twice
OF_KUBERNETES = ("kube-system/", "kube-node-lease/", "kube-public/")


class Leaks:
    """Counts what is written about each job."""

    def __init__(self) -> None:
        self._writes: Counter[str] = Counter()  # by job uid
        self._events: Counter[str] = Counter()
        self._names: dict[str, str] = {}

    def note(self, event: Event, world: World) -> None:
        """Count it."""
        if event.document is None:
            return
        if event.kind == "TrainingJob":
            uid = event.document["metadata"]["uid"]
            self._writes[uid] += 1
            self._names[uid] = event.key
        elif event.kind == "Event":
            about = event.document.get("regarding") or event.document.get("involvedObject") or {}
            if about.get("kind") == "TrainingJob":
                self._events[about.get("uid", "")] += 1

    def told(self, job: Job) -> None:
        """A pod admitted the job."""
        self._writes[job.uid] += 1

    def left(self, world: World) -> Iterator[Finding]:
        """What should not be there once all jobs are over."""
        for pod in world.pods.values():
            job = world.jobs.get(pod.job)
            if pod.job and (job is None or (pod.live and (job.finished or not job.admitted))):
                yield "nothing leaks", pod.key, "a pod outlives its job", (("Pod", pod.key),)
        for job in world.jobs.values():
            if not job.finished:
                yield "every job ends", job.key, f"is {job.phase}", (("TrainingJob", job.key),)
            elif job.hold is not None:
                yield "nothing leaks", job.key, "is over and holds room", (("TrainingJob", job.key),)
        leases = []
        for (kind, key), document in world.others.items():
            owners = [one for one in document["metadata"].get("ownerReferences") or () if one["kind"] == "TrainingJob"]
            if any(owner["uid"] not in world.jobs for owner in owners):
                yield "nothing leaks", key, f"a {kind} outlives its job", ((kind, key),)
            labels = document["metadata"].get("labels") or {}
            if kind in ("Service", "Secret") and "muster.dev/job" in labels and not owners:
                yield "nothing leaks", key, f"a {kind} of a job that nobody owns", ((kind, key),)
        leases = [key for key in world.leases if not key.startswith(OF_KUBERNETES)]
        if len(leases) > 1:
            message = f"{len(leases)} Leases: {', '.join(sorted(leases))}"
            yield "nothing leaks", "leases", message, tuple(("Lease", key) for key in leases)
        for uid, count in self._events.items():
            if count > EVENTS_A_WRITE * self._writes[uid] + EVENTS_FREE:
                name = self._names.get(uid, uid)
                message = f"{count} Events of a job that was written {self._writes[uid]} times"
                yield "Events are bounded", name, message, (("TrainingJob", name),)
