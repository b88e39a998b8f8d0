"""How many bytes the log of a replica may have."""

from __future__ import annotations

from collections.abc import Mapping

from muster import spec
from muster.errors import DaemonError, InvalidSpec
from muster.quantity import parse_quantity

LOG_LIMIT_ANNOTATION = "muster.dev/log-limit"
"""The annotation of a job with another limit than that of the daemon; 0 for none."""
LOG_LIMIT_VARIABLE = "MUSTER_LOG_LIMIT"
DEFAULT_LIMIT_BYTES = 2**30
MIN_LIMIT_BYTES = 2**20


def job_log_limit(job: spec.TrainingJob, default: int) -> int:
    """Bytes; 0 for no limit. Raises `InvalidSpec` for an annotation that is no such amount."""
    text = job.metadata.annotations.get(LOG_LIMIT_ANNOTATION)
    if text is None:
        return default
    field = f"metadata.annotations[{LOG_LIMIT_ANNOTATION}]"
    found = _parse_limit(text)
    if found is None:
        raise InvalidSpec(f"{field}: must be 0 or an amount of at least 1Mi, such as 10Gi; got {text!r}", field=field)
    return found


def default_log_limit(environ: Mapping[str, str]) -> int:
    """Bytes, of jobs that do not say. Raises `DaemonError` for a variable that is no such amount."""
    text = environ.get(LOG_LIMIT_VARIABLE) or str(DEFAULT_LIMIT_BYTES)
    found = _parse_limit(text)
    if found is None:
        message = f"{LOG_LIMIT_VARIABLE}: must be 0 or an amount of at least 1Mi, such as 10Gi; got {text!r}"
        raise DaemonError(message, reason="InvalidLogLimit")
    return found


def _parse_limit(text: str) -> int | None:
    try:
        found = parse_quantity(text, "memory")
    except ValueError:
        return None
    return found if found == 0 or found >= MIN_LIMIT_BYTES else None
