"""The run that an argument of the command line names; that of a job in a cluster is fetched from the store named in its
status."""

from __future__ import annotations

import glob
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from muster.cli.options import connect, split_job_name
from muster.cli.output import usage_error
from muster.errors import NotFound, Refused

if TYPE_CHECKING:
    from muster.api.spec import TrainingJob

STDIN = "-"
MAX_STDIN_BYTES = 16 << 30


def resolve_run(
    run: str, namespace: str | None, fetch: Callable[[TrainingJob], Path] | None = None
) -> tuple[Path, str | None]:
    """The file or folder to analyse, and the job's name if it was given by name. `fetch` makes a folder of a job whose
    run is not on this host, or raises `Refused`; by default it downloads at most 16 GiB from a store."""
    path = Path(run)
    if path.exists():
        return path, None
    if run.count("/") > 1 or run.startswith((".", "~", "/")):
        raise NotFound(f"file or folder {run} does not exist")
    name, space = split_job_name(run, namespace)
    try:
        found = connect().run_dir(name, space)
    except NotFound as error:
        raise NotFound(f"{run!r} is neither a file, a folder nor a job: {error}") from error
    if found is None:
        return (fetch or fetch_run_files)(connect().job(name, space)), name
    if not found.is_dir():
        raise Refused(f"job {run} has not started yet: it has no run folder", reason="NotStarted")
    return found, name


def resolve_traces(
    runs: Sequence[str], namespace: str | None, fetch: Callable[[TrainingJob], Path] | None = None
) -> tuple[list[Path], str | None]:
    """The files and folders of some arguments, and the name of a job that is the only one. Patterns are replaced by
    what matches them; `-` is a trace or an archive on the standard input, which is kept in a file while the command
    runs."""
    from muster.tracing.runs.trace_sources import expand

    if len(runs) == 1 and runs[0] != STDIN and not glob.has_magic(runs[0]):
        path, job = resolve_run(runs[0], namespace, fetch)
        return [path], job
    if runs.count(STDIN) > 1:
        usage_error("- (the standard input) must be given once", "-")
    return expand([_standard_input() if run == STDIN else Path(run) for run in runs]), None


def _standard_input() -> Path:
    """A file with what the standard input has, of at most `MAX_STDIN_BYTES`."""
    folder = TemporaryDirectory(prefix="muster-")
    click.get_current_context().call_on_close(folder.cleanup)
    path = Path(folder.name, "stdin")
    with path.open("wb") as file:
        size = 0
        while block := sys.stdin.buffer.read(1 << 20):
            size += file.write(block)
            if size > MAX_STDIN_BYTES:
                usage_error(f"the standard input must have at most {MAX_STDIN_BYTES} bytes", "-")
    if not size:
        usage_error("the standard input must have a trace or an archive of traces; it is empty", "-")
    return path


def fetch_run_files(job: TrainingJob, max_bytes: int = 16 << 30) -> Path:
    """Download what a report needs of the job's run, at most `max_bytes`, and return the local folder. Raises `Refused`
    that says where the run is if it is not in a store, and the errors of `muster.tracing.runs.run_store.fetch_run`."""
    from muster.tracing.runs.run_store import fetch_run

    location = store_url(job)
    return fetch_run(location, fetched_folder(job), max_bytes=max_bytes).folder


def fetched_folder(job: TrainingJob) -> Path:
    """The folder on this host for what is downloaded of a run, created if it is missing."""
    from muster.local.home import home_path

    meta = job.metadata
    folder = home_path() / "fetched" / (meta.namespace or "default") / f"{meta.name}-{meta.uid}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def store_url(job: TrainingJob) -> str:
    """The URL of the run's folder in a store. Raises `Refused` if it has none."""
    from muster.cli.views.job_text import no_output_reason, qualified_name
    from muster.cluster_client.jobs import is_remote_store

    name, traces = qualified_name(job.metadata), job.status.traces
    if job.status.attempt == 0 and job.status.started_at is None and traces is None:
        raise Refused(f"the job has not started: {no_output_reason(job)}", reason="NotStarted")
    if traces is None and job.spec.trace is None:
        from muster.tracing import HOW_TO_TRACE

        message = f"job {name} was not traced, so its run was not collected; copy its run folder to this host: muster"
        raise Refused(f"{message} report DIR, or trace the next run: {HOW_TO_TRACE}", reason="RunNotAccessible")
    if traces is None:
        message = f"the run of job {name} was not collected: the operator has no collector image (--collector-image),"
        raise Refused(f"{message} or the pods are still starting", reason="RunNotAccessible")
    scheme = urlsplit(traces.location).scheme
    if is_remote_store(traces.location):
        return traces.location
    if not scheme:
        message = f"the traces of job {name} are deleted with its pods: the operator has no --collector-store"
        raise Refused(f"{message} and the job has no volume named muster-run", reason="RunNotAccessible")
    volume, _, folder = traces.location.partition("://")[2].partition("/")
    of = f"claim {volume} in namespace {job.metadata.namespace}" if scheme == "pvc" else f"volume {volume} of its pods"
    message = f"the run of job {name} is in folder {folder or '/'} of {of}, not in a store"
    raise Refused(f"{message}; copy that folder to this host: muster report DIR", reason="RunNotAccessible")
