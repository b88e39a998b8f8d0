"""The commands simulate and replay: the planner on recorded workloads and saved snapshots."""

from __future__ import annotations

import errno
import json
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from muster.cli.options import PATH, PlainOption, json_option
from muster.cli.output import console, print_json, print_renderable, usage_error

if TYPE_CHECKING:
    from muster.api.spec import Queue
    from muster.engine import Policy
    from muster.simulate import RecordedWorkload, SimulationConfig, SimulationResult

_POLICIES = "muster, fifo, priority, backfill"


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
        usage_error(f"--bound-factor: must be at least 1, or every job would be stopped early; got {bound_factor}")
    if stop_seconds is not None and not 0 <= stop_seconds < math.inf:
        usage_error(f"--stop-seconds: must be a finite number of seconds from 0; got {stop_seconds:g}")
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
