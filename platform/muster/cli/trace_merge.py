"""The command `trace merge`: one trace of all ranks, for Perfetto."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from muster.cli.options import PATH, json_option, namespace_option, runs_argument
from muster.cli.output import print_note, print_text, usage_error
from muster.errors import InvalidTrace

if TYPE_CHECKING:
    from muster.tracing.merge.merged_trace import MergedTrace, Progress


@click.command()
@runs_argument("traces")
@click.option("--out", "--output", "-o", type=PATH, metavar="FILE", help="The file, .json or .json.gz; must be given.")
@namespace_option
@json_option
def merge(runs: tuple[str, ...], out: Path | None, namespace: str | None, as_json: bool) -> None:
    """Write the traces of all ranks as one file for https://ui.perfetto.dev, on the clock of the lowest rank.

    Arrows lead through each collective, send and receive, from the rank that entered it first to the one that the
    others waited for. Of a run folder, the newest steps. Exit code 2: there is no readable trace, or the traces are not
    of one run.
    """
    if out is None or not out.name.endswith((".json", ".json.gz")):
        usage_error("--out must be a file with a name that ends with .json or .json.gz", "--out")
    import msgspec

    from muster.cli.runs import resolve_run
    from muster.tracing.analysis.cores import usable_cores
    from muster.tracing.merge.merged_trace import merge_traces
    from muster.tracing.runs.run_folder import read_run_folder, read_selected_traces

    path = resolve_run(runs[0], namespace)[0] if len(runs) == 1 else Path()
    if len(runs) == 1 and not path.is_file():
        folder = read_run_folder(path)
    else:
        folder = read_selected_traces([path] if len(runs) == 1 else list(map(Path, runs)))
    if not folder.windows:
        raise InvalidTrace(f"{path}: must have a trace")
    if not (folder.selected or folder.is_muster_run) and out.resolve().is_relative_to(folder.path.resolve()):
        usage_error(f"--out must be outside of {folder.path}, whose files are read as traces; got {out}", "--out")
    with _progress() as progress:
        merged = merge_traces(folder.windows[0].files, out, workers=usable_cores(), progress=progress)
    if as_json:
        print(json.dumps(msgspec.to_builtins(merged), indent=2))
        return
    _describe(merged)


def _describe(merged: MergedTrace) -> None:
    """Print what was written, the file last."""
    from muster.text import pluralize, rank_list
    from muster.tracing.formatting import format_seconds

    print_text(f"{rank_list(merged.ranks)}: {pluralize(merged.events, 'event')}, {pluralize(merged.links, 'arrow')}")
    errors = [clock.error_ns for clock in merged.clocks if clock.error_ns]
    if errors:
        print_text(f"clocks aligned within {format_seconds(max(errors) / 1e9)}")
    if unknown := [clock.rank for clock in merged.clocks if clock.offset_ns is None]:
        print_note(f"{rank_list(unknown)}: times as recorded, without a step and collectives in common with the others")
    for one in merged.skipped:
        print_note(f"skipped: {one}")
    if merged.left_out:
        print_note(f"left out: {pluralize(merged.left_out, 'event')} without a valid time or kind")
    print_text(merged.file)


@contextmanager
def _progress() -> Iterator[Progress]:
    """A bar of traces if stderr is a terminal."""
    if not sys.stderr.isatty():
        yield lambda what, done, of: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("traces {task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("analysed", total=None)
        yield lambda what, done, of: bar.update(task, description=what, completed=done, total=of)
