"""The command `report`: the analysis of a run across its ranks."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from muster.cli.completion import JsonOption, NamespaceOption, split_job_name
from muster.cli.connect import connect
from muster.cli.output import console, print_json, print_note, trim_padding
from muster.errors import InvalidSpec, NotFound, Refused
from muster.quantity import MAX_QUANTITY, parse_quantity

if TYPE_CHECKING:
    from rich.console import Console

    from muster.tracing.json_stream import TraceLimits


def register(app: typer.Typer) -> None:
    """Add the command of this file."""
    app.command()(report)


def report(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="DIR|JOB|FILE", help="A run folder, any folder of traces, a job, or some traces."),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", "--output", "-o", metavar="DIR", help="Folder of the report.")
    ] = None,
    max_trace_bytes: Annotated[
        str, typer.Option(metavar="SIZE", help="Skip traces larger than this when unpacked; default 4Gi.")
    ] = "4Gi",
    max_trace_events: Annotated[
        int, typer.Option(metavar="N", min=1, help="Skip traces with more events; default 5000000.")
    ] = 5_000_000,
    max_fetch_bytes: Annotated[
        str, typer.Option(metavar="SIZE", help="Largest run to fetch from a store; default 16Gi.")
    ] = "16Gi",
    namespace: NamespaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Build the report of a run, as an HTML page and as text. The page works offline; its path is printed last.

    The run of a job in a cluster is fetched first from the cluster's store, with the store's credentials in your
    environment.
    """
    from muster.tracing.json_stream import TraceLimits

    limits = TraceLimits(_parse_bytes(max_trace_bytes, "--max-trace-bytes"), max_trace_events)
    max_bytes = _parse_bytes(max_fetch_bytes, "--max-fetch-bytes")
    if len(runs) == 1:
        run_dir, job = _resolve_run(runs[0], namespace, max_bytes)
        sources = [run_dir]
    else:
        sources, job = [Path(run) for run in runs], None
    page = _build_page(sources, job, out, limits)
    if as_json:
        from muster.tracing.report import json_path

        print_json([json.loads(json_path(page).read_text())])
        return
    if job is not None and _is_without_traces(page, *split_job_name(runs[0], namespace)):
        from muster.tracing import HOW_TO_TRACE

        print_note(f"note: the job was not traced; {HOW_TO_TRACE}")
    print_report(page, console())


def build_and_print(run_dir: Path, out: Console, *, job: str | None = None) -> None:
    """Build and print the report of a run folder; the last line is the page's path."""
    print_report(_build_page([run_dir], job, None), out)


def print_report(page: Path, out: Console) -> None:
    """Print a report that was built; the last line is the page's path. Raises InvalidTrace, OSError."""
    from muster.tracing.report import load, render_terminal

    with trim_padding(out):
        render_terminal(load(page), out)
    out.print(str(page), soft_wrap=True, markup=False)


def _is_without_traces(page: Path, name: str, namespace: str) -> bool:
    """Whether a report has no trace and the job requested none; a missing requested trace is a finding instead."""
    from muster.tracing.report import load

    return not load(page).traces and connect().job(name, namespace).spec.trace is None


def _parse_bytes(text: str, option: str) -> int:
    try:
        size = parse_quantity(text, "memory")
    except ValueError:
        size = 0
    if size < 1:
        message = (
            f"{option} must be a number of bytes from 1 to 2^62, such as 500Mi or 16Gi; got {text[:MAX_QUANTITY]!r}"
        )
        raise InvalidSpec(message, field=option)
    return size


def _build_page(sources: list[Path], job: str | None, out: Path | None, limits: TraceLimits | None = None) -> Path:
    """Build the page with all CPUs available to this process."""
    from muster.tracing.json_stream import TraceLimits
    from muster.tracing.report import build

    workers = len(os.sched_getaffinity(0))
    return Path(str(build(sources, out, name=job, workers=workers, limits=limits or TraceLimits()).page))


def _resolve_run(run: str, namespace: str | None, max_bytes: int) -> tuple[Path, str | None]:
    """The folder to report on, and the job's name if it was given by name."""
    path = Path(run)
    if path.exists():
        return path, None
    if run.count("/") > 1 or run.startswith((".", "~", "/")):
        raise NotFound(f"folder {run} does not exist")
    name, space = split_job_name(run, namespace)
    try:
        found = connect().run_dir(name, space)
    except NotFound as error:
        raise NotFound(f"{run!r} is neither a folder nor a job: {error}") from error
    if found is None:
        from muster.cli.remote_run import fetch_run

        return fetch_run(connect().job(name, space), max_bytes), name
    if not found.is_dir():
        raise Refused(f"job {run} has not started yet: it has no run folder", reason="NotStarted")
    return found, name
