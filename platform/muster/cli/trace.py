"""The command trace: profile some steps of a running job."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from muster.cli.options import (
    FILE,
    PlainOption,
    SectionedGroup,
    connect,
    job_argument,
    json_option,
    namespace_option,
    runs_argument,
    split_job_name,
)
from muster.cli.output import print_json, print_note, print_renderable, print_text, usage_error
from muster.cli.trace_merge import merge
from muster.cli.trace_query import query
from muster.cli.trace_tables import counters, table
from muster.errors import MusterError, NotFound, Refused

if TYPE_CHECKING:
    from muster.api.spec import TraceCapture, TrainingJob

_OPTIONS = ("stacks", "shapes", "memory", "flops", "modules")
_DEFAULT_OPTIONS = "shapes"
_MAX_TRACES_SHOWN = 16


_SHORT = "JOB"  # no job has capitals in its name


class _CaptureByDefault(SectionedGroup):
    """A group whose first argument may be a job instead of a command: `muster trace JOB`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert the command before a job or an option. A job may have the name of a verb, as `hang`: that is meant
        where the verb could not be called like this, and a capture could."""
        if args and args[0] not in ("--help", "-h"):
            verb = self.commands.get(args[0])
            asks_help = not {"--help", "-h"}.isdisjoint(args)
            of_verb = asks_help or verb is capture or _accepts(ctx, verb, args[1:]) or not _accepts(ctx, capture, args)
            if verb is None or not of_verb:
                args = [_SHORT, *args]
        return super().parse_args(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of a name; `capture` by the name under which errors and help of the short form have it."""
        return capture if cmd_name == _SHORT else super().get_command(ctx, cmd_name)


def _accepts(ctx: click.Context, command: click.Command | None, args: Sequence[str]) -> bool:
    """Whether a command could be called with these arguments."""
    if command is None:
        return False
    try:
        command.make_context(command.name, list(args), parent=ctx).close()
    except (click.UsageError, MusterError):
        return False
    return True


class _Capture(click.Command):
    """Its usage is that of the form in which it was called: `muster trace JOB [OPTIONS]` or `muster trace capture`."""

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """The arguments after the command's name."""
        return [self.options_metavar or ""] if ctx.info_name == _SHORT else super().collect_usage_pieces(ctx)


@click.group(cls=_CaptureByDefault)
def trace() -> None:
    """Profile some steps of a running job.

    `muster trace JOB` is short for `muster trace capture JOB`.
    """


@click.command(cls=_Capture)
@job_argument
@click.option(
    "--steps",
    cls=PlainOption,
    type=click.IntRange(1, 1000),
    default=5,
    metavar="N",
    help="Number of steps; default 5.",
)
@click.option(
    "--ranks",
    default="all",
    metavar="RANKS",
    help="all (default), ranks such as 0,8, stage-leaders, slowest, or random:4.",
)
@click.option(
    "--with",
    "recorded",
    default=_DEFAULT_OPTIONS,
    metavar="LIST",
    help=f"What to record besides times: {', '.join(_OPTIONS)}, or none; default {_DEFAULT_OPTIONS}.",
)
@click.option("--memory", is_flag=True, help="Record the allocations on the GPU during the steps, instead.")
@click.option("--stacks", is_flag=True, help="Show where the ranks of a job that hangs are, instead.")
@namespace_option
@json_option
@click.pass_context
def capture(
    ctx: click.Context,
    job: str,
    steps: int,
    ranks: str,
    recorded: str,
    memory: bool,
    stacks: bool,
    namespace: str | None,
    as_json: bool,
) -> None:
    """Profile the same steps on all chosen ranks of a job.

    The steps are agreed with the ranks within 10 s or two steps. Ctrl-C before that withdraws the request.
    """
    from muster.api.spec import TraceCaptureSpec
    from muster.capture.ranks import check_ranks

    name, space = split_job_name(job, namespace)
    if stacks:
        if memory or any(_is_given(ctx, option) for option in ("steps", "ranks", "recorded")):
            usage_error("--stacks cannot be combined with --steps, --ranks, --with and --memory", "--stacks")
        _show_stacks(name, space, as_json)
        return
    check_ranks(ranks, "--ranks")
    if memory and _is_given(ctx, "recorded"):
        usage_error("--memory cannot be combined with --with, which is about traces", "--memory")
    options = _parse_options(recorded)
    kind = "Memory" if memory else "Trace"
    spec = TraceCaptureSpec(job=name, kind=kind, steps=steps, ranks=ranks, options=options)  # type: ignore[arg-type]
    client = connect()
    try:
        with closing(client.capture(spec, space)) as states:  # Ctrl-C withdraws it
            last = deque(_shown(states, as_json), maxlen=1).pop()
    except NotFound as missing:
        if ctx.info_name == _SHORT and name in trace.commands:
            missing.args = (f"{missing}; of the verb {name}, an argument is missing: muster trace {name} -h",)
        raise
    if as_json:
        print_json([last])
    if last.status.phase == "Failed":
        error = MusterError if last.status.proposal else Refused
        raise error(last.status.message, reason=last.status.reason)
    if not as_json:
        if memory:
            print(f"snapshots: {last.status.location or 'in the run folder of the job'}/traces/memory")
            print(f"analysis: muster memory {job}" + (f" -n {namespace}" if namespace else ""))
            return
        _print_traces(last)
        print(f"report: muster report {job}" + (f" -n {namespace}" if namespace else ""))


