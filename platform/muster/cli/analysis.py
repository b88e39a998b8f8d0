"""The commands report, simulate and replay, which read recorded data: a run, a workload, a scheduling snapshot."""

from __future__ import annotations

import errno
import json
import math
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from muster.api.quantity import MAX_QUANTITY, parse_quantity
from muster.cli.options import (
    PATH,
    WEB_ADDRESS,
    PlainOption,
    connect,
    json_option,
    namespace_option,
    runs_argument,
    split_job_name,
)
from muster.cli.output import console, print_json, print_note, print_renderable, trim_padding, usage_error
from muster.cli.runs import STDIN, fetch_run_files, resolve_traces
from muster.errors import InvalidSpec

if TYPE_CHECKING:
    from rich.console import Console

    from muster.api.spec import Queue
    from muster.engine import Policy
    from muster.simulate import RecordedWorkload, SimulationConfig, SimulationResult
    from muster.tracing.read.json_stream import TraceLimits

PERFETTO = "https://ui.perfetto.dev"
_POLICIES = "muster, fifo, priority, backfill"


@click.command()
@runs_argument("traces")
@click.option("--out", "--output", "-o", type=PATH, metavar="DIR", help="Folder of the report.")
@click.option(
    "--max-trace-bytes",
    default="4Gi",
    metavar="SIZE",
    help="Skip traces larger than this when unpacked; default 4Gi.",
)
@click.option(
    "--max-trace-events",
    cls=PlainOption,
    type=click.IntRange(min=1),
    default=12_000_000,
    metavar="N",
    help="Skip traces with more events; default 12000000.",
)
@click.option(
    "--max-fetch-bytes", default="16Gi", metavar="SIZE", help="Largest run to fetch from a store; default 16Gi."
)
@click.option("--serve", is_flag=True, help="Serve the page on this host, with buttons that open traces in Perfetto.")
@click.option("--perfetto-url", type=WEB_ADDRESS, default=PERFETTO, metavar="URL", help=f"Default {PERFETTO}.")
@namespace_option
@json_option
def report(
    runs: tuple[str, ...],
    out: Path | None,
    max_trace_bytes: str,
    max_trace_events: int,
    max_fetch_bytes: str,
    serve: bool,
    perfetto_url: str,
    namespace: str | None,
    as_json: bool,
) -> None:
    """Build the report of a run, as an HTML page and as text. The page works offline; its path is printed last.

    With --serve, its address on this host is printed last, and it is served until Ctrl-C.

    The run of a job in a cluster is fetched first from the cluster's store, with the store's credentials in your
    environment.
    """
    from muster.tracing.read.json_stream import TraceLimits

    if serve and as_json:
        usage_error("--serve and --json exclude each other")
    limits = TraceLimits(parse_bytes(max_trace_bytes, "--max-trace-bytes"), max_trace_events)
    max_bytes = parse_bytes(max_fetch_bytes, "--max-fetch-bytes")
    sources, job = resolve_traces(runs, namespace, partial(fetch_run_files, max_bytes=max_bytes))
    out = Path("report") if out is None and STDIN in runs else out
    page = _build_page(sources, job, out, limits)
    if as_json:
        from muster.tracing.report import json_path

        print_json([json.loads(json_path(page).read_text())])
        return
    if job is not None and _is_without_traces(page, *split_job_name(runs[0], namespace)):
        from muster.tracing import HOW_TO_TRACE

        print_note(f"note: the job was not traced; {HOW_TO_TRACE}")
    print_report(page, console())
    if serve:
        _serve_report(page, perfetto_url)


def _serve_report(page: Path, perfetto_url: str) -> None:
    """Serve a report that was built, until Ctrl-C. Raises InvalidTrace, OSError."""
    from muster.tracing.page.report_server import ReportServer
    from muster.tracing.report import load

    with ReportServer(load(page), perfetto_url) as server:
        print_note("serving until Ctrl-C; any user who has this address can read the report and its traces:")
        click.echo(server.url)
        with suppress(KeyboardInterrupt):
            server.serve_forever()


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


def parse_bytes(text: str, option: str) -> int:
    """A number of bytes, such as 16Gi. Raises InvalidSpec that names `option`."""
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
    from muster.tracing.analysis.cores import usable_cores
    from muster.tracing.read.json_stream import TraceLimits
    from muster.tracing.report import build

    workers = usable_cores()
    return Path(str(build(sources, out, name=job, workers=workers, limits=limits or TraceLimits()).page))


