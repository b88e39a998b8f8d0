"""Reads the CSV tables of a recorded workload: nodes and jobs.

Each table has two formats, recognized by the header: that of the OpenB traces and a plain one. An invalid row is
reported with its line and the reason; the caller decides whether invalid rows are an error.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from muster.errors import InvalidTrace
from muster.text import closest_match

R = TypeVar("R", bound="TraceNode | TraceJob")
CsvRow = Mapping[str, str]

MAX_VALUES = {"pods": 100_000, "gpus": 10_000, "cpu_milli": 10**9, "memory_mib": 10**10, "seconds": 10**11}
"""Larger values are treated as typing errors."""


@dataclass(frozen=True, slots=True)
class TraceNode:
    """A node: GPUs and their type, milli-cores, MiB, rack and block."""

    name: str
    gpus: int
    cpu_milli: int
    memory_mib: int
    gpu_type: str = ""
    rack: str = ""
    block: str = ""


TRAINING_JOB = "TrainingJob"


@dataclass(frozen=True, slots=True)
class TraceJob:
    """A job: submit time and run time at full size, in seconds, and the requests of each pod.

    `gpu_types`: types of GPU it may run on, in order of preference; empty: any. `topology`: the level that all its pods
    must share. `kind`: of the object that queued.
    """

    name: str
    submit_s: float
    runtime_s: float
    pods: int
    gpus_per_pod: int
    min_pods: int
    cpu_milli: int = 0
    memory_mib: int = 0
    queue: str = "default"
    priority: int = 0
    max_runtime_s: int | None = None
    gpu_types: tuple[str, ...] = ()
    topology: str = ""
    kind: str = TRAINING_JOB
    qos: str = ""  # its QoS class in OpenB
    fractional_gpu: bool = False  # requested a fraction of a GPU; counted as one
    never_scheduled: bool = False  # was never scheduled in the recording


@dataclass(frozen=True, slots=True)
class InvalidRow:
    """An invalid row. Line 1 is the header."""

    line: int
    reason: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.reason}"


@dataclass(frozen=True, slots=True)
class CsvTable(Generic[R]):
    """The valid rows of a file, in its order, and the invalid ones."""

    path: Path
    rows: tuple[R, ...]
    invalid_rows: tuple[InvalidRow, ...]

    def require_valid(self) -> CsvTable[R]:
        """The table itself if all rows are valid. Raises InvalidTrace with the first invalid ones."""
        if not self.invalid_rows:
            return self
        shown = "\n  ".join(str(row) for row in self.invalid_rows[:10])
        more = f"\n  and {len(self.invalid_rows) - 10} more" if len(self.invalid_rows) > 10 else ""
        share = f"{len(self.invalid_rows)} of {len(self.rows) + len(self.invalid_rows)} rows"
        raise InvalidTrace(f"{self.path}: {share} are invalid; correct them or pass --skip-bad:\n  {shown}{more}")


def read_nodes(path: Path) -> CsvTable[TraceNode]:
    """Nodes in either format. Raises InvalidTrace if the file as a whole is invalid."""
    forms = {
        ("sn", "cpu_milli", "memory_mib", "gpu", "model"): _openb_node,
        ("name", "gpus", "cpu_milli", "memory_mib"): _plain_node,
    }
    return _read_table(path, "nodes", forms)


def read_jobs(path: Path) -> CsvTable[TraceJob]:
    """Jobs in either format. Raises InvalidTrace if the file as a whole is invalid."""
    forms = {
        ("name", "num_gpu", "creation_time", "deletion_time", "scheduled_time", "cpu_milli", "memory_mib"): _openb_job,
        ("name", "submit_s", "runtime_s", "pods", "gpus_per_pod"): _plain_job,
    }
    return _read_table(path, "jobs", forms)


def _read_table(path: Path, what: str, forms: Mapping[tuple[str, ...], Callable[[CsvRow], R]]) -> CsvTable[R]:
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise InvalidTrace(f"{path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise InvalidTrace(f"{path}: not UTF-8 text (byte {error.start}); save it as CSV in UTF-8") from error
    lines = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = [name.strip() for name in next(lines, [])]
        parse = next((parse for columns, parse in forms.items() if set(columns) <= set(header)), None)
        if parse is None:
            raise InvalidTrace(f"{path}: line 1: {_header_error(header, what, list(forms))}")
        rows, bad = _parse_rows(lines, header, parse)
    except csv.Error as error:
        raise InvalidTrace(f"{path}: line {lines.line_num}: not CSV: {error}") from error
    if not rows and not bad:
        raise InvalidTrace(f"{path}: must contain at least one row of {what}; got only a header")
    return CsvTable(path, tuple(rows), tuple(bad))


def _header_error(header: Sequence[str], what: str, forms: Sequence[tuple[str, ...]]) -> str:
    """The missing columns of the most similar format, with suggestions."""
    form = max(forms, key=lambda columns: sum(name in header for name in columns) / len(columns))
    missing = [name for name in form if name not in header]
    if 3 * len(missing) > len(form):
        formats = ", or ".join(",".join(columns) for columns in forms)
        return f"the header must have the columns of {what}: {formats}; got {','.join(header)[:200]!r}"
    others = [name for name in header if name not in form]
    errors = []
    for name in missing:
        near = closest_match(name, others)
        errors.append(f"column {name} is missing" + ("" if near is None else f"; is it {near!r}?"))
    return f"{'; '.join(errors)} (columns of {what}: {','.join(form)})"


def _parse_rows(lines: object, header: Sequence[str], parse: Callable[[CsvRow], R]) -> tuple[list[R], list[InvalidRow]]:
    rows: list[R] = []
    bad: list[InvalidRow] = []
    seen: dict[str, int] = {}
    for values in lines:  # type: ignore[attr-defined]
        line = lines.line_num  # type: ignore[attr-defined]
        if not values:
            continue
        try:
            if len(values) != len(header):
                raise ValueError(f"must have {len(header)} columns, as the header; got {len(values)}")
            row = parse({name: value.strip() for name, value in zip(header, values, strict=True)})
            if row.name in seen:
                raise ValueError(f"name must be unique; {row.name!r} is also in line {seen[row.name]}")
        except ValueError as error:
            bad.append(InvalidRow(line, str(error)))
            continue
        seen[row.name] = line
        rows.append(row)
    return rows, bad


# ---- formats


def _plain_node(cells: CsvRow) -> TraceNode:
    return TraceNode(
        name=_parse_name(cells, "name"),
        gpus=_parse_integer(cells, "gpus", MAX_VALUES["gpus"]),
        cpu_milli=_parse_integer(cells, "cpu_milli", MAX_VALUES["cpu_milli"]),
        memory_mib=_parse_integer(cells, "memory_mib", MAX_VALUES["memory_mib"]),
        gpu_type=cells.get("gpu_type", ""),
        rack=cells.get("rack", ""),
        block=cells.get("block", ""),
    )


def _openb_node(cells: CsvRow) -> TraceNode:
    return TraceNode(
        name=_parse_name(cells, "sn"),
        gpus=_parse_integer(cells, "gpu", MAX_VALUES["gpus"]),
        cpu_milli=_parse_integer(cells, "cpu_milli", MAX_VALUES["cpu_milli"]),
        memory_mib=_parse_integer(cells, "memory_mib", MAX_VALUES["memory_mib"]),
        gpu_type=cells["model"],
    )


def _plain_job(cells: CsvRow) -> TraceJob:
    pods = _parse_integer(cells, "pods", MAX_VALUES["pods"], minimum=1)
    least = _parse_integer(cells, "min_pods", MAX_VALUES["pods"], minimum=1) if cells.get("min_pods") else pods
    if least > pods:
        raise ValueError(f"min_pods must be at most pods ({pods}); got {least}")
    bound = _parse_number(cells, "max_runtime_s", MAX_VALUES["seconds"]) if cells.get("max_runtime_s") else None
    if bound is not None and bound < 1:
        raise ValueError(f"max_runtime_s must be at least 1, or empty for no maximum; got {cells['max_runtime_s']!r}")
    gpu_types = cells.get("gpu_type", "")
    return TraceJob(
        name=_parse_name(cells, "name"),
        submit_s=_parse_number(cells, "submit_s", MAX_VALUES["seconds"]),
        runtime_s=_parse_number(cells, "runtime_s", MAX_VALUES["seconds"]),
        pods=pods,
        gpus_per_pod=_parse_integer(cells, "gpus_per_pod", MAX_VALUES["gpus"]),
        min_pods=least,
        cpu_milli=_parse_integer(cells, "cpu_milli", MAX_VALUES["cpu_milli"]) if cells.get("cpu_milli") else 0,
        memory_mib=_parse_integer(cells, "memory_mib", MAX_VALUES["memory_mib"]) if cells.get("memory_mib") else 0,
        queue=cells.get("queue") or "default",
        priority=_parse_priority(cells),
        max_runtime_s=None if bound is None else math.ceil(bound),
        gpu_types=tuple(part.strip() for part in gpu_types.split("|") if part.strip()),
        topology=cells.get("topology", ""),
        kind=_parse_kind(cells, least, pods),
    )


def _parse_kind(cells: CsvRow, least: int, pods: int) -> str:
    kind = cells.get("kind", "") or TRAINING_JOB
    if not (kind.isascii() and kind.isalnum()):
        raise ValueError(f"kind must be that of an object, such as Job or JobSet; got {kind!r}")
    if kind != TRAINING_JOB and least < pods:
        raise ValueError(f"min_pods must be empty for a {kind}, which has one size; got {least}")
    return kind


def _openb_job(cells: CsvRow) -> TraceJob:
    """A task of OpenB is a job of one pod. One that was never scheduled runs for the time that it existed."""
    gpus, milli = _parse_integer(cells, "num_gpu", MAX_VALUES["gpus"]), _parse_gpu_milli(cells)
    created = _parse_number(cells, "creation_time", MAX_VALUES["seconds"])
    deleted = _parse_number(cells, "deletion_time", MAX_VALUES["seconds"])
    never_ran = not cells["scheduled_time"]
    column = "creation_time" if never_ran else "scheduled_time"
    started = _parse_number(cells, column, MAX_VALUES["seconds"])
    if deleted < started:
        raise ValueError(f"deletion_time must not be before {column} {cells[column]}; got {cells['deletion_time']}")
    return TraceJob(
        name=_parse_name(cells, "name"),
        submit_s=created,
        runtime_s=deleted - started,
        pods=1,
        gpus_per_pod=gpus,
        min_pods=1,
        cpu_milli=_parse_integer(cells, "cpu_milli", MAX_VALUES["cpu_milli"]),
        memory_mib=_parse_integer(cells, "memory_mib", MAX_VALUES["memory_mib"]),
        gpu_types=tuple(part.strip() for part in cells.get("gpu_spec", "").split("|") if part.strip()),
        qos=cells.get("qos", ""),
        fractional_gpu=gpus > 0 and milli < 1000,
        never_scheduled=never_ran,
    )


# ---- cells


def _parse_name(cells: CsvRow, column: str) -> str:
    if not cells[column]:
        raise ValueError(f"{column} must not be empty")
    return cells[column]


def _parse_number(cells: CsvRow, column: str, maximum: float) -> float:
    try:
        value = float(cells[column])
    except ValueError:
        raise ValueError(f"{column} must be a number; got {cells[column]!r}") from None
    if not 0 <= value <= maximum:
        raise ValueError(f"{column} must be from 0 to {maximum:g}; got {cells[column]!r}")
    return value


def _parse_integer(cells: CsvRow, column: str, maximum: int, minimum: int = 0) -> int:
    value = _parse_number(cells, column, math.inf)
    if not math.isfinite(value) or value != int(value) or not minimum <= value <= maximum:
        raise ValueError(f"{column} must be an integer from {minimum} to {maximum}; got {cells[column]!r}")
    return int(value)


def _parse_gpu_milli(cells: CsvRow) -> int:
    return _parse_integer(cells, "gpu_milli", 1000) if cells.get("gpu_milli") else 1000


def _parse_priority(cells: CsvRow) -> int:
    text = cells.get("priority", "")
    try:
        value = int(text) if text else 0
    except ValueError:
        raise ValueError(f"priority must be an integer; got {text!r}") from None
    if not -(2**31) <= value < 2**31:
        raise ValueError(f"priority must be an integer of 32 bits; got {text}")
    return value
