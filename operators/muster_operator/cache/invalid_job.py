"""Jobs in the API server that this operator cannot read: written under an older CRD or for a newer one.

No decision is made about such a job. The error is the one of `muster submit`: field, value, valid values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from pydantic import ValidationError

from muster.api import spec
from muster.api.yaml_input.undecodable import decode_truncated, invalid_reason
from muster.kube.objects import RawTrainingJob
from muster_operator.cache.specs import SpecTooLarge
from muster_operator.cache.template_bytes import TooManyBytes

_MAX_ERROR = 500  # characters of an error


@dataclass(frozen=True, slots=True)
class InvalidJob:
    """A job that cannot be read: its key, error, status (None where that cannot be read either), and queue.

    `queue` is "" where the job names none, or not a valid name. `sizes`: bytes of its pod templates by text, where the
    only error is that they exceed the limit of the namespace.
    """

    metadata: spec.ObjectMeta
    error: str
    status: spec.TrainingJobStatus | None
    queue: str = ""
    sizes: Mapping[str, int] = field(default_factory=dict)


def invalid_job(item: RawTrainingJob, metadata: spec.ObjectMeta, error: Exception) -> InvalidJob:
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
