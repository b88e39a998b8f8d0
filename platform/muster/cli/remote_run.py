"""The run of a job in a cluster, brought here: from the store that its status names, or why it cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from muster.cli.views.job_text import no_output_reason, qualified_name
from muster.errors import Refused
from muster.kubernetes.run_location import is_remote_store

if TYPE_CHECKING:
    from muster.spec import TrainingJob


def fetch_run(job: TrainingJob, max_bytes: int) -> Path:
    """The folder here that holds what a report needs of the job's run. Raises `Refused` that says where the run is
    instead, and as `muster.tracing.run_fetch.fetch` does."""
    from muster.local.home import home_path
    from muster.tracing.run_fetch import fetch_run

    location = store_url(job)
    meta = job.metadata
    folder = home_path() / "fetched" / (meta.namespace or "default") / f"{meta.name}-{meta.uid}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return fetch_run(location, folder, max_bytes=max_bytes).folder


def store_url(job: TrainingJob) -> str:
    """The URL of the run's folder in a store; `Refused` where there is none."""
    name, traces = qualified_name(job), job.status.traces
    if job.status.attempt == 0 and job.status.started_at is None and traces is None:
        raise Refused(f"there is nothing to report on: {no_output_reason(job)}", reason="NotStarted")
    if traces is None and job.spec.trace is None:
        from muster.tracing.recording import HOW_TO_TRACE

        told = f"job {name} was not traced, so that nothing of it was collected; {HOW_TO_TRACE}"
        raise Refused(
            f"{told}; its run folder is inside the cluster: copy it here and name the folder", reason="RunNotAccessible"
        )
    if traces is None:
        told = (
            f"nothing has been collected of job {name}: the cluster has no collectors, or its pods are still starting"
        )
        raise Refused(f"{told}; whoever runs the operator gives it an image for them", reason="RunNotAccessible")
    scheme = urlsplit(traces.location).scheme
    if is_remote_store(traces.location):
        return traces.location
    if not scheme:
        told = f"the traces of job {name} go with its pods: the cluster has no store for them (--collector-store)"
        raise Refused(f"{told} and the job no volume called muster-run", reason="RunNotAccessible")
    volume, _, folder = traces.location.partition("://")[2].partition("/")
    of = f"claim {volume} in namespace {job.metadata.namespace}" if scheme == "pvc" else f"volume {volume} of its pods"
    told = f"the run of job {name} is in folder {folder or '/'} of {of}, since the cluster has no store for traces"
    raise Refused(f"{told}; copy that folder here and name it: muster report DIR", reason="RunNotAccessible")
