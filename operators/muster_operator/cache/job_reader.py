"""Parses TrainingJobs, and each part only when it changed; what cannot be read becomes an InvalidJob."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from pydantic import ValidationError

from muster.api import spec
from muster.api.yaml_input.undecodable import decode_truncated, invalid_reason
from muster.kube.objects import RawCustomObject
from muster.usage.segments import USER_LABEL
from muster_operator.cache.cached_job import CachedJob, DryRunResult, was_accepted
from muster_operator.cache.specs import SpecCache, SpecTooLarge
from muster_operator.cache.template_bytes import TooManyBytes

_MAX_ERROR = 500  # characters of an error


class JobReader:
    """Parser of jobs; jobs with the same spec share the parsed value."""

    def __init__(self, specs: SpecCache) -> None:
        self._specs = specs

    def read(self, item: RawCustomObject, before: CachedJob | None) -> CachedJob:
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
            job_spec, templates = same.job.spec, same.templates
        else:
            read = self._specs.read(spec_text, digest, accepted=was_accepted(status, metadata.generation))
            job_spec, templates = read.spec, read.templates
        job = spec.TrainingJob.model_construct(
            api_version=spec.API_VERSION, kind="TrainingJob", metadata=metadata, spec=job_spec, status=status
        )
        return CachedJob(job, templates, digest, status_text)

    def with_effective_pods(
        self, job: spec.TrainingJob, results: Mapping[str, DryRunResult | None]
    ) -> spec.TrainingJob:
        """The job with its pods as the API server would create them."""
        pods = {role: result.pod for role, result in results.items() if result is not None and result.pod is not None}
        if not pods:
            return job
        return job.model_copy(update={"spec": self._specs.with_effective_pods(job.spec, pods)})


def read_metadata(item: RawCustomObject) -> spec.ObjectMeta:
    """The metadata of a job; of its labels only that of its user."""
    fields = msgspec.structs.asdict(item.metadata)
    user = item.metadata.labels.user
    return spec.ObjectMeta.model_validate(fields | {"labels": {USER_LABEL: user} if user else {}})


@dataclass(frozen=True, slots=True)
class InvalidJob:
    """A job that cannot be read, written under an older CRD or for a newer one: its key, error, status (None where that
    cannot be read either), and queue. No decision is made about it. The error is the one of `muster submit`: field,
    value, valid values.

    `queue` is "" where the job names none, or not a valid name. `sizes`: bytes of its pod templates by text, where the
    only error is that they exceed the limit of the namespace.
    """

    metadata: spec.ObjectMeta
    error: str
    status: spec.TrainingJobStatus | None
    queue: str = ""
    sizes: Mapping[str, int] = field(default_factory=dict)


def invalid_job(item: RawCustomObject, metadata: spec.ObjectMeta, error: Exception) -> InvalidJob:
    """The job with its error; `error` is used where validation of the whole finds none."""
    large = isinstance(error, SpecTooLarge)
    document: dict[str, Any] = {
        "apiVersion": spec.API_VERSION,
        "kind": "TrainingJob",
        "metadata": {"name": metadata.name, "namespace": metadata.namespace},
        "spec": _without_roles(item.spec) if large else decode_truncated(msgspec.json.decode, item.spec),
        "status": decode_truncated(msgspec.json.decode, item.status),
    }
    try:
        status = spec.TrainingJobStatus.model_validate(document["status"])
    except ValidationError:
        status = None
    named = document["spec"].get("queue") if isinstance(document["spec"], dict) else ""
    return InvalidJob(
        metadata,
        (str(error) if large else invalid_reason(document, "TrainingJob"))
        or f"this version of the operator cannot read the job: {_error_text(error)}",
        status,
        named if isinstance(named, str) else "",
        error.sizes if isinstance(error, TooManyBytes) else {},
    )


def _without_roles(text: msgspec.Raw) -> dict[str, Any]:
    fields = decode_truncated(msgspec.json.Decoder(dict[str, msgspec.Raw]).decode, text)
    return {name: decode_truncated(msgspec.json.decode, value) for name, value in fields.items() if name != "roles"}


def _error_text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:_MAX_ERROR]
