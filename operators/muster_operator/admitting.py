"""Admits gangs of one pod by creating it: the pod tells of the admission, and the job's status follows when there is
time (docs/decisions/0108).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from muster.cluster import CreatePod, ObjectWrites, RecordEvent, WriteStatus
from muster_operator.refusals import Refusals
from muster_operator.sight.admission import Seal, admission_of, may_be_told
from muster_operator.sight.known_job import KnownJob
from muster_operator.sight.world import Sight
from muster_operator.staffing import Staffing

_TRIES = 4
Outcome = Literal["admitted", "not now", "changed", "status first"]
"""`not now`: it is decided about again after a pause. `changed`: now, since the job is another. `status first`: the
pod's creation cannot be all."""


@dataclass(frozen=True, slots=True)
class Alone:
    """A gang of one pod that is to be admitted, and what its pod is to say of that."""

    known: KnownJob
    status: WriteStatus
    created: CreatePod
    told: str


@dataclass(slots=True)
class Admitting:
    """Asks `staffing` for the pod, and `sight` whether it was heard."""

    sight: Sight
    staffing: Staffing
    refusals: Refusals
    _status_first: set[str] = field(default_factory=set)  # jobs, the next time

    def of(self, item: ObjectWrites, seal: Seal) -> Alone | None:
        """What these writes are, if that is what they are."""
        rest = [one for one in item.writes if not isinstance(one, RecordEvent)]
        if len(rest) != 2 or not isinstance(status := rest[0], WriteStatus) or not isinstance(rest[1], CreatePod):
            return None
        known = self.sight.jobs.known(item.job_uid)
        if known is None or known.behind is not None:
            return None
        admission = admission_of(known.job, status.status)
        return None if admission is None else Alone(known, status, rest[1], seal.annotation(admission))

    async def carry_out(self, alone: Alone, later: set[str]) -> Outcome:
        """Create the pod. Raises ClusterError for what concerns everybody.

        Where another pod has its name, where nobody hears what it tells, and where it is refused again and again, the
        status is written first the next time: then the attempt fails in time, and the next one has another name.
        """
        known, uid, name = alone.known, alone.known.uid, alone.created.name
        if known.job.metadata.resource_version != alone.status.resource_version:
            return "changed"
        if not self.refusals.may_try(uid):
            return "not now"
        if uid in self._status_first or self.refusals.rounds(uid) >= _TRIES:
            self._status_first.discard(uid)
            return "status first"
        made = await self.staffing.admit(known, alone.created, alone.told, later)
        why = ""
        if made == "taken":
            why = f"there is a pod {name} already, which is not known as the job's"
        elif not isinstance(made, str) and not self._is_heard(known):
            await self.staffing.stop(known, made)
            why = f"pod {name} was stopped: the job cannot be read, or what the pod tells was taken off it"
        if why:
            self.staffing.not_admitted(known, name, why, later)
            if self.sight.jobs.known(uid) is not None:
                self._status_first.add(uid)
        return "not now" if why or isinstance(made, str) else "admitted"

    def _is_heard(self, known: KnownJob) -> bool:
        """Whether the job is admitted now, or something else has become of it that somebody decides about."""
        now = self.sight.jobs.known(known.uid)
        return now is not None and (now.behind is not None or not may_be_told(now.job.status))