@click.command(options_metavar="--nodes NODES.csv --jobs JOBS.csv [OPTIONS]")
@click.option(
    "--nodes",
    cls=PlainOption,
    type=PATH,
    required=True,
    metavar="NODES.csv",
    help="name,gpus,cpu_milli,memory_mib and more; or OpenB's.",
)
@click.option(
    "--jobs",
    cls=PlainOption,
    type=PATH,
    required=True,
    metavar="JOBS.csv",
    help="name,submit_s,runtime_s,pods and more; or OpenB's.",
)
@click.option(
    "--policy",
    "policy_names",
    multiple=True,
    metavar="NAME",
    help=f"{_POLICIES}; several are compared. Default: muster.",
)
@click.option("--compare", is_flag=True, help="Compare all policies.")
@click.option("--queues", type=PATH, metavar="QUEUES.yaml", help="A queue tree; default: all queues have equal shares.")
@click.option(
    "--bound-factor",
    type=float,
    metavar="1.5",
    help="Jobs without max_runtime_s declare this multiple of their runtime.",
)
@click.option("--stop-seconds", type=float, metavar="10", help="Seconds from SIGTERM to the end of a pod. Default: 10.")
@click.option("--skip-bad", is_flag=True, help="Skip invalid rows.")
@click.option("--json", "json_out", type=PATH, metavar="OUT", help="Write the metrics as JSON; - is stdout.")
@click.option("--placements", type=PATH, metavar="OUT.csv", help="Write node, start and end of every pod.")
def simulate(
    nodes: Path,
    jobs: Path,
    policy_names: tuple[str, ...],
    compare: bool,
    queues: Path | None,
    bound_factor: float | None,
    stop_seconds: float | None,
    skip_bad: bool,
    json_out: Path | None,
    placements: Path | None,
) -> None:
    """Simulate a recorded workload with a virtual clock and the production engine and planner."""
    from muster.cli.views.plans import simulation_table
    from muster.simulate import SimulationConfig, WorkloadAssumptions, read_workload

    policies = _parse_policies(_POLICIES.split(", ") if compare else policy_names or ["muster"])
    if bound_factor is not None and not bound_factor >= 1:
        message = f"--bound-factor: must be at least 1, or every job would be stopped early; got {bound_factor}"
        usage_error(message, "--bound-factor")
    if stop_seconds is not None and not 0 <= stop_seconds < math.inf:
        message = f"--stop-seconds: must be a finite number of seconds from 0; got {stop_seconds:g}"
        usage_error(message, "--stop-seconds")
    for out in (json_out, placements):
        if out is not None and not out.parent.is_dir():  # before the simulation, which may take minutes
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(out))
    workload = read_workload(nodes, jobs, skip_invalid=skip_bad)
    assumptions = WorkloadAssumptions(bound_factor=bound_factor)
    if stop_seconds is not None:
        assumptions = replace(
            assumptions, stop_s=stop_seconds, grace_s=max(assumptions.grace_s, math.ceil(stop_seconds))
        )
    config = SimulationConfig(assumptions=assumptions, queue_tree=None if queues is None else _load_queue_tree(queues))
    results = [_simulate_policy(workload, one, config) for one in policies]
    if placements is not None:
        for result in results:
            _write_placements(placements, result, workload, several=len(results) > 1)
    if json_out is None:
        print_renderable(simulation_table(results, workload.gpus))
        return
    text = json.dumps([result.to_json() for result in results] if len(results) > 1 else results[0].to_json(), indent=2)
    if str(json_out) == "-":
        print(text)
    else:
        json_out.write_text(f"{text}\n")
        console().print(f"[dim]wrote[/] {json_out}", soft_wrap=True)
        print_renderable(simulation_table(results, workload.gpus))


@click.command()
@click.argument("snapshot", type=PATH, metavar="SNAPSHOT.json", help="A saved snapshot; - is stdin.")
@click.option("--policy", default="muster", metavar="NAME", help=f"{_POLICIES}. Default: muster.")
@json_option
def replay(snapshot: Path, policy: str, as_json: bool) -> None:
    """Print the plan for a saved snapshot: admissions with their nodes, waiting gangs with reasons, evictions."""
    from muster.cli.views.plans import decision_rows, plan_table
    from muster.engine import decode_snapshot
    from muster.engine import replay as replayed
    from muster.errors import InvalidSpec

    (chosen,) = _parse_policies([policy])
    is_piped = str(snapshot) == "-"
    saved = sys.stdin.buffer.read() if is_piped else snapshot.read_bytes()
    try:
        state = decode_snapshot(saved)
    except InvalidSpec as error:
        raise InvalidSpec(f"{'stdin' if is_piped else snapshot}: {error}", field=error.field) from error
    decisions = replayed(state, chosen)
    if as_json:
        print_json(decision_rows(state, decisions))
    else:
        print_renderable(plan_table(state, decisions))


def _parse_policies(names: Sequence[str]) -> list[Policy]:
    from muster.engine import POLICIES

    for name in names:
        if name not in POLICIES:
            usage_error(f"--policy: must be one of {', '.join(POLICIES)}; got {name!r}", "--policy")
    return [POLICIES[name] for name in dict.fromkeys(names)]


def _load_queue_tree(file: Path) -> tuple[Queue, ...]:
    from muster.api.spec import Queue
    from muster.api.validation import check_apply
    from muster.cli.manifests import load_objects

    found = load_objects(str(file))
    check_apply(found, ())
    return tuple(item for item in found if isinstance(item, Queue))


def _simulate_policy(workload: RecordedWorkload, policy: Policy, config: SimulationConfig) -> SimulationResult:
    """Simulate one policy, with a progress bar if stderr is a terminal."""
    from muster.engine import reduce_gc_frequency
    from muster.simulate import SimulationProgress, run

    reduce_gc_frequency()
    if not sys.stderr.isatty():
        return run(workload, policy, config)
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description:8}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[text]}"))
    with Bar(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(policy.name, total=len(workload.jobs), text="")

        def show(now: SimulationProgress) -> None:
            text = f"jobs, {now.waiting} waiting, day {now.now_s / 86_400:.1f}"
            bar.update(task, completed=now.finished, total=now.jobs, text=text)

        return run(workload, policy, replace(config, progress=show))


def _write_placements(file: Path, result: SimulationResult, workload: RecordedWorkload, several: bool) -> None:
    """Write one file; with several policies, the policy is in the file's name."""
    from muster.simulate import write_placements

    target = file.with_name(f"{file.stem}.{result.policy}{file.suffix}") if several else file
    in_order = sorted(workload.jobs, key=lambda row: row.submit_s)
    write_placements(target, result.pod_runs, {f"j{number:07d}": row for number, row in enumerate(in_order)})
    console().print(f"[dim]wrote[/] {target}", soft_wrap=True)
