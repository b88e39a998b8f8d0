"""Traces of ranks on CPUs that reduce or receive with gloo, in steps of 100 ms."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.tracing.kineto import Event, step, write_trace

MS = 1000.0
STEP_MS = 100.0
STEPS = 4


@dataclass(frozen=True, slots=True)
class CpuRank:
    """A rank per step, in milliseconds: time outside of all operators before its work, time in an annotation, and
    operators by name as calls and the time of one, and the sizes of their inputs if shapes are recorded."""

    silent_ms: Sequence[float] = (0.0,) * STEPS
    annotated_ms: Sequence[float] = (0.0,) * STEPS
    annotation: str = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    work: Mapping[str, tuple[int, float]] = field(default_factory=lambda: {"aten::mm": (10, 2.0)})
    sizes: Mapping[str, Sequence[Sequence[int]]] = field(default_factory=dict)


def cpu_job(folder: Path, ranks: Sequence[CpuRank], *, pipeline: bool = False) -> Path:
    """Traces of steps of 100 ms; what a rank does not need it waits for the others."""
    kind = "recv" if pipeline else "all_reduce"
    for i, rank in enumerate(ranks):
        events = []
        for number in range(STEPS):
            begin = number * 2 * STEP_MS * MS
            at = begin + rank.silent_ms[number] * MS
            if rank.annotated_ms[number]:
                events.append(Event(rank.annotation, at, rank.annotated_ms[number] * MS, "user_annotation"))
                at += rank.annotated_ms[number] * MS
            for name, (calls, ms) in rank.work.items():
                for _ in range(calls):
                    sizes = rank.sizes.get(name, ())
                    shapes = (("Input Dims", sizes), ("Input type", ["float"] * len(sizes))) if sizes else ()
                    events.append(Event(name, at, ms * MS, args=shapes))
                    at += ms * MS
            end = begin + STEP_MS * MS
            events.append(Event(f"gloo:{kind}", at, end - at, "user_annotation", thread=1 if pipeline else 2))
            events.append(step(number, begin, STEP_MS * MS))
        path = write_trace(folder / f"{i}.json", events, rank=i, world_size=len(ranks))
        if pipeline:
            document = json.loads(path.read_text())
            group = {"pg_name": "1", "pg_desc": "mesh_pp", "ranks": list(range(len(ranks)))}
            document["distributedInfo"]["pg_config"] = [group]
            path.write_text(json.dumps(document))
    return folder
