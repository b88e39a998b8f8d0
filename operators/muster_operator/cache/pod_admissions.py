"""Which pods' records of their job's admission are trusted, and the job's status that follows.

Trusted are records signed in the present term, and those of pods that existed when it began. A record of an earlier
term that appears later was sent by a former leader, and may contradict later decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from muster.validation import keeps_pods
from muster_operator.cache.admission_signing import (
    AdmissionSigner,
    PodAdmissionRecord,
    SignedAdmission,
    admitted_status,
    may_admit_by_pod,
)
from muster_operator.cache.cached_job import CachedJob
from muster_operator.cache.cached_pod import CachedPod, JobKey


@dataclass(slots=True)
class PodAdmissions:
    """Trusts no pod before `begin_term`. `pods_of` returns the pods of a job."""

    pods_of: Callable[[JobKey], Iterable[CachedPod]]
    _signer: AdmissionSigner | None = None
    _trusted_pods: set[str] = field(default_factory=set)  # uids of pods that existed when the term began

    def begin_term(self, signer: AdmissionSigner | None, pods: Iterable[CachedPod]) -> None:
        """A term begins with these pods."""
        if signer is None or signer != self._signer:
            self._trusted_pods = {pod.uid for pod in pods if pod.signed_admission is not None}
        self._signer = signer

    def with_pod_admission(self, known: CachedJob, before: CachedJob | None) -> CachedJob:
        """The job, admitted as its pod records if its status lacks that. `known.job` is as written; `before` is its
        previous state."""
        written = known.job.status
        admission = self._admission(known, before) if may_admit_by_pod(written) else None
        if admission is None:
            return replace(known, lagging_status=None, admission=None) if known.lagging_status is not None else known
        job = known.job.model_copy(update={"status": admitted_status(known.job, admission)})
        return replace(known, job=job, lagging_status=written, admission=admission)

    def is_admitted_by_pod(self, name: JobKey, attempt: int) -> bool:
        """Whether a pod records the admission of this attempt."""
        return self._admission_from_pods(name, attempt) is not None

    def recompute(self, known: CachedJob) -> CachedJob:
        """The job with the admission that its pods record now; dry-run results are kept."""
        admission = self._admission_from_pods(known.name, known.written_status.attempt)
        job = known.job.model_copy(update={"status": known.written_status})
        return self.with_pod_admission(replace(known, job=job), known if admission is not None else None)

    def _admission(self, known: CachedJob, before: CachedJob | None) -> PodAdmissionRecord | None:
        """The admission in the pod's record, present or previous, if no edit since changed what pods are created
        from."""
        attempt, generation = known.job.status.attempt, known.job.metadata.generation
        admission = None if before is None or before.uid != known.uid else before.admission
        if before is None or admission is None or admission.attempt != attempt:
            return self._admission_from_pods(known.name, attempt)
        same = admission.generation == before.job.metadata.generation and _creates_same_pods(before, known)
        return replace(admission, generation=generation) if same else admission

    def _admission_from_pods(self, name: JobKey, attempt: int) -> PodAdmissionRecord | None:
        """The trusted admission of this attempt among the job's pods."""
        for pod in self.pods_of(name):
            signed = pod.signed_admission
            if signed is not None and signed.admission.attempt == attempt and self._is_trusted(pod, signed):
                return signed.admission
        return None

    def _is_trusted(self, pod: CachedPod, signed: SignedAdmission) -> bool:
        seal = self._signer
        return (
            seal is not None and (signed.term == seal.term or pod.uid in self._trusted_pods) and signed.verify(seal.key)
        )


def _creates_same_pods(before: CachedJob, now: CachedJob) -> bool:
    """Whether an edit leaves everything unchanged that pods are created from: a spec keeps of templates only what
    decisions need."""
    templates = [{role: one.text for role, one in known.templates.items()} for known in (before, now)]
    return templates[0] == templates[1] and keeps_pods(before.job, now.job)
