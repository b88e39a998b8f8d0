"""The plan of a benchmark job, which `muster bench` passes as one JSON argument (docs/tasks/regression.md)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


class InvalidPlan(ValueError):
    """The argument is not a plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkProgram:
    """What is measured. `folder` is its working directory, None for that of the pod.

    `setup` runs once before the first run; programs with the same folder and the same setup share it. `benchmark`
    groups programs: once a run of one of them has failed, the others of the group are not started any more.
    `trace_steps` (`5:8`) are profiled in runs that are traced.
    """

    name: str
    benchmark: str
    command: list[str]
    env: Mapping[str, str] = field(default_factory=dict)
    folder: str | None = None
    setup: list[str] = field(default_factory=list)
    timeout_s: float = 600.0
    trace_steps: str = ""


@dataclass(frozen=True, slots=True)
class Run:
    """One start of a program. `repetition` numbers the runs of a program, also over several jobs."""

    program: BenchmarkProgram
    repetition: int
    traced: bool = False

    @property
    def key(self) -> str:
        """Unique in a plan; the name of the run's folder."""
        return f"{self.program.name}.{'trace' if self.traced else self.repetition}"


def parse_plan(text: str) -> list[Run]:
    """The runs of a plan in order: `{"programs": [...], "runs": [[program, repetition, traced], ...]}`, where
    `program` is an index. Raises InvalidPlan."""
    try:
        plan: dict[str, Any] = json.loads(text)
        programs = [BenchmarkProgram(**one) for one in plan["programs"]]
        runs = [Run(programs[index], repetition, traced) for index, repetition, traced in plan["runs"]]
    except (ValueError, TypeError, KeyError, IndexError) as error:
        message = f"the plan must be JSON with programs and runs; {type(error).__name__}: {error}"
        raise InvalidPlan(message) from error
    keys = [run.key for run in runs]
    if len(set(keys)) != len(keys):
        raise InvalidPlan(f"each run of the plan must be there once; got {len(keys) - len(set(keys))} repeated")
    return runs
