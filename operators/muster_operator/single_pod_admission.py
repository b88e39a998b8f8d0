"""Admits gangs of one pod by creating it: the pod tells of the admission, and the job's status follows when there is
time (docs/decisions/0010).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from muster.cluster import CreatePod, ObjectWrites, RecordEvent, WriteStatus
from muster_operator.cache.admission_signing import AdmissionSigner, admission_record, may_admit_by_pod
from muster_operator.cache.cached_job import CachedJob
from muster_operator.cache.cluster_cache import ClusterCache
from muster_operator.pod_control import PodControl
from muster_operator.retry_limiter import RetryLimiter

_MAX_ATTEMPTS = 4
AdmissionOutcome = Literal["admitted", "not now", "changed", "status first"]
"""`not now`: it is decided about again after a pause. `changed`: now, since the job is another. `status first`: the
pod's creation cannot be all."""


@dataclass(frozen=True, slots=True)
class SinglePodAdmission:
    """A gang of one pod that is to be admitted, and what its pod is to say of that."""

    known: CachedJob
    status: WriteStatus
    create: CreatePod
    annotation: str


@dataclass(slots=True)
class SinglePodAdmitter:
    """Asks `staffing` for the pod, and `sight` whether it was heard."""

    cache: ClusterCache
    pod_control: PodControl
    retry_limiter: RetryLimiter
    _status_first: set[str] = field(default_factory=set)  # jobs, the next time

    def plan(self, item: ObjectWrites, signer: AdmissionSigner) -> SinglePodAdmission | None:
        """What these writes are, if that is what they are."""
        rest = [one for one in item.writes if not isinstance(one, RecordEvent)]
        if len(rest) != 2 or not isinstance(status := rest[0], WriteStatus) or not isinstance(rest[1], CreatePod):
            return None
        known = self.cache.jobs.get(item.job_uid)
        if known is None or known.lagging_status is not None:
            return None
        admission = admission_record(known.job, status.status)
        return None if admission is None else SinglePodAdmission(known, status, rest[1], signer.sign(admission))

    async def apply(self, admission: SinglePodAdmission, deferred: set[str]) -> AdmissionOutcome:
        """Create the pod. Raises ClusterError for what concerns everybody.

        Where another pod has its name, where nobody hears what it tells, and where it is refused again and again, the
        status is written first the next time: then the attempt fails in time, and the next one has another name.
        """
        known, uid, name = admission.known, admission.known.uid, admission.create.name
        if known.job.metadata.resource_version != admission.status.resource_version:
            return "changed"
        if not self.retry_limiter.may_retry(uid):
            return "not now"
        if uid in self._status_first or self.retry_limiter.failures(uid) >= _MAX_ATTEMPTS:
            self._status_first.discard(uid)
            return "status first"
        made = await self.pod_control.admit(known, admission.create, admission.annotation, deferred)
        why = ""
        if made == "taken":
            why = f"there is a pod {name} already, which is not known as the job's"
        elif not isinstance(made, str) and not self._is_visible(known):
            await self.pod_control.roll_back(known, made)
            why = f"pod {name} was stopped: the job cannot be read, or what the pod tells was taken off it"
        if why:
            self.pod_control.reject_admission(known, name, why, deferred)
            if self.cache.jobs.get(uid) is not None:
                self._status_first.add(uid)
        return "not now" if why or isinstance(made, str) else "admitted"

    def _is_visible(self, known: CachedJob) -> bool:
        """Whether the job is admitted now, or something else has become of it that somebody decides about."""
        now = self.cache.jobs.get(known.uid)
        return now is not None and (now.lagging_status is not None or not may_admit_by_pod(now.job.status))