@click.command()
@runs_argument("traces")
@click.option(
    "--compat",
    type=click.Choice(["hta", "hta-0.6"]),
    metavar="hta|hta-0.6",
    help="Compute the temporal table as HolisticTraceAnalysis 0.5.0 does, without the last step; hta-0.6: as 0.6.0.",
)
@click.option(
    "--critical-path",
    "with_critical_path",
    is_flag=True,
    help="Also show the chain of work and waits across ranks that determined the time of a step.",
)
@namespace_option
@json_option
def analyze(
    runs: tuple[str, ...], compat: str | None, with_critical_path: bool, namespace: str | None, as_json: bool
) -> None:
    """Compare the traces of all ranks: what costs time, on which rank, and why.

    FILE is a trace, a zip or tar archive of traces, a folder, a pattern such as 'logs/*/rank*.json.gz', or - for the
    standard input. Of a job in a cluster, what its store has. Exit code 2: there is no readable trace.
    """
    from muster.cli.runs import resolve_traces
    from muster.cli.views.trace_analysis import analysis_tables
    from muster.tracing.analysis.analysis_rows import analysis_rows
    from muster.tracing.analysis.cores import usable_cores
    from muster.tracing.analysis.run_analysis import analyse_run
    from muster.tracing.runs.run_folder import read_traces
    from muster.tracing.work.hta_breakdown import HtaVersion

    found = read_traces(resolve_traces(runs, namespace)[0])
    report = analyse_run(found, workers=usable_cores(), with_critical_path=with_critical_path)
    hta = HtaVersion(compat) if compat else None
    if as_json:
        print(json.dumps(analysis_rows(report, hta=hta), indent=2))
    else:
        print_renderable(analysis_tables(report, hta=hta))


@click.command()
@click.argument(
    "a", type=FILE, metavar="A", help="A job, a run folder, a folder or archive of traces, a pattern, or a trace."
)
@click.argument("b", type=FILE, metavar="B", help="Another one of the same program.")
@click.option("--limit", cls=PlainOption, type=click.IntRange(min=1), default=20, metavar="N", help="Rows; default 20.")
@namespace_option
@json_option
def diff(a: str, b: str, limit: int, namespace: str | None, as_json: bool) -> None:
    """Show what changed from A to B: kernels (without a device, operators) and collectives, the largest change first.

    Times are means per step and rank. Exit code 2: a side has no readable trace.
    """
    from muster.cli.runs import resolve_traces
    from muster.cli.views.bench import change_row
    from muster.tracing.analysis.cores import usable_cores
    from muster.tracing.analysis.rank_records import read_rank_records
    from muster.tracing.ranks.trace_diff import diff_work

    workers = usable_cores()
    if a == b == "-":
        usage_error("- (the standard input) must be given once", "-")
    sides = [read_rank_records(resolve_traces([run], namespace)[0], workers=workers) for run in (a, b)]
    changes = diff_work(*sides)
    if as_json:
        print_json([change_row(change) for change in changes])
        return
    for change in changes[:limit]:
        print_text(change.describe())


