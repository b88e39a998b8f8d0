"""Audits the placements of a simulation from nothing but the files: nodes, jobs, placements. Shares no code with it."""

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


def complaints(nodes: Path, jobs: Path, placements: Path, limits: dict[str, int] | None = None) -> list[str]:
    """Everything that is wrong; empty when all is well. `limits`: the most GPUs a queue may have at any time."""
    node_rows, job_rows, stays = read(nodes), read(jobs), read(placements)
    found = [f"{s['pod']}: ends before it starts" for s in stays if float(s["end_s"]) < float(s["start_s"])]
    found += oversubscribed(node_rows, stays)
    found += in_part(job_rows, stays)
    found += misplaced(node_rows, job_rows, stays)
    found += early(job_rows, stays)
    found += over_limit(job_rows, stays, limits or {})
    return found


def moments(stays: list[Row]) -> Iterator[tuple[float, list[Row], list[Row]]]:
    """(time, who leaves, who comes), in order."""
    leaves, comes = defaultdict(list), defaultdict(list)
    for stay in stays:
        comes[float(stay["start_s"])].append(stay)
        leaves[float(stay["end_s"])].append(stay)
    for at in sorted({*leaves, *comes}):
        instant = [stay for stay in comes[at] if float(stay["end_s"]) == at]  # takes no time, so no room
        yield at, [s for s in leaves[at] if s not in instant], [s for s in comes[at] if s not in instant]


def oversubscribed(nodes: list[Row], stays: list[Row]) -> list[str]:
    column = {"gpus": "gpu"} if "sn" in nodes[0] else {}
    has = {node.get("name") or node["sn"]: [int(node[column.get(a, a)]) for a in AMOUNTS] for node in nodes}
    used = {name: [0, 0, 0] for name in has}
    found = []
    for at, leaves, comes in moments(stays):
        for sign, group in ((-1, leaves), (1, comes)):
            for stay in group:
                for i, amount in enumerate(AMOUNTS):
                    used[stay["node"]][i] += sign * int(stay[amount])
        for name in {stay["node"] for stay in comes}:
            for i, amount in enumerate(AMOUNTS):
                if used[name][i] > has[name][i]:
                    found.append(f"{name} at {at}: {used[name][i]} {amount} in use of {has[name][i]}")
    return found


def in_part(jobs: list[Row], stays: list[Row]) -> list[str]:
    size = {job["name"]: (least(job), int(job.get("pods") or 1)) for job in jobs}
    live: dict[str, set[str]] = defaultdict(set)
    found = []
    for at, leaves, comes in moments(stays):
        for stay in leaves:
            live[stay["job"]].discard(stay["pod"])
        for stay in comes:
            if stay["pod"] in live[stay["job"]]:
                found.append(f"{stay['pod']} at {at}: runs twice")
            live[stay["job"]].add(stay["pod"])
        for name in {stay["job"] for stay in (*leaves, *comes)}:
            count, (low, high) = len(live[name]), size[name]
            if count and not low <= count <= high:
                found.append(f"{name} at {at}: {count} pods, {low} to {high} make the gang")
    return found


def least(job: Row) -> int:
    return int(job.get("min_pods") or job.get("pods") or 1)


def misplaced(nodes: list[Row], jobs: list[Row], stays: list[Row]) -> list[str]:
    node_of = {node.get("name") or node["sn"]: node for node in nodes}
    job_of = {job["name"]: job for job in jobs}
    found = []
    domains: dict[tuple[str, str], set[tuple[str, ...]]] = defaultdict(set)
    for stay in stays:
        job, node = job_of[stay["job"]], node_of[stay["node"]]
        kinds = [kind for kind in (job.get("gpu_spec") or job.get("gpu_type") or "").split("|") if kind]
        kind = node.get("model") or node.get("gpu_type") or ""
        if kinds and kind not in kinds:
            found.append(f"{stay['pod']} on {stay['node']} of {kind}, wants {' or '.join(kinds)}")
        level = job.get("topology") or ""
        if level:
            path = (node["block"], node["rack"])[: ("block", "rack").index(level) + 1]
            domains[stay["job"], stay["start_s"]].add((kind, *path))
    return found + [
        f"{job} at {at}: spread over {sorted(places)}" for (job, at), places in domains.items() if len(places) > 1
    ]


def early(jobs: list[Row], stays: list[Row]) -> list[str]:
    submitted = {job["name"]: float(job.get("submit_s") or job.get("creation_time") or 0) for job in jobs}
    return [f"{s['pod']} starts before it came" for s in stays if float(s["start_s"]) < submitted[s["job"]] - 1e-6]


def over_limit(jobs: list[Row], stays: list[Row], limits: dict[str, int]) -> list[str]:
    queue_of = {job["name"]: job.get("queue") or "default" for job in jobs}
    used: dict[str, int] = defaultdict(int)
    found = []
    for at, leaves, comes in moments(stays):
        for stay in leaves:
            used[queue_of[stay["job"]]] -= int(stay["gpus"])
        for stay in comes:
            used[queue_of[stay["job"]]] += int(stay["gpus"])
        found += [f"{q} at {at}: {used[q]} GPUs, limit {most}" for q, most in limits.items() if used[q] > most]
    return found
