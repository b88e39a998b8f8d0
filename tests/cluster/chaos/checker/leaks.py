"""At the end no object of a deleted job is left, and the number of Events is bounded by the number of writes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tests.cluster.chaos.checker.model import ClusterModel, Event
from tests.cluster.chaos.checker.violation import Finding

EVENTS_PER_WRITE, EXTRA_EVENTS = 3, 5  # an operator that is killed records some Events twice
OF_KUBERNETES = ("kube-system/", "kube-node-lease/", "kube-public/")
_RULE = "no leaked object"


class LeakChecks:
    """Counts writes and Events of each job."""

    def __init__(self) -> None:
        self._writes: Counter[str] = Counter()  # by job uid
        self._events: Counter[str] = Counter()
        self._names: dict[str, str] = {}
        self._owned: set[tuple[str, str]] = set()  # objects that had a job as owner: its user may have orphaned them

    def count(self, event: Event) -> None:
        """Count a write of a job, or an Event about one."""
        if event.document is None:
            return
        if any(one["kind"] == "TrainingJob" for one in event.document["metadata"].get("ownerReferences") or ()):
            self._owned.add((event.kind, event.key))
        if event.kind == "TrainingJob":
            uid = event.document["metadata"]["uid"]
            self._writes[uid] += 1
            self._names[uid] = event.key
        elif event.kind == "Event":
            about = event.document.get("regarding") or event.document.get("involvedObject") or {}
            if about.get("kind") == "TrainingJob":
                self._events[about.get("uid", "")] += 1

    def leaked(self, model: ClusterModel) -> Iterator[Finding]:
        """What should not exist once all jobs have ended."""
        for pod in model.pods.values():
            job = model.jobs.get(pod.job)
            if pod.job and (job is None or (pod.live and (job.finished or not job.admitted))):
                yield _RULE, pod.key, "a pod outlives its job", (("Pod", pod.key),)
        for job in model.jobs.values():
            if not job.finished:
                yield "every job ends", job.key, f"is {job.phase}", (("TrainingJob", job.key),)
            elif job.nomination is not None:
                yield _RULE, job.key, "has ended and still has a nomination", (("TrainingJob", job.key),)
        for (kind, key), document in model.others.items():
            owners = [one for one in document["metadata"].get("ownerReferences") or () if one["kind"] == "TrainingJob"]
            if any(owner["uid"] not in model.jobs for owner in owners):
                yield _RULE, key, f"a {kind} outlives its job", ((kind, key),)
            labels = document["metadata"].get("labels") or {}
            if kind in ("Service", "Secret") and "muster.dev/job" in labels and (kind, key) not in self._owned:
                yield _RULE, key, f"a {kind} of a job without an owner", ((kind, key),)
        leases = [key for key in model.leases if not key.startswith(OF_KUBERNETES)]
        if len(leases) > 1:
            message = f"{len(leases)} Leases: {', '.join(sorted(leases))}"
            yield _RULE, "leases", message, tuple(("Lease", key) for key in leases)
        for uid, count in self._events.items():
            if count > EVENTS_PER_WRITE * self._writes[uid] + EXTRA_EVENTS:
                name = self._names.get(uid, uid)
                message = f"{count} Events of a job that was written {self._writes[uid]} times"
                yield "Events are bounded", name, message, (("TrainingJob", name),)
