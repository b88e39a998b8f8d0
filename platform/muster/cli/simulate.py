"""Verbs about worlds that are not this one: simulate, replay."""

from __future__ import annotations

import errno
import json
import math
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from muster.cli.completion import JsonOption
from muster.cli.exit_codes import usage_error
from muster.cli.output import console, print_json, print_renderable

if TYPE_CHECKING:
    from muster.engine import Policy
    from muster.simulate import RecordedWorkload, SimulationConfig, SimulationResult
    from muster.spec import Queue

_POLICIES = "muster, fifo, priority, backfill"


def register(app: typer.Typer) -> None:
    """Add the verbs of this file."""
    app.command()(simulate)
    app.command()(replay)


def simulate(
    nodes: Annotated[
        Path, typer.Option(metavar="NODES.csv", help="name,gpus,cpu_milli,memory_mib and more; or OpenB's.")
    ],
    jobs: Annotated[Path, typer.Option(metavar="JOBS.csv", help="name,submit_s,runtime_s,pods and more; or OpenB's.")],
    policy: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help=f"{_POLICIES}; several are compared. Without it: muster.")
    ] = None,
    compare: Annotated[bool, typer.Option("--compare", help="All policies side by side.")] = False,
    queues: Annotated[
        Path | None, typer.Option(metavar="QUEUES.yaml", help="A queue tree; without one the queues share equally.")
    ] = None,
    bound_factor: Annotated[
        float | None,
        typer.Option(metavar="1.5", help="Jobs without max_runtime_s declare their runtime times this."),
    ] = None,
    stop_seconds: Annotated[
        float | None,
        typer.Option(metavar="10", help="How long pods take to stop once they are told to. Without it: 10."),
    ] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave out rows that cannot be read.")] = False,
    json_out: Annotated[
        Path | None, typer.Option("--json", metavar="OUT", help="Write the figures; - is stdout.")
    ] = None,
    placements: Annotated[
        Path | None, typer.Option(metavar="OUT.csv", help="Write every stay of a pod on a node, to audit.")
    ] = None,
) -> None:
    """Replay a recorded workload under a virtual clock. The engine and planner are the real ones."""
    from muster.cli.views.simulation_table import simulation_table
    from muster.simulate import SimulationConfig, WorkloadAssumptions, read_workload

    policies = _parse_policies(["muster", "fifo", "priority", "backfill"] if compare else policy or ["muster"])
    if bound_factor is not None and not bound_factor >= 1:
        usage_error(f"--bound-factor: {bound_factor} is below 1: every job would be stopped early; write 1 or more")
    if stop_seconds is not None and not 0 <= stop_seconds < math.inf:
        usage_error(f"--stop-seconds: {stop_seconds:g} is no time to stop; write 0 or more")
    for out in (json_out, placements):
        if out is not None and not out.parent.is_dir():  # told now rather than after a minute's work
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(out))
    workload = read_workload(nodes, jobs, skip_invalid=skip_bad)
    habits = WorkloadAssumptions(bound_factor=bound_factor)
    if stop_seconds is not None:
        habits = replace(habits, stop_s=stop_seconds, grace_s=max(habits.grace_s, math.ceil(stop_seconds)))
    setup = SimulationConfig(assumptions=habits, queue_tree=None if queues is None else _load_queue_tree(queues))
    results = [_simulate_policy(workload, one, setup) for one in policies]
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


def replay(
    snapshot: Annotated[Path, typer.Argument(metavar="SNAPSHOT.json", help="A saved world; - is stdin.")],
    policy: Annotated[str, typer.Option(metavar="NAME", help=f"{_POLICIES}. Without it: muster.")] = "muster",
    as_json: JsonOption = False,
) -> None:
    """Print the plan for a saved world. It tells who starts where, who waits for what, who has to leave."""
    from muster.cli.views.plan_table import decision_rows, plan_table
    from muster.engine import decode_snapshot
    from muster.engine import replay as replayed
    from muster.errors import InvalidSpec

    (chosen,) = _parse_policies([policy])
    is_piped = str(snapshot) == "-"
    saved = sys.stdin.buffer.read() if is_piped else snapshot.read_bytes()
    try:
        world = decode_snapshot(saved)
    except InvalidSpec as error:
        raise InvalidSpec(f"{'stdin' if is_piped else snapshot}: {error}", field=error.field) from error
    decisions = replayed(world, chosen)
    if as_json:
        print_json(decision_rows(world, decisions))
    else:
        print_renderable(plan_table(world, decisions))


def _parse_policies(names: list[str]) -> list[Policy]:
    from muster.engine import POLICIES

    for name in names:
        if name not in POLICIES:
            usage_error(f"--policy: {name!r} is not known; write one of {', '.join(POLICIES)}", "--policy")
    return [POLICIES[name] for name in dict.fromkeys(names)]


def _load_queue_tree(file: Path) -> tuple[Queue, ...]:
    from muster.cli.manifests import load_objects
    from muster.spec import Queue
    from muster.validation import check_apply

    found = load_objects(str(file))
    check_apply(found, ())
    return tuple(item for item in found if isinstance(item, Queue))


def _simulate_policy(workload: RecordedWorkload, policy: Policy, setup: SimulationConfig) -> SimulationResult:
    """One policy, its progress on stderr when somebody looks."""
    from dataclasses import replace

    from muster import gc_tuning
    from muster.simulate import SimulationProgress, run

    gc_tuning.reduce_gc_frequency()
    if not sys.stderr.isatty():
        return run(workload, policy, setup)
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description:8}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[told]}"))
    with Bar(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(policy.name, total=len(workload.jobs), told="")

        def shown(now: SimulationProgress) -> None:
            told = f"jobs, {now.waiting} waiting, day {now.now_s / 86_400:.1f}"
            bar.update(task, completed=now.finished, total=now.jobs, told=told)

        return run(workload, policy, replace(setup, progress=shown))


def _write_placements(file: Path, result: SimulationResult, workload: RecordedWorkload, several: bool) -> None:
    """One file; of several policies each has its own, with the policy in its name."""
    from muster.simulate import write_placements

    target = file.with_name(f"{file.stem}.{result.policy}{file.suffix}") if several else file
    in_order = sorted(workload.jobs, key=lambda row: row.submit_s)
    write_placements(target, result.pod_runs, {f"j{number:07d}": row for number, row in enumerate(in_order)})
    console().print(f"[dim]wrote[/] {target}", soft_wrap=True)
