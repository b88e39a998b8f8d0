"""Parses TrainingJobs, and each part only when it changed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from muster.api import spec
from muster.kube.objects import RawTrainingJob
from muster_operator.cache.cached_job import CachedJob, DryRunResult, was_accepted
from muster_operator.cache.specs import SpecCache


class JobReader:
    """Parser of jobs; jobs with the same spec share the parsed value."""

    def __init__(self, specs: SpecCache) -> None:
        self._specs = specs

    def read(self, item: RawTrainingJob, before: CachedJob | None) -> CachedJob:
        """The parsed job. Raises pydantic's ValidationError and whatever else an arbitrary document may cause."""
        spec_text, status_text = bytes(item.spec), bytes(item.status)
        digest = hashlib.sha256(spec_text).digest()
        metadata = read_metadata(item)
        same = before if before is not None and before.uid == metadata.uid else None
        if same is not None and same.status_text == status_text:
            status = same.job.status
        else:
            status = spec.TrainingJobStatus.model_validate_json(status_text)
            if same is not None and status == same.job.status:
                status = same.job.status
        if same is not None and same.spec_digest == digest:
            wanted, templates = same.job.spec, same.templates
        else:
            read = self._specs.read(spec_text, digest, accepted=was_accepted(status, metadata.generation))
            wanted, templates = read.spec, read.templates
        job = spec.TrainingJob.model_construct(
            api_version=spec.API_VERSION, kind="TrainingJob", metadata=metadata, spec=wanted, status=status
        )
        return CachedJob(job, templates, digest, status_text)

    def with_effective_pods(
        self, job: spec.TrainingJob, verdicts: Mapping[str, DryRunResult | None]
    ) -> spec.TrainingJob:
        """The job with its pods as the API server would create them."""
        pods = {
            role: verdict.pod for role, verdict in verdicts.items() if verdict is not None and verdict.pod is not None
        }
        if not pods:
            return job
        return job.model_copy(update={"spec": self._specs.with_effective_pods(job.spec, pods)})


def read_metadata(item: RawTrainingJob) -> spec.ObjectMeta:
    """The metadata of a job."""
    meta = item.metadata
    return spec.ObjectMeta.model_validate(
        {
            "name": meta.name,
            "namespace": meta.namespace,
            "uid": meta.uid,
            "generation": meta.generation,
            "resource_version": meta.resource_version,
            "creation_timestamp": meta.creation_timestamp,
            "deletion_timestamp": meta.deletion_timestamp,
            "finalizers": meta.finalizers,
        }
    )
