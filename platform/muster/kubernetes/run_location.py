"""Where the run of a job in a cluster is kept once its pods are gone, as `status.traces.location` tells it."""

from __future__ import annotations

import shlex
from urllib.parse import urlsplit

from muster.spec import TrainingJob

VOLUME_SCHEMES = ("pvc", "volume")
"""Schemes of locations that are no store: pvc://CLAIM/FOLDER, volume://NAME-IN-THE-POD/FOLDER."""


def is_remote_store(location: str) -> bool:
    """Whether a location can be read from outside the cluster."""
    return urlsplit(location).scheme not in ("", *VOLUME_SCHEMES)


def report_command(job: TrainingJob, context: str) -> str | None:
    """What reports on a job of the cluster of this context; None where nothing of the job is in a store."""
    traces, meta = job.status.traces, job.metadata
    if traces is None or not is_remote_store(traces.location):
        return None
    named = ["--context", context] if context else []
    return shlex.join(["muster", "report", f"{meta.namespace or 'default'}/{meta.name}", *named])
