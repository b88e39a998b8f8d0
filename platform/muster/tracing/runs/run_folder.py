"""Reads a job's run folder (docs/reference/run-folder.md), or any folder of traces.

The job may still run, or may have been killed in the middle of a line. Files that cannot be read are listed in
`RunFolder.skipped`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from muster.errors import InvalidTrace
from muster.tracing.read.spans import Int64
from muster.tracing.runs.compilation import CompilationRecord
from muster.tracing.runs.trace_files import CLAIMED, TraceName, manifest_names, parse_trace_name, read_manifest
from muster.tracing.runs.trace_sources import expand, folder_traces, traces_of
from muster.tracing.shared_folder import SharedFolder, open_regular

Float64 = NDArray[np.float64]
MAX_LINES_BYTES = 256 << 20
"""Limit for reading a file of metrics or events."""
MAX_TAIL_BYTES = 8 << 20
"""Limit for reading the newest steps of a rank."""
MAX_HEARTBEAT_BYTES = 65_536
MAX_PLAUSIBLE_VALUE = 1e100  # larger metrics cannot be plotted and count as unknown
Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
RANK_FILE = re.compile(r"rank-(\d+)\.jsonl?")


class MetricsRecord(msgspec.Struct):
    """One step of one rank, as written."""

    step: Count
    attempt: Count = 0
    step_time_s: float | None = None
    data_time_s: float | None = None
    loss: float | None = None
    tokens_per_s: float | None = None
    mfu: float | None = None
    memory_bytes: float | None = None
    trace_start_s: float | None = None
    trace_write_s: float | None = None


class HeartbeatRecord(msgspec.Struct):
    """The fields of a rank's newest heartbeat that the report uses."""

    rank: int
    world_size: int | None = None
    attempt: int = 0
    step: int | None = None
    steps: int | None = None
    peak_memory_bytes: float | None = None
    phase: str | None = None


class RunEvent(msgspec.Struct):
    """A line of events.jsonl."""

    message: str = ""
    kind: str = ""
    at: float | None = None
    attempt: int = 0
    step: int | None = None


@dataclass(frozen=True, slots=True)
class RankMetrics:
    """One rank's steps in order, each once (of the highest attempt); unknown values are NaN."""

    rank: int
    step: Int64
    step_time_s: Float64
    data_time_s: Float64
    loss: Float64
    tokens_per_s: Float64
    mfu: Float64
    memory_bytes: Float64
    trace_start_s: Float64
    trace_write_s: Float64

    def __len__(self) -> int:
        return len(self.step)


@dataclass(frozen=True, slots=True)
class SkippedFile:
    """A file that the report cannot use, and the reason."""

    file: str
    reason: str


