"""The location of a job's run after its pods are deleted: `status.traces.location`."""

from __future__ import annotations

import shlex
from urllib.parse import urlsplit

from muster.api.spec import TrainingJob

VOLUME_SCHEMES = ("pvc", "volume")
"""Schemes of locations that are not in a store: pvc://CLAIM/FOLDER, volume://NAME-IN-THE-POD/FOLDER."""


def is_remote_store(location: str) -> bool:
    """Whether a location can be read from outside the cluster."""
    return urlsplit(location).scheme not in ("", *VOLUME_SCHEMES)


def report_command(job: TrainingJob, context: str) -> str | None:
    """The command that builds the report of a job in this context; None if its run is not in a store."""
    traces, meta = job.status.traces, job.metadata
    if traces is None or not is_remote_store(traces.location):
        return None
    named = ["--context", context] if context else []
    return shlex.join(["muster", "report", f"{meta.namespace or 'default'}/{meta.name}", *named])
