"""Checks the placements of a simulation using only the files (nodes, jobs, placements) and none of its code."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

Row = dict[str, str]
AMOUNTS = ("gpus", "cpu_milli", "memory_mib")


def read(path: Path) -> list[Row]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def find_errors(nodes: Path, jobs: Path, placements: Path, limits: dict[str, int] | None = None) -> list[str]:
    """All errors that are found. `limits`: the most GPUs that a queue may use at any time, by queue."""
    node_rows, job_rows, runs = read(nodes), read(jobs), read(placements)
    found = [f"{s['pod']}: ends before it starts" for s in runs if float(s["end_s"]) < float(s["start_s"])]
    found += oversubscribed(node_rows, runs)
    found += partial(job_rows, runs)
    found += misplaced(node_rows, job_rows, runs)
    found += too_early(job_rows, runs)
    found += over_limit(job_rows, runs, limits or {})
    return found


def changes(runs: list[Row]) -> Iterator[tuple[float, list[Row], list[Row]]]:
    """(time, runs that end, runs that start), in order."""
    ended, started = defaultdict(list), defaultdict(list)
    for run in runs:
        started[float(run["start_s"])].append(run)
        ended[float(run["end_s"])].append(run)
    for at in sorted({*ended, *started}):
        instant = [run for run in started[at] if float(run["end_s"]) == at]  # it takes no time and uses no capacity
        yield at, [s for s in ended[at] if s not in instant], [s for s in started[at] if s not in instant]


def oversubscribed(nodes: list[Row], runs: list[Row]) -> list[str]:
    column = {"gpus": "gpu"} if "sn" in nodes[0] else {}
    has = {node.get("name") or node["sn"]: [int(node[column.get(a, a)]) for a in AMOUNTS] for node in nodes}
    used = {name: [0, 0, 0] for name in has}
    found = []
    for at, ended, started in changes(runs):
        for sign, group in ((-1, ended), (1, started)):
            for run in group:
                for i, amount in enumerate(AMOUNTS):
                    used[run["node"]][i] += sign * int(run[amount])
        for name in {run["node"] for run in started}:
            for i, amount in enumerate(AMOUNTS):
                if used[name][i] > has[name][i]:
                    found.append(f"{name} at {at}: {used[name][i]} {amount} in use of {has[name][i]}")
    return found


def partial(jobs: list[Row], runs: list[Row]) -> list[str]:
    size = {job["name"]: (min_pods(job), int(job.get("pods") or 1)) for job in jobs}
    live: dict[str, set[str]] = defaultdict(set)
    found = []
    for at, ended, started in changes(runs):
        for run in ended:
            live[run["job"]].discard(run["pod"])
        for run in started:
            if run["pod"] in live[run["job"]]:
                found.append(f"{run['pod']} at {at}: runs twice")
            live[run["job"]].add(run["pod"])
        for name in {run["job"] for run in (*ended, *started)}:
            count, (low, high) = len(live[name]), size[name]
            if count and not low <= count <= high:
                found.append(f"{name} at {at}: {count} pods; the gang has {low} to {high}")
    return found


def min_pods(job: Row) -> int:
    return int(job.get("min_pods") or job.get("pods") or 1)


def misplaced(nodes: list[Row], jobs: list[Row], runs: list[Row]) -> list[str]:
    node_of = {node.get("name") or node["sn"]: node for node in nodes}
    job_of = {job["name"]: job for job in jobs}
    found = []
    domains: dict[tuple[str, str], set[tuple[str, ...]]] = defaultdict(set)
    for run in runs:
        job, node = job_of[run["job"]], node_of[run["node"]]
        kinds = [kind for kind in (job.get("gpu_spec") or job.get("gpu_type") or "").split("|") if kind]
        kind = node.get("model") or node.get("gpu_type") or ""
        if kinds and kind not in kinds:
            found.append(f"{run['pod']} on {run['node']} of {kind}, requires {' or '.join(kinds)}")
        level = job.get("topology") or ""
        if level:
            path = (node["block"], node["rack"])[: ("block", "rack").index(level) + 1]
            domains[run["job"], run["start_s"]].add((kind, *path))
    return found + [
        f"{job} at {at}: spread over {sorted(places)}" for (job, at), places in domains.items() if len(places) > 1
    ]


def too_early(jobs: list[Row], runs: list[Row]) -> list[str]:
    submitted = {job["name"]: float(job.get("submit_s") or job.get("creation_time") or 0) for job in jobs}
    return [
        f"{s['pod']} starts before its job was submitted"
        for s in runs
        if float(s["start_s"]) < submitted[s["job"]] - 1e-6
    ]


def over_limit(jobs: list[Row], runs: list[Row], limits: dict[str, int]) -> list[str]:
    queue_of = {job["name"]: job.get("queue") or "default" for job in jobs}
    used: dict[str, int] = defaultdict(int)
    found = []
    for at, ended, started in changes(runs):
        for run in ended:
            used[queue_of[run["job"]]] -= int(run["gpus"])
        for run in started:
            used[queue_of[run["job"]]] += int(run["gpus"])
        found += [f"{q} at {at}: {used[q]} GPUs, limit {most}" for q, most in limits.items() if used[q] > most]
    return found
