"""The suite of benchmarks: a YAML file (docs/tasks/regression.md)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from pydantic import Field, model_validator

from muster.api.env_vars import is_valid_name
from muster.api.spec import MAX_SECONDS, Name, ObjectName, Quantities, StrictModel
from muster.api.spec.fields import ListMapKey
from muster.api.yaml_input import parse_model
from muster.bench.statistics import MIN_PAIRS, Criteria
from muster.errors import InvalidSpec

Metric = Literal["wall", "cpu", "totalCpu"]
METRICS: tuple[Metric, ...] = ("wall", "cpu", "totalCpu")
Words = Annotated[list[Annotated[str, Field(max_length=32_768)]], Field(min_length=1, max_length=1000)]
Fraction = Annotated[float, Field(gt=0, lt=1)]
Runs = Annotated[int, Field(ge=MIN_PAIRS, le=1000)]
MAX_BENCHMARKS = 100


class CriteriaSpec(StrictModel):
    """When a difference is reported, and when enough runs were made."""

    false_alarm_rate: Annotated[float, Field(gt=0, le=0.5)] = 0.025
    """Probability that the comparison reports a regression although nothing changed, over all benchmarks together."""
    threshold: Annotated[float, Field(ge=0, lt=1)] = 0.01
    """Changes below this fraction are not reported."""
    precision: Fraction = 0.01
    """Runs end once half of the interval is at most this fraction."""
    min_runs: Runs = 12
    """Runs of each side before the first decision."""
    max_runs: Runs = 24
    """Maximum number of runs of each side."""

    @model_validator(mode="after")
    def _min_within_max(self) -> CriteriaSpec:
        if self.min_runs > self.max_runs:
            raise ValueError(f"minRuns: must be at most maxRuns ({self.max_runs}); got {self.min_runs}")
        return self


class TraceSteps(StrictModel):
    """The steps that are profiled in one additional run of each side."""

    start_step: Annotated[int, Field(ge=1, le=10**9)]
    """The first step, counted from 1."""
    steps: Annotated[int, Field(ge=1, le=1000)]
    """Number of steps."""


class BenchmarkSpec(StrictModel):
    """One benchmark: a command that records times per iteration, or a component that starts Muster's trainer."""

    name: Name
    """Unique in the suite."""
    command: Words | None = None
    """The program and its arguments. Relative paths start at the suite's folder."""
    component: Annotated[str, Field(min_length=1, max_length=253)] | None = None
    """A TorchX component with one pod, such as muster.train.fsdp."""
    args: Annotated[list[Annotated[str, Field(max_length=32_768)]], Field(max_length=1000)] = []
    """Arguments of the component."""
    setup: Words | None = None
    """A command that runs before the first run of each job, for example to compile."""
    env: Annotated[dict[str, str], Field(max_length=1000)] = {}
    """Environment variables."""
    variants: Annotated[dict[Name, dict[str, str]], Field(max_length=MAX_BENCHMARKS)] = {}
    """Each variant is a benchmark NAME.VARIANT with these environment variables in addition."""
    warmup: Annotated[int, Field(ge=0, le=100_000)] = 3
    """Iterations at the start of each run that do not count."""
    timeout_seconds: Annotated[int, Field(ge=1, le=MAX_SECONDS)] = 600
    """Time limit of a run, and of the setup."""
    metric: Metric = "wall"
    """The times that decide: wall or cpu (`quantile` of a run's iterations), or totalCpu (of all its processes)."""
    quantile: Fraction = 0.5
    """The quantile of a run's iterations that is its value: the median. 0.25 is disturbed less by other programs."""
    trace: TraceSteps | None = None
    """The steps to profile, in order to name the kernels and collectives that changed."""

    @model_validator(mode="after")
    def _one_program(self) -> BenchmarkSpec:
        if (self.command is None) == (self.component is None):
            given = "both" if self.command else "neither"
            raise ValueError(f"must have either command or component; got {given}")
        if self.args and self.component is None:
            raise ValueError(f"args: must be set with component only; got {self.args!r}; append them to command")
        for name in (*self.env, *(name for variables in self.variants.values() for name in variables)):
            if not is_valid_name(name) or name.startswith("MUSTER_"):
                raise ValueError(f"env: must be names of variables that do not begin with MUSTER_; got {name!r}")
        return self


