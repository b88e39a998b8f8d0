"""Which pods are believed that their jobs are admitted, and how such a job looks.

Believed are those sealed in the present term, and those that were there when it began. What comes later from an earlier
term was sent by a leader that is none any more, and may have been decided otherwise since.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from muster.admission import is_as_created
from muster_operator.sight.admission import Admission, PodClaim, Seal, as_admitted, may_be_told
from muster_operator.sight.known_job import KnownJob
from muster_operator.sight.known_pod import JobName, KnownPod


@dataclass(slots=True)
class Claims:
    """Believes nobody before `begin`. `pods_of` tells which pods are a job's."""

    pods_of: Callable[[JobName], Iterable[KnownPod]]
    _seal: Seal | None = None
    _earlier: set[str] = field(default_factory=set)  # pods that were there, by uid

    def begin(self, seal: Seal | None, pods: Iterable[KnownPod]) -> None:
        """A term begins, or goes on, and these pods are there."""
        if seal is None or seal != self._seal:
            self._earlier = {pod.uid for pod in pods if pod.claim is not None}
        self._seal = seal

    def with_pod(self, known: KnownJob, before: KnownJob | None) -> KnownJob:
        """The job, admitted as its pod tells, if its status does not say so yet. `known.job` is as written, and was
        `before`."""
        written = known.job.status
        admission = self._admission(known, before) if may_be_told(written) else None
        if admission is None:
            return replace(known, behind=None, admission=None) if known.behind is not None else known
        job = known.job.model_copy(update={"status": as_admitted(known.job, admission)})
        return replace(known, job=job, behind=written, admission=admission)

    def is_told(self, name: JobName, attempt: int) -> bool:
        """Whether a pod tells that this attempt of the job is admitted."""
        return self._told(name, attempt) is not None

    def told_anew(self, known: KnownJob) -> KnownJob:
        """The job as it looks by what its pods tell now; what was learned of edits counts on."""
        admission = self._told(known.name, known.written.attempt)
        job = known.job.model_copy(update={"status": known.written})
        return self.with_pod(replace(known, job=job), known if admission is not None else None)

    def _admission(self, known: KnownJob, before: KnownJob | None) -> Admission | None:
        """What its pod tells, or told before it went: of the spec as it is now, if an edit since has left alone what
        pods are made from."""
        attempt, generation = known.job.status.attempt, known.job.metadata.generation
        told = None if before is None or before.uid != known.uid else before.admission
        if before is None or told is None or told.attempt != attempt:
            return self._told(known.name, attempt)
        same = told.generation == before.job.metadata.generation and _makes_the_same_pods(before, known)
        return replace(told, generation=generation) if same else told

    def _told(self, name: JobName, attempt: int) -> Admission | None:
        """What a pod of the job tells of this attempt."""
        for pod in self.pods_of(name):
            claim = pod.claim
            if claim is not None and claim.admission.attempt == attempt and self._is_true(pod, claim):
                return claim.admission
        return None

    def _is_true(self, pod: KnownPod, claim: PodClaim) -> bool:
        seal = self._seal
        return seal is not None and (claim.term == seal.term or pod.uid in self._earlier) and claim.holds(seal.key)


def _makes_the_same_pods(before: KnownJob, now: KnownJob) -> bool:
    """Whether an edit leaves alone everything that pods are made from: specs hold of templates only what is read."""
    templates = [{role: one.text for role, one in known.templates.items()} for known in (before, now)]
    return templates[0] == templates[1] and is_as_created(before.job, now.job)
