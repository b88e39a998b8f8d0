"""Nodes on which a gang must not be placed: its pods were rejected or would be evicted there.

- A job does not return to a node whose kubelet rejected its pods. It may once: of an attempt that ends for another
  reason at that moment the operator need not know. Exact otherwise.
- Two jobs that differ in namespace and queue, as far as jobs do, whose statuses blame a node because its kubelet
  rejected their pods: no job is placed there until a pod has started there, unless that were more than
  half of all nodes. Blames younger than KNOWN_WITHIN_S may have been unknown.
- A node with a taint that the job's pods do not tolerate for ever, which is older than KNOWN_WITHIN_S.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator

from tests.cluster.chaos.checker.model import ClusterModel
from tests.cluster.chaos.checker.objects import Job, Json, Node, Pod, seconds
from tests.cluster.chaos.checker.violation import Finding

KNOWN_WITHIN_S = 10.0
BLAME_WINDOW_S = 600.0
MOST_REJECTED_ATTEMPTS = 2  # of a job by one node


class AvoidanceChecks:
    """Remembers rejected pods, when pods started on nodes, and since when nodes have their taints."""

    def __init__(self) -> None:
        self._rejected_attempts: dict[tuple[str, str], set[int]] = {}  # by job uid and node
        self._started_at: dict[str, float] = {}  # by node: a pod of a job, last
        self._tainted_at: dict[str, dict[tuple[str, str], float]] = {}  # by node; by key and effect

    def check_pod(self, model: ClusterModel, old: Pod | None, new: Pod | None, at: float) -> Iterator[Finding]:
        """A pod changed: it may have started, or been rejected."""
        if new is None or not new.job:
            return
        if new.started and not (old is not None and old.uid == new.uid and old.started):
            self._started_at[new.node] = at
        job = model.jobs.get(new.job)
        if not new.rejected or (old is not None and old.rejected) or job is None:
            return
        if job.runs and job.attempt == new.attempt:
            attempts = self._rejected_attempts.setdefault((job.uid, new.node), set())
            attempts.add(new.attempt)
            if len(attempts) > MOST_REJECTED_ATTEMPTS:
                message = f"{new.node} has rejected pods of its attempts {', '.join(map(str, sorted(attempts)))}"
                objects = (("TrainingJob", job.key), ("Pod", new.key))
                yield "no job returns to a node that rejected its pods", job.key, message, objects

    def on_node(self, old: Node | None, new: Node | None, at: float) -> None:
        """A node changed, was created or deleted."""
        if new is None:
            self._tainted_at.pop(old.key if old is not None else "", None)
            return
        known = self._tainted_at.get(new.key, {})
        self._tainted_at[new.key] = {taint: known.get(taint, at) for taint in new.taints}

    def check_job(self, model: ClusterModel, old: Job | None, job: Job, at: float) -> Iterator[Finding]:
        """A job is admitted, or gets other nodes."""
        if not job.runs or job.deleted:
            return
        before = set(old.placement.values()) if old is not None and old.admitted else set[str]()
        fresh = {node for node in job.placement.values() if node in model.nodes} - before
        if not fresh:
            return
        avoided = self._avoided(model, at)
        for node in sorted(fresh & avoided.keys()):
            message = f"placed on {node} after failures of {' and '.join(other.key for other in avoided[node])}"
            objects = (("TrainingJob", job.key), *(("TrainingJob", other.key) for other in avoided[node]))
            yield "no job is placed on a node that two jobs blame", job.key, message, objects
        for (role, _), node in sorted(job.placement.items()):
            for (key, effect), since in self._tainted_at.get(node, {}).items() if node in fresh else ():
                if since <= at - KNOWN_WITHIN_S and not _tolerated(key, effect, job.tolerations.get(role, ())):
                    message = f"placed on {node} with the taint {key}:{effect}"
                    objects = (("TrainingJob", job.key), ("Node", node))
                    yield "no job is placed on a node that evicts its pods", job.key, message, objects

    def _avoided(self, model: ClusterModel, at: float) -> dict[str, list[Job]]:
        """Nodes that two jobs blame, and these jobs."""
        blames: dict[str, list[tuple[float, Job]]] = {}
        several = [len({part(job) for job in model.jobs.values()}) > 1 for part in _PARTS]
        for job in model.jobs.values():
            for entry in job.status.get("blamedNodes") or ():
                if entry.get("reason") != "PodRejected":
                    continue
                since = seconds(entry.get("at")) or 0.0
                if (seconds(entry["until"]) or 0.0) > at and self._started_at.get(entry["node"], 0.0) <= since:
                    blames.setdefault(entry["node"], []).append((since, job))
        found: dict[str, list[Job]] = {}
        for node, entries in blames.items():
            entries.sort(key=lambda entry: (entry[0], entry[1].key))
            for (first, one), (second, other) in itertools.combinations(entries, 2):
                distinct = all(
                    part(one) != part(other) for part, differs in zip(_PARTS, several, strict=True) if differs
                )
                if distinct and second - first <= BLAME_WINDOW_S and second <= at - KNOWN_WITHIN_S:
                    found[node] = [one, other]
        return found if 2 * len(found) <= len(model.nodes) else {}


_PARTS: tuple[Callable[[Job], str], ...] = (lambda job: job.key.partition("/")[0], lambda job: job.queue)
"""What jobs of different tenants differ in."""


def _tolerated(key: str, effect: str, tolerations: Iterable[Json]) -> bool:
    """Whether one of these tolerations accepts the taint for ever."""
    return any(
        one.get("tolerationSeconds") is None
        and one.get("effect") in (None, "", effect)
        and (one.get("key") == key or (not one.get("key") and one.get("operator") == "Exists"))
        for one in tolerations
    )
