"""Admits single-pod gangs by creating the pod, which records the admission; the job's status is written later
(docs/decisions/0010)."""

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
"""`not now`: decided again after a pause. `changed`: decided again at once, because the job changed. `status first`:
the status has to be written before the pod."""


@dataclass(frozen=True, slots=True)
class SinglePodAdmission:
    """An admission of a single-pod gang, and the record for its pod."""

    known: CachedJob
    status: WriteStatus
    create: CreatePod
    annotation: str


@dataclass(slots=True)
class SinglePodAdmitter:
    """Creates the pod through `pod_control`, and checks that the cache shows the admission."""

    cache: ClusterCache
    pod_control: PodControl
    retry_limiter: RetryLimiter
    _status_first: set[str] = field(default_factory=set)  # jobs whose status is written first at the next try

    def plan(self, item: ObjectWrites, signer: AdmissionSigner) -> SinglePodAdmission | None:
        """The admission in these writes; None if they are anything else."""
        rest = [one for one in item.writes if not isinstance(one, RecordEvent)]
        if len(rest) != 2 or not isinstance(status := rest[0], WriteStatus) or not isinstance(rest[1], CreatePod):
            return None
        known = self.cache.jobs.get(item.job_uid)
        if known is None or known.lagging_status is not None:
            return None
        admission = admission_record(known.job, status.status)
        return None if admission is None else SinglePodAdmission(known, status, rest[1], signer.sign(admission))

    async def apply(self, admission: SinglePodAdmission, deferred: set[str]) -> AdmissionOutcome:
        """Create the pod. Raises ClusterError for errors that affect all objects.

        If another pod has its name, its record is not accepted, or it is rejected repeatedly, the status is written
        first at the next try: then the attempt fails eventually, and the next one has other names.
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
            why = f"pod {name} exists and does not belong to the job"
        elif not isinstance(made, str) and not self._is_visible(known):
            await self.pod_control.roll_back(known, made)
            why = f"pod {name} was deleted: the job cannot be read, or the pod's admission annotation was removed"
        if why:
            self.pod_control.reject_admission(known, name, why, deferred)
            if self.cache.jobs.get(uid) is not None:
                self._status_first.add(uid)
        return "not now" if why or isinstance(made, str) else "admitted"

    def _is_visible(self, known: CachedJob) -> bool:
        """Whether the cache shows the job as admitted, or in a later state."""
        now = self.cache.jobs.get(known.uid)
        return now is not None and (now.lagging_status is not None or not may_admit_by_pod(now.job.status))