@click.command()
@runs_argument("dumps")
@namespace_option
@json_option
def hang(runs: tuple[str, ...], namespace: str | None, as_json: bool) -> None:
    """Say which rank the others waited for when a job hung, from dumps of torch's flight recorder.

    Dumps are saved of ranks that do not stop, by `muster trace JOB --stacks`, and by torch's own watchdog. Nothing that
    they contain is run. Exit code 2: there is no readable dump.
    """
    import msgspec

    from muster.cli.runs import resolve_run
    from muster.tracing.hang.hang_report import analyse_hang

    source = resolve_run(runs[0], namespace, _fetch_recorder_dumps)[0] if len(runs) == 1 else list(map(Path, runs))
    report = analyse_hang(source)
    if as_json:
        print(json.dumps(msgspec.to_builtins(report), indent=2))
        return
    for sentence in report.sentences or ("no rank waits for another one",):
        print_text(sentence)
    for one in report.skipped:
        print_note(f"{one.file}: {one.reason}")


trace.add_section("Verbs", capture, analyze, table, query, counters, merge, diff, hang)


def _fetch_recorder_dumps(job: TrainingJob) -> Path:
    from muster.cli.runs import fetched_folder, store_url
    from muster.tracing.runs.run_store import fetch_recorder_dumps

    location, folder = store_url(job), fetched_folder(job)
    fetch_recorder_dumps(location, folder)
    return folder


def _is_given(ctx: click.Context, option: str) -> bool:
    return ctx.get_parameter_source(option) is not click.core.ParameterSource.DEFAULT


def _show_stacks(name: str, namespace: str, as_json: bool) -> None:
    """Print where each rank is; the first line compares them. Raises `Refused` NoStacks if no rank answers."""
    import msgspec

    client = connect()
    stacks = client.stacks(name, namespace)
    found = stacks.ranks
    if as_json:
        print_json([msgspec.to_builtins(one) for one in found])
    if not any(one.frames for one in found):
        raise Refused("; ".join(dict.fromkeys(one.reason for one in found)), reason="NoStacks")
    if as_json:
        return
    print_text(stacks.message)
    for one in found:
        print_text(f"rank {one.rank}:" + (f" {one.reason}" if one.reason else ""))
        for frame in one.frames:
            print_text(f"  {frame}")
    run_dir = client.run_dir(name, namespace)
    if run_dir is not None:
        print_text(f"all threads: {run_dir / 'stacks'}")


def _print_traces(capture: TraceCapture) -> None:
    """The trace of each rank, above `_MAX_TRACES_SHOWN` their folder."""
    folder = f"{capture.status.location.rstrip('/')}/traces" if capture.status.location else "traces of the run folder"
    files = [entry.file for entry in capture.status.ranks if entry.file]
    if len(files) > _MAX_TRACES_SHOWN:
        print_text(f"traces: {folder} ({len(files)} files)")
        return
    for file in files:
        print_text(f"trace: {folder}/{file}")


def _parse_options(text: str) -> list[str]:
    if text == "none":
        return []
    names = [part.strip() for part in text.split(",")]
    for one in names:
        if one not in _OPTIONS:
            usage_error(f"--with must be a list of {', '.join(_OPTIONS)}, or none; got {text[:60]!r}", "--with")
    return list(dict.fromkeys(names))


def _shown(captures: Iterator[TraceCapture], as_json: bool) -> Iterator[TraceCapture]:
    """The states as they come; every new message is printed to stderr, unless JSON is printed."""
    shown = ""
    for one in captures:
        line = _progress(one)
        if not as_json and line != shown and one.status.phase != "Failed":
            shown = line
            print_note(line)
        yield one


def _progress(capture: TraceCapture) -> str:
    status = capture.status
    if status.phase != "Recording":
        return status.message
    counts = {state: sum(entry.state == state for entry in status.ranks) for state in ("recording", "collected")}
    return f"recording: {counts['recording']} of {len(status.ranks)} ranks, {counts['collected']} traces stored"