class SuiteSpec(StrictModel):
    """The suite as written."""

    name: Name | None = None
    """Default: the file's name."""
    queue: ObjectName = "default"
    """The queue of the jobs."""
    priority: Annotated[int, Field(ge=-(2**31), le=2**31 - 1)] = 0
    """Priority of the jobs."""
    resources: Quantities = {}
    """Resources of the pod in which all runs take place, one after the other."""
    image: Annotated[str, Field(max_length=1000)] | None = None
    """Image of the pod on Kubernetes, with Muster and the programs."""
    criteria: CriteriaSpec = CriteriaSpec()
    """When a difference is reported."""
    benchmarks: Annotated[
        list[BenchmarkSpec],
        Field(min_length=1, max_length=MAX_BENCHMARKS),
        ListMapKey("name", "give every benchmark its own"),
    ]
    """The benchmarks."""


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One benchmark, or one of its variants, ready to run. `trace_steps` is empty or as in `5:8`."""

    name: str
    command: tuple[str, ...]
    env: dict[str, str]
    setup: tuple[str, ...]
    warmup: int
    timeout_s: float
    metric: Metric
    quantile: float
    trace_steps: str


@dataclass(frozen=True, slots=True)
class Suite:
    """A suite whose components and variants are resolved. `folder` is that of its file."""

    name: str
    folder: Path
    spec: SuiteSpec
    benchmarks: tuple[Benchmark, ...]

    def as_json(self) -> dict[str, Any]:
        """The suite as written, with the resolved benchmarks, for `from_json`."""
        written = self.spec.model_dump(mode="json", by_alias=True, exclude_none=True)
        return {"name": self.name, "written": written, "benchmarks": [asdict(one) for one in self.benchmarks]}

    @classmethod
    def from_json(cls, document: Any) -> Suite:
        """Raises `InvalidSpec` for anything else than the output of `as_json`."""
        try:
            return cls(
                document["name"],
                Path(),
                SuiteSpec.model_validate(document["written"]),
                tuple(msgspec.convert(one, Benchmark) for one in document["benchmarks"]),
            )
        except (ValueError, TypeError, KeyError) as error:
            raise InvalidSpec(f"the results have no valid suite: {error}") from error

    @property
    def criteria(self) -> Criteria:
        """For each benchmark: the rate of false alarms is divided among them (Bonferroni)."""
        given = self.spec.criteria
        return Criteria(
            false_alarm_rate=given.false_alarm_rate / len(self.benchmarks),
            threshold=given.threshold,
            precision=given.precision,
            min_pairs=given.min_runs,
            max_pairs=given.max_runs,
        )


def parse_suite(text: str | bytes, source: str) -> SuiteSpec:
    """Raises `InvalidSpec` with line, field, value and what is valid, for all errors at once."""
    return parse_model(SuiteSpec, text, source)


def resolve_suite(spec: SuiteSpec, file: Path, commands: dict[str, tuple[list[str], dict[str, str]]]) -> Suite:
    """The suite of a file; `commands` has command and environment of each benchmark with a component, by name."""
    found = tuple(one for written in spec.benchmarks for one in _variants(written, commands.get(written.name)))
    return Suite(spec.name or suite_name(file), file.resolve().parent, spec, found)


def suite_name(file: Path) -> str:
    """A valid name from the file's."""
    kept = "".join(char if char.isascii() and char.isalnum() else "-" for char in file.stem.lower()).strip("-")
    return kept[:40].strip("-") or "suite"


def _variants(written: BenchmarkSpec, component: tuple[list[str], dict[str, str]] | None) -> Iterator[Benchmark]:
    command, env = component or (written.command or [], {})
    trace = written.trace
    base = Benchmark(
        name=written.name,
        command=tuple(command),
        env={**env, **written.env},
        setup=tuple(written.setup or ()),
        warmup=written.warmup,
        timeout_s=float(written.timeout_seconds),
        metric=written.metric,
        quantile=written.quantile,
        trace_steps="" if trace is None else f"{trace.start_step}:{trace.start_step + trace.steps}",
    )
    if not written.variants:
        yield base
    for name, variables in written.variants.items():
        yield replace(base, name=f"{written.name}.{name}", env={**base.env, **variables})


def is_time(value: float) -> bool:
    """Whether a recorded time can be used."""
    return math.isfinite(value) and value > 0
