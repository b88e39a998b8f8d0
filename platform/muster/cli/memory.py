"""The command memory: who holds the memory of the GPUs, from snapshots of torch's allocator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from muster.cli.analysis import parse_bytes
from muster.cli.options import FILE, PATH, PlainOption, json_option, namespace_option, runs_argument
from muster.cli.output import print_renderable
from muster.cli.runs import fetched_folder, resolve_run, store_url

if TYPE_CHECKING:
    from muster.api.spec import TrainingJob


@click.command()
@runs_argument("snapshots")
@click.option(
    "--compare",
    "before",
    type=FILE,
    multiple=True,
    metavar="BEFORE",
    help="Show what grew since an earlier run or snapshot; may be repeated for the snapshots of several ranks.",
)
@click.option("--html", type=PATH, metavar="FILE", help="Write a page with the memory over time.")
@click.option(
    "--max-snapshot-bytes", default="4Gi", metavar="SIZE", help="Skip larger snapshots, unpacked; default 4Gi."
)
@click.option(
    "--max-memory", default="24Gi", metavar="SIZE", help="Maximum memory for reading one snapshot; default 24Gi."
)
@click.option(
    "--max-events",
    cls=PlainOption,
    type=click.IntRange(min=1),
    default=4_000_000,
    metavar="N",
    help="Skip snapshots with more events; default 4000000.",
)
@namespace_option
@json_option
def memory(
    runs: tuple[str, ...],
    before: tuple[str, ...],
    html: Path | None,
    max_snapshot_bytes: str,
    max_memory: str,
    max_events: int,
    namespace: str | None,
    as_json: bool,
) -> None:
    """Show who holds the memory of the GPUs at its peak, what the allocator wastes, and what would help.

    Reads snapshots of `muster trace JOB --memory` and of torch.cuda.memory._dump_snapshot, without running anything
    that they contain; those of a job in a cluster are fetched from its store. Exit code 2: there is no readable one.
    """
    import msgspec

    from muster.cli.views.memory import memory_tables
    from muster.tracing.analysis.cores import usable_cores
    from muster.tracing.memory import MemoryLimits, analyse_memory

    limits = MemoryLimits(
        parse_bytes(max_snapshot_bytes, "--max-snapshot-bytes"), parse_bytes(max_memory, "--max-memory"), max_events
    )
    sources, job = _resolve(runs, namespace)
    report = analyse_memory(
        sources,
        before=_resolve(before, namespace)[0] if before else None,
        name=job,
        workers=usable_cores(),
        limits=limits,
    )
    if html is not None:
        from muster.tracing.memory.page import write_page

        write_page(report, html)
    if as_json:
        print(json.dumps(msgspec.to_builtins(report), indent=2))
        return
    print_renderable(memory_tables(report))
    if html is not None:
        print(html)


def _resolve(runs: tuple[str, ...], namespace: str | None) -> tuple[Path | list[Path], str | None]:
    """A folder or the snapshots, and the job's name if one was named."""
    if len(runs) > 1:
        return [Path(run) for run in runs], None
    return resolve_run(runs[0], namespace, _fetch_snapshots)


def _fetch_snapshots(job: TrainingJob) -> Path:
    """Download the memory snapshots of the job's newest steps from its store; returns the folder. Raises `Refused`."""
    from muster.tracing.runs.run_store import fetch_snapshots

    location, folder = store_url(job), fetched_folder(job)
    fetch_snapshots(location, folder)
    return folder
