"""Judges every event in the order in which etcd committed it, and now and then what should have happened by now.

Because all kinds of objects stand in one order, most promises hold exactly, after every single write. The tolerances
that remain, and why:

- Quota: an admission was decided before it was written, so it is right if it was right by any quota in force during the
  last QUOTA_MEMORY_S. What is charged is taken as it is at the write, since only the operator adds to it; but room for
  which somebody still leaves is charged once: one round may admit some and promise that room to others.
- An admission that a pod tells is judged when that pod is created, as if it was written then. Nothing guards it against
  what is edited or deleted meanwhile, so it may be about the job as it was up to UNHEARD_S ago.
- A node's room: pods that are not ours and were bound less than FOREIGN_MEMORY_S ago may have been unknown.
- What user and cluster do (delete a job, evict a pod, take a node away) is no promise of the operator.
- Times (`late.py`): counted only while somebody holds the Lease and renews it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tests.cluster.chaos.judge import gang, late, leaks, leaving, room
from tests.cluster.chaos.judge.objects import Job, Lease, Pod
from tests.cluster.chaos.judge.violation import Exhibit, Violation
from tests.cluster.chaos.judge.world import Event, World

Finding = tuple[str, str, str, tuple[tuple[str, str], ...]]
"""(rule, whose, message, (kind, key) of the objects that show it)"""


class Judge:
    """`shout` is told of every violation, once for each rule and object."""

    def __init__(self, shout: Callable[[Violation], None]) -> None:
        self.world = World()
        self.revision = 0
        self._shout = shout
        self._shouted: set[tuple[str, str]] = set()
        self._room = room.Room()
        self._late = late.Late()
        self._leaks = leaks.Leaks()

    def see(self, event: Event) -> None:
        """The next event, in the order of revisions."""
        self.revision = event.revision
        before, after = self.world.change(event)
        for finding in self._findings(event, before, after):
            self._find(finding, event.at)

    def tick(self, now: float) -> None:
        """Time has passed; everything that was committed until `now` has been seen."""
        for finding in self._late.overdue(self.world, now):
            self._find(finding, now)

    def end(self, now: float) -> None:
        """Everybody is through: what is left?"""
        for finding in self._leaks.left(self.world):
            self._find(finding, now)

    def _findings(self, event: Event, before: object, after: object) -> Iterator[Finding]:
        world, at = self.world, event.at
        self._leaks.note(event, world)
        if event.kind == "Pod":
            old, new = before if isinstance(before, Pod) else None, after if isinstance(after, Pod) else None
            self._late.pod(old, new, at)
            yield from leaving.pod(world, old, new, at)  # by what the job was while the old one told of it
            heard = world.hear(old, new, at)
            yield from gang.pod(world, old, new, at)
            yield from self._room.pod(world, old, new, at)
            if heard is not None and heard[1].by:
                self._leaks.told(heard[1])
                yield from self._admitted(*heard, at)
        elif event.kind == "TrainingJob":
            was, job = before if isinstance(before, Job) else None, after if isinstance(after, Job) else None
            self._late.job(was, job, at)
            if job is not None:
                yield from gang.job(world, was, job)
                yield from leaving.job(world, was, job, at)
                yield from self._admitted(was, job, at)
        elif event.kind == "Node":
            self._late.node(event.key, at)
        elif event.kind == "Lease" and isinstance(after, Lease):
            self._late.lease(before if isinstance(before, Lease) else None, after, at)

    def _admitted(self, was: Job | None, job: Job, at: float) -> Iterator[Finding]:
        """A job may be admitted, by its status or its pod."""
        self.world.remember_flavors(job)
        yield from self._room.job(self.world, was, job, at)

    def _find(self, finding: Finding, at: float) -> None:
        rule, whose, message, shown = finding
        if (rule, whose) in self._shouted:
            return
        self._shouted.add((rule, whose))
        exhibits = []
        for kind, key in shown:
            revision, document = self.world.documents.get((kind, key), (self.revision, None))
            exhibits.append(Exhibit(kind, key, revision, document))
        self._shout(Violation(rule, whose, message, self.revision, at, tuple(exhibits)))