@dataclass(frozen=True, slots=True)
class StepWindow:
    """The traces of one attempt over the same steps; `steps` is None for traces without Muster's file names."""

    attempt: int
    steps: tuple[int, int] | None
    files: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The content of a run folder, with traces as paths. `windows` are ordered newest first.

    `selected`: the traces were given one by one, so that a file that is no trace is named.
    """

    path: Path
    is_muster_run: bool
    metrics: tuple[RankMetrics, ...]
    heartbeats: tuple[HeartbeatRecord, ...]
    events: tuple[RunEvent, ...]
    windows: tuple[StepWindow, ...]
    skipped: tuple[SkippedFile, ...]
    compilation: Mapping[int, Sequence[CompilationRecord]] = field(default_factory=dict)
    """Compilations by rank."""
    selected: bool = False


def read_run_folder(path: Path) -> RunFolder:
    """Read a run folder or any folder of traces. Raises InvalidTrace if it does not exist."""
    if not path.exists():
        raise InvalidTrace(f"{path}: no such file or folder")
    if not _is_muster_run(path):
        return RunFolder(path, False, (), (), (), _plain_folder_windows(path), ())
    skipped: list[SkippedFile] = []
    metrics = [_read_metrics(file, skipped) for file in _rank_files(path / "metrics")]
    heartbeats = [_read_heartbeat(file, skipped) for file in _rank_files(path / "heartbeats")]
    events_file = path / "events.jsonl"
    events = _read_records(events_file, RunEvent, skipped) if events_file.exists() else []
    return RunFolder(
        path=path,
        is_muster_run=True,
        metrics=tuple(m for m in metrics if len(m)),
        heartbeats=tuple(heartbeat for heartbeat in heartbeats if heartbeat is not None),
        events=tuple(events),
        windows=_step_windows(path / "traces"),
        compilation={
            int(file.stem.removeprefix("rank-")): _read_records(file, CompilationRecord, skipped)
            for file in _rank_files(path / "compilation")
        },
        skipped=(*skipped, *_unusable_traces(path / "traces")),
    )


def read_traces(paths: Sequence[Path]) -> RunFolder:
    """A run folder or any folder of traces, if it is the only path, else the traces of all paths: files, folders,
    archives and patterns. Raises InvalidTrace as `read_run_folder` and `read_selected_traces`."""
    return read_run_folder(paths[0]) if len(paths) == 1 and paths[0].is_dir() else read_selected_traces(paths)


def read_selected_traces(paths: Sequence[Path]) -> RunFolder:
    """The traces of some paths as a RunFolder without other files; its path is their common folder, or the path of a
    single trace or archive. Raises InvalidTrace for a path that does not exist, or a folder without traces."""
    expanded = expand(paths)
    found = [file for path in expanded for file in traces_of(path)]
    files = tuple({Path(os.path.realpath(path)): path for path in reversed(found)}.values())[::-1]  # each once
    folders = [(path if path.is_dir() else path.parent).absolute() for path in expanded]
    within = expanded[0] if len(expanded) == 1 else Path(os.path.commonpath(folders))
    return RunFolder(within, False, (), (), (), (StepWindow(0, None, files),), (), selected=True)


def _is_muster_run(path: Path) -> bool:
    traces = path / "traces"
    return any((path / name).is_dir() for name in ("metrics", "heartbeats")) or (
        traces.is_dir() and ((traces / "spool").is_dir() or any(traces.glob("manifest-*.json")))
    )


def _rank_files(folder: Path) -> list[Path]:
    found = [(int(match[1]), file) for file in folder.glob("rank-*") if (match := RANK_FILE.fullmatch(file.name))]
    return [file for _, file in sorted(found)]


def _read_heartbeat(path: Path, skipped: list[SkippedFile]) -> HeartbeatRecord | None:
    try:
        with open_regular(path) as file:
            text = file.read(MAX_HEARTBEAT_BYTES + 1)
        if len(text) > MAX_HEARTBEAT_BYTES:
            raise InvalidTrace(f"must have at most {MAX_HEARTBEAT_BYTES} bytes")
        return msgspec.json.decode(text, type=HeartbeatRecord)
    except (InvalidTrace, OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        skipped.append(SkippedFile(_display_name(path), f"cannot be read: {error}"))
        return None


Record = TypeVar("Record", MetricsRecord, RunEvent, CompilationRecord)


def _read_records(
    path: Path, kind: type[Record], skipped: list[SkippedFile], tail_bytes: int | None = None
) -> list[Record]:
    """The lines that can be decoded; a killed job leaves an incomplete line. `tail_bytes`: of a larger file, the whole
    lines within its last bytes."""
    decoder = msgspec.json.Decoder(kind)
    found: list[Record] = []
    broken: list[int] = []
    try:
        with open_regular(path) as file:
            if tail_bytes is not None and (size := os.fstat(file.fileno()).st_size) > tail_bytes:
                file.seek(size - tail_bytes)
                file.readline(tail_bytes)
            remaining, number = MAX_LINES_BYTES if tail_bytes is None else tail_bytes, 0
            while remaining > 0 and (line := file.readline(remaining)):
                remaining, number = remaining - len(line), number + 1
                try:
                    found.append(decoder.decode(line))
                except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                    if line.strip():
                        broken.append(number)
            if tail_bytes is None and file.read(1):
                limit = f"only the first {MAX_LINES_BYTES} bytes are read"
                skipped.append(
                    SkippedFile(_display_name(path), f"has {os.fstat(file.fileno()).st_size} bytes; {limit}")
                )
    except OSError as error:
        skipped.append(SkippedFile(_display_name(path), str(error)))
    if broken:
        lines = f"line {broken[0]}" if len(broken) == 1 else f"{len(broken)} lines, starting with line {broken[0]}"
        skipped.append(SkippedFile(_display_name(path), f"cannot be read: {lines}"))
    return found


def read_rank_metrics(path: Path) -> RankMetrics | None:
    """The newest steps of rank 0 of a run folder, of at most `MAX_TAIL_BYTES`; None if it has not reported any,
    or its file cannot be read."""
    file = path / "metrics" / "rank-0.jsonl"
    metrics = _read_metrics(file, [], MAX_TAIL_BYTES) if file.is_file() else None
    return metrics if metrics else None


def _read_metrics(path: Path, skipped: list[SkippedFile], tail_bytes: int | None = None) -> RankMetrics:
    match = RANK_FILE.fullmatch(path.name)
    lines = _read_records(path, MetricsRecord, skipped, tail_bytes)
    step = np.array([line.step for line in lines], dtype=np.int64)
    attempt = np.array([line.attempt for line in lines], dtype=np.int64)
    order = np.lexsort((np.arange(len(step)), attempt, step))
    last = order[np.append(step[order][1:] != step[order][:-1], True)] if len(order) else order

    def column(name: str) -> Float64:
        values = np.array([getattr(line, name) for line in lines], dtype=np.float64)
        values[np.abs(values) > MAX_PLAUSIBLE_VALUE] = np.nan
        return values[last]

    return RankMetrics(
        rank=int(match[1]) if match else 0,
        step=step[last],
        step_time_s=column("step_time_s"),
        data_time_s=column("data_time_s"),
        loss=column("loss"),
        tokens_per_s=column("tokens_per_s"),
        mfu=column("mfu"),
        memory_bytes=column("memory_bytes"),
        trace_start_s=column("trace_start_s"),
        trace_write_s=column("trace_write_s"),
    )


def _step_windows(traces: Path) -> tuple[StepWindow, ...]:
    """Collected traces, and those still in the spool or claimed."""
    files: dict[TraceName, Path] = {}
    for folder in (traces / "spool", *sorted((traces / CLAIMED).glob("*")), traces):
        for file in folder.glob("rank-*"):
            name = parse_trace_name(file.name)
            if name is not None:
                files[name] = file
    by_window: dict[tuple[int, int, int], list[TraceName]] = {}
    for name in files:
        by_window.setdefault((name.attempt, name.end_step, name.start_step), []).append(name)
    return tuple(
        StepWindow(attempt, (start, end), tuple(files[name] for name in sorted(names, key=lambda n: n.rank)))
        for (attempt, end, start), names in sorted(by_window.items(), reverse=True)
    )


def _unusable_traces(traces: Path) -> list[SkippedFile]:
    """Corrupt and unfinished traces."""
    found: dict[str, str] = {}
    run = SharedFolder(traces.parent)
    try:
        manifests = manifest_names(run)
    except OSError as error:  # such as a link in place of the folder, which a program of the job may have made
        manifests = []
        found[traces.name] = f"manifests cannot be read: {error.strerror or error}"
    for name in manifests:
        try:
            manifest = read_manifest(run, name)
        except (InvalidTrace, OSError) as error:
            found[name] = str(error).removeprefix(f"{traces / name}: ")
            continue
        for entry in manifest.traces:
            if entry.status == "corrupt":
                found[entry.file.removeprefix("corrupt/")] = entry.reason or "corrupt"
    for file in sorted((traces / "corrupt").glob("*.json")):
        found.setdefault(file.name, "corrupt, and not in any manifest")
    spool = traces / "spool"
    for file in sorted([*spool.glob("*.tmp"), *(spool / ".tmp").glob("rank-*")]):
        if file.is_file():
            found[file.name.removesuffix(".tmp")] = f"not finished: {file.stat().st_size} bytes so far"
    return [SkippedFile(file, reason) for file, reason in found.items()]


def _plain_folder_windows(path: Path) -> tuple[StepWindow, ...]:
    files = folder_traces(path)
    return (StepWindow(0, None, files),) if files else ()


def _display_name(path: Path) -> str:
    return (
        f"{path.parent.name}/{path.name}" if path.parent.name in ("metrics", "heartbeats", "compilation") else path.name
    )


def finite_values(values: Sequence[float] | NDArray[Any]) -> Float64:
    """The values without NaN and infinities."""
    array = np.asarray(values, dtype=np.float64)
    return array[np.isfinite(array)]
