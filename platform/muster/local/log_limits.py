"""How many bytes the log of a replica may have."""

from __future__ import annotations

from collections.abc import Mapping

from muster import spec
from muster.errors import DaemonError, InvalidSpec
from muster.quantity import parse_quantity

LOG_LIMIT = "muster.dev/log-limit"
"""The annotation of a job with another limit than that of the daemon; 0 for none."""
VARIABLE = "MUSTER_LOG_LIMIT"
DEFAULT_BYTES = 2**30
LEAST_BYTES = 2**20


def limit_of(job: spec.TrainingJob, otherwise: int) -> int:
    """Bytes; 0 for no limit. Raises `InvalidSpec` for an annotation that is no such amount."""
    text = job.metadata.annotations.get(LOG_LIMIT)
    if text is None:
        return otherwise
    field = f"metadata.annotations[{LOG_LIMIT}]"
    found = _read(text)
    if found is None:
        raise InvalidSpec(f"{field}: must be 0 or an amount of at least 1Mi, such as 10Gi; got {text!r}", field=field)
    return found


def limit_of_daemon(environ: Mapping[str, str]) -> int:
    """Bytes, of jobs that do not say. Raises `DaemonError` for a variable that is no such amount."""
    text = environ.get(VARIABLE) or str(DEFAULT_BYTES)
    found = _read(text)
    if found is None:
        message = f"{VARIABLE}: must be 0 or an amount of at least 1Mi, such as 10Gi; got {text!r}"
        raise DaemonError(message, reason="BadLogLimit")
    return found


def _read(text: str) -> int | None:
    try:
        found = parse_quantity(text, "memory")
    except ValueError:
        return None
    return found if found == 0 or found >= LEAST_BYTES else None
