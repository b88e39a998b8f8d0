"""All that exists at one revision, kept up to date event by event, and what of it counts as taken.

Jobs are as everybody has to take them: as written, or as admitted by their pod until that is written (`told`).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tests.cluster.chaos.judge import objects
from tests.cluster.chaos.judge.objects import Job, Json, Lease, Node, Pod, Queue
from tests.cluster.chaos.judge.quota import Cell, Charges, Tree
from tests.cluster.chaos.judge.told import UNHEARD_S, Telling, refusal

Thing: TypeAlias = Job | Pod | Node | Queue | Lease
KINDS: Mapping[str, Callable[[Json], Thing]] = {
    "TrainingJob": objects.job,
    "Pod": objects.pod,
    "Node": objects.node,
    "Queue": objects.queue,
    "Lease": objects.lease,
}
QUOTA_MEMORY_S = 10.0  # an admission may have been decided by a quota that was edited so long ago


@dataclass(frozen=True, slots=True)
class Event:
    """What etcd tells: an object as it is after revision `revision`; None once it is gone. `at` is when we heard."""

    revision: int
    kind: str
    key: str  # namespace/name, or the name
    document: Json | None
    at: float


@dataclass(slots=True)
class World:
    """Objects by kind and key, and indexes over them."""

    jobs: dict[str, Job] = field(default_factory=dict)  # by uid
    written: dict[str, Job] = field(default_factory=dict)  # by uid: what their statuses say
    tellings: dict[str, Telling] = field(default_factory=dict)  # by uid: jobs that their pod admits
    untold: dict[str, tuple[Job, float]] = field(default_factory=dict)  # such jobs, when their pod went before a status
    edited: dict[tuple[str, int], tuple[Job, float]] = field(default_factory=dict)  # older generations, until when
    gone: dict[str, tuple[Job, float]] = field(default_factory=dict)  # jobs that were removed: the last we saw, when
    pods: dict[str, Pod] = field(default_factory=dict)  # by key
    nodes: dict[str, Node] = field(default_factory=dict)
    queues: dict[str, Queue] = field(default_factory=dict)
    leases: dict[str, Lease] = field(default_factory=dict)
    others: dict[tuple[str, str], Json] = field(default_factory=dict)  # Services, Secrets, ... by (kind, key)
    documents: dict[tuple[str, str], tuple[int, Json]] = field(default_factory=dict)  # (revision, as it lies in etcd)
    of_job: dict[str, set[str]] = field(default_factory=dict)  # pod keys by job uid
    on_node: dict[str, set[str]] = field(default_factory=dict)  # pod keys by the node they are bound to
    stopped: dict[str, float] = field(default_factory=dict)  # by pod key: when one of that name had stopped
    trees: deque[tuple[float, Tree]] = field(default_factory=deque)  # (until when it was in force, tree), old ones
    flavors_seen: dict[tuple[str, str], str] = field(default_factory=dict)  # by (job uid, role)
    _uids: dict[str, str] = field(default_factory=dict)  # job uid by key

    def pods_of(self, uid: str) -> list[Pod]:
        """Every pod of a job, ended ones too."""
        return [self.pods[key] for key in sorted(self.of_job.get(uid, ()))]

    def bound_to(self, node: str) -> list[Pod]:
        """Live pods that are bound to a node."""
        return [pod for key in sorted(self.on_node.get(node, ())) if (pod := self.pods[key]).live]

    def job_of(self, uid: str) -> Job | None:
        """A job, or the last we saw of it."""
        return self.jobs.get(uid) or (self.gone[uid][0] if uid in self.gone else None)

    def no_admission(self, pod: Pod, at: float) -> str:
        """Why what a pod tells admits nobody; "" if it does, or would if its job was not removed just now."""
        job, gone_at = self.written.get(pod.job), at
        if job is None and pod.job in self.gone:
            job, gone_at = self.gone[pod.job]
        if job is None or pod.told is None:
            return "the pod tells of none"
        if max(at - gone_at, at - job.deleted_at if job.deleted else 0.0) > UNHEARD_S:
            return "it was deleted long ago"
        return refusal(job, self._generation(job, pod.told.generation, at), pod)

    def _generation(self, job: Job, number: int, at: float) -> Job | None:
        if number == job.generation:
            return job
        older = self.edited.get((job.uid, number))
        return older[0] if older is not None and at - older[1] <= UNHEARD_S else None

    def kept(self, job: Job, at: float) -> Job | None:
        """The job as its pod had it in the same places, if that pod went just now and no status had said so."""
        before = self.untold.get(job.uid)
        same = before is not None and before[0].places == job.places and at - before[1] <= UNHEARD_S
        return before[0] if before is not None and same else None

    # ---- what happens

    def change(self, event: Event) -> tuple[Thing | None, Thing | None]:
        """Take an event in; what was there before and what is there now (None for kinds that are only counted)."""
        key = (event.kind, event.key)
        if event.document is None:
            self.documents.pop(key, None)
        else:
            self.documents[key] = (event.revision, event.document)
        read = KINDS.get(event.kind)
        if read is None:
            if event.document is None:
                self.others.pop(key, None)
            else:
                self.others[key] = event.document
            return None, None
        after = None if event.document is None else read(event.document)
        before = self._put(event, after)
        return before, self.jobs[after.uid] if isinstance(after, Job) else after

    def hear(self, old: Pod | None, new: Pod | None, at: float) -> tuple[Job, Job] | None:
        """A pod appeared or went that may admit its job; how the job was and is, if that differs."""
        if old is not None and new is not None and old.uid == new.uid:
            return None
        uid = new.job if new is not None else old.job if old is not None else ""
        written, was = self.written.get(uid), self.jobs.get(uid)
        if written is None or was is None:
            return None
        telling = self.tellings.get(uid)
        if telling is not None and old is not None and telling.pod.uid == old.uid:
            del self.tellings[uid]
            self.untold[uid] = was, at
        if new is not None and new.told is not None and uid not in self.tellings and not self.no_admission(new, at):
            decided = self._generation(written, new.told.generation, at)
            if decided is not None:
                self.tellings[uid] = Telling(new, decided, at)
                self.untold.pop(uid, None)
        self._show(written)
        return None if self.jobs[uid] == was else (was, self.jobs[uid])

    def _show(self, written: Job) -> None:
        telling = self.tellings.get(written.uid)
        self.jobs[written.uid] = written if telling is None else telling.shows(written)

    def _put(self, event: Event, after: Thing | None) -> Thing | None:
        if event.kind == "TrainingJob":
            return self._put_job(event, after if isinstance(after, Job) else None)
        if event.kind == "Pod":
            return self._put_pod(event, after if isinstance(after, Pod) else None)
        shelves: dict[str, dict[str, Any]] = {"Node": self.nodes, "Queue": self.queues, "Lease": self.leases}
        shelf = shelves[event.kind]
        before: Thing | None = shelf.get(event.key)
        if event.kind == "Queue" and before != after:
            self.trees.append((event.at, Tree(dict(self.queues))))
        if after is None:
            shelf.pop(event.key, None)
        else:
            shelf[event.key] = after
        return before

    def _put_job(self, event: Event, after: Job | None) -> Job | None:
        uid = self._uids.get(event.key)
        before = None if uid is None else self.jobs.get(uid)
        if uid is not None and before is not None and (after is None or after.uid != uid):
            del self.jobs[uid], self.written[uid]
            self.tellings.pop(uid, None)
            self.untold.pop(uid, None)
            self.gone[uid] = (before, event.at)
        if after is None:
            self._uids.pop(event.key, None)
        else:
            self._uids[event.key] = after.uid
            last, telling = self.written.get(after.uid), self.tellings.get(after.uid)
            if last is not None and last.generation != after.generation:
                self.edited[after.uid, last.generation] = last, event.at
            if telling is not None and not telling.holds(after):
                del self.tellings[after.uid]
            self.written[after.uid] = after
            self._show(after)
        return before if after is None or before is None or before.uid == after.uid else None

    def _put_pod(self, event: Event, after: Pod | None) -> Pod | None:
        key = event.key
        before = self.pods.pop(key, None)
        if before is not None:
            self.of_job.get(before.job, set()).discard(key)
            self.on_node.get(before.node, set()).discard(key)
            if before.stopping and (after is None or after.uid != before.uid):
                self.stopped[key] = event.at
        if after is not None:
            self.pods[key] = after
            if after.job:
                self.of_job.setdefault(after.job, set()).add(key)
            if after.node:
                self.on_node.setdefault(after.node, set()).add(key)
        return before

    # ---- what is taken

    def recent_trees(self, now: float) -> list[Tree]:
        """The queues now, and as they were in force during the last QUOTA_MEMORY_S, newest first."""
        while self.trees and self.trees[0][0] < now - QUOTA_MEMORY_S:
            self.trees.popleft()
        return [Tree(self.queues), *(tree for _, tree in reversed(self.trees))]

    def room_of(self, job: Job) -> Counter[tuple[str, str]]:
        """Pods by (role, node) that a job takes up: its places while it is admitted, and whatever of it still lives.

        A pod that lives in its own place counts once.
        """
        live = Counter((pod.seat[0], pod.node or pod.pin) for pod in self.pods_of(job.uid) if pod.live)
        if not job.admitted or job.finished or job.deleted:
            return live
        return Counter((role, node) for (role, _), node in job.places.items()) | live

    def taken_by(self, job: Job) -> Counter[Cell]:
        """What the room of a job is charged. Pods on a node that is no more take nothing."""
        cells: Counter[Cell] = Counter()
        known = {**self._held_flavors(job), **job.flavors}
        for (role, node), pods in self.room_of(job).items():
            flavor = known.get(role) or self.flavors_seen.get((job.uid, role), "")
            if node in self.nodes and flavor:
                _add(cells, job.asks.get(role, {}), flavor, pods)
        return cells

    def hold_of(self, job: Job, now: float) -> Counter[Cell]:
        """What room that is held for a job is charged."""
        cells: Counter[Cell] = Counter()
        if job.hold is not None and job.hold.expires_at > now and not (job.off or job.finished or job.deleted):
            for (role, flavor, _), pods in job.hold.places.items():
                _add(cells, job.asks.get(role, {}), flavor, pods)
        return cells

    def charges(self, now: float, but: str) -> tuple[Charges, Charges]:
        """By queue, what all jobs but one are charged: as it is now, and once those have left who leave.

        Room for which somebody still leaves is counted once: now it is that one's, later whom it is held for. Who
        leaves is told so for the hold, or leaves for reasons of its own while the hold was made; then the hold names
        nobody, and its job waits for room. Jobs that were removed are not charged: what is left of them takes up nodes,
        and no quota any more.
        """
        leaving = {uid for job in self.jobs.values() for uid in self._pending(job, now)}
        at_once: dict[str, Counter[Cell]] = {}
        later: dict[str, Counter[Cell]] = {}
        for uid, job in self.jobs.items():
            if uid != but and (job.admitted or job.hold is not None or self.of_job.get(uid)):
                held, taken = self.hold_of(job, now), self.taken_by(job)
                goes = uid in leaving or not job.runs
                stays = taken if not goes else demand(job) if job.runs and job.eviction_for else Counter()
                waits = job.waits_for_room or self._pending(job, now)
                at_once.setdefault(job.queue, Counter()).update(taken if waits else taken + held)
                later.setdefault(job.queue, Counter()).update(stays + held)
        return at_once, later

    def _pending(self, job: Job, now: float) -> frozenset[str]:
        """Those who leave for a job and are not gone yet."""
        if job.hold is None or job.hold.expires_at <= now:
            return frozenset()
        return frozenset(uid for uid in job.hold.victims if uid in self.jobs and self.taken_by(self.jobs[uid]))

    @staticmethod
    def _held_flavors(job: Job) -> dict[str, str]:
        return {} if job.hold is None else {role: flavor for role, flavor, _ in job.hold.places}

    def remember_flavors(self, job: Job) -> None:
        """A job that left has no placement, and its last pods still count where they are."""
        for role, flavor in job.flavors.items():
            self.flavors_seen[job.uid, role] = flavor


def demand(job: Job) -> Counter[Cell]:
    """What the places of a job ask of its queue."""
    cells: Counter[Cell] = Counter()
    for role, pods in Counter(role for role, _ in job.places).items():
        _add(cells, job.asks.get(role, {}), job.flavors.get(role, ""), pods)
    return cells


def _add(cells: Counter[Cell], asks: Mapping[str, int], flavor: str, pods: int) -> None:
    for resource, amount in asks.items():
        cells[flavor, resource] += amount * pods


def total(pods: Iterable[Pod]) -> Counter[str]:
    """What pods take together."""
    taken: Counter[str] = Counter()
    for pod in pods:
        taken.update(pod.asks)
    return taken
