"""The verb `report`: the analysis of a run, across its ranks."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from muster.cli.client import connect
from muster.cli.completing import Json, Namespace, split_name
from muster.cli.printing import console, print_json
from muster.errors import NotFound, Refused

if TYPE_CHECKING:
    from rich.console import Console


def register(app: typer.Typer) -> None:
    """Add the verb of this file."""
    app.command()(report)


def report(
    run: Annotated[str, typer.Argument(metavar="DIR|JOB", help="A run folder, any folder of traces, or a job.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="DIR", help="Write the report there.")] = None,
    namespace: Namespace = None,
    as_json: Json = False,
) -> None:
    """Build the report of a run: a page that needs no network, and the same here. Its path is printed last."""
    folder, job = _run_dir(run, namespace)
    if as_json:
        print_json([json.loads(_build(folder, job, out).with_name("report.json").read_text())])
    else:
        build_and_show(folder, console(), out, job=job)


def build_and_show(run_dir: Path, to: Console, out: Path | None = None, *, job: str | None = None) -> None:
    """Build the report and print what it found; the last line is the page's path."""
    show(_build(run_dir, job, out), to)


def show(page: Path, to: Console) -> None:
    """Print what a report found that has been built; the last line is the page's path. Raises InvalidTrace, OSError."""
    from muster.tracing.report import load, render_terminal

    render_terminal(load(page), to)
    to.print(str(page), soft_wrap=True, markup=False)


def _build(run_dir: Path, job: str | None, out: Path | None) -> Path:
    """The page, built with all the CPUs that this process may use."""
    from muster.tracing.report import build

    return Path(str(build(run_dir, out, name=job, workers=len(os.sched_getaffinity(0))).page))


def _run_dir(run: str, namespace: str | None) -> tuple[Path, str | None]:
    """The folder to report on, and the job's name if it was given by name."""
    path = Path(run)
    if path.exists():
        return path, None
    if run.count("/") > 1 or run.startswith((".", "~", "/")):
        raise NotFound(f"there is no folder {run}")
    name, space = split_name(run, namespace)
    try:
        found = connect().run_dir(name, space)
    except NotFound as error:
        raise NotFound(f"{run!r} is neither a folder nor a job: {error}") from error
    if found is None:
        told = f"the run folder of job {run} is inside the cluster; copy it here and name the folder"
        raise Refused(told, reason="NotHere")
    if not found.is_dir():
        raise Refused(f"job {run} has not started yet: there is no run folder", reason="NotStarted")
    return found, name
