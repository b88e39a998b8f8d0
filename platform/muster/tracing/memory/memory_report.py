"""Analyses the memory snapshots of a run: each rank, the ranks against each other, advice, and growth between two runs.

from muster.tracing.memory import analyse_memory
report = analyse_memory("runs/llama-8b")                   # traces/memory/*.pickle.gz of the newest steps
report = analyse_memory(["rank0.pickle", "rank1.pickle"], before=["old0.pickle", "old1.pickle"])
report.ranks[0].peak.by_category, report.advice
"""

from __future__ import annotations

import math
import os
import resource
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from queue import SimpleQueue
from typing import Final, TypeAlias

from muster.errors import InvalidTrace
from muster.text import pluralize
from muster.tracing.analysis.trace_summary import exit_with_parent
from muster.tracing.memory.advice import Advice, derive_advice
from muster.tracing.memory.rank_memory import (
    SNAPSHOT_NAME,
    AnalysedSnapshot,
    BytesByStack,
    RankMemory,
    UnreadableSnapshot,
    analyse_snapshot_file,
)
from muster.tracing.read.restricted_pickle import DEFAULT_MEMORY_LIMITS, MemoryLimits
from muster.tracing.runs.run_folder import SkippedFile
from muster.tracing.runs.trace_files import CLAIMED, MEMORY, SPOOL, TRACES

PathText: TypeAlias = str | os.PathLike[str]
MAX_FILES: Final = 1024
_PATTERNS: Final = ("*.pickle", "*.pickle.gz")
MAX_CHANGES: Final = 30
CPU_BASE_S: Final = 30.0
_BYTES_PER_CPU_S: Final = 1 << 20
_COMPRESSION: Final = 16


@dataclass(frozen=True, slots=True)
class RankSpread:
    """The rank with the highest peak against the median of all. `above_bytes` is the difference of the peaks;
    `category` is the one that differs most from the rank with the median peak, by `category_bytes`."""

    highest: str
    median: str
    highest_bytes: int
    median_bytes: int
    above_bytes: int
    category: str
    category_bytes: int


@dataclass(frozen=True, slots=True)
class Change:
    """Memory of one category and stack in two snapshots; `frames` are its lines of Python outside torch,
    innermost first."""

    category: str
    place: str
    frames: tuple[str, ...]
    before_bytes: int
    after_bytes: int

    @property
    def grown_bytes(self) -> int:
        return self.after_bytes - self.before_bytes


@dataclass(frozen=True, slots=True)
class RankChanges:
    """What differs between two snapshots of a rank, at their peaks and at their ends; the largest changes first."""

    label: str
    before: str
    after: str
    peak_before_bytes: int
    peak_after_bytes: int
    reserved_before_bytes: int
    reserved_after_bytes: int
    end_before_bytes: int
    end_after_bytes: int
    by_category: dict[str, int]
    at_peak: tuple[Change, ...]
    at_end: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """The memory of all ranks. `spread` is None for one rank; `changes` is empty without earlier snapshots."""

    name: str
    folder: str
    ranks: tuple[RankMemory, ...]
    spread: RankSpread | None
    advice: tuple[Advice, ...]
    changes: tuple[RankChanges, ...]
    notes: tuple[str, ...]
    skipped: tuple[SkippedFile, ...]


def analyse_memory(
    source: PathText | Sequence[PathText],
    *,
    before: PathText | Sequence[PathText] | None = None,
    name: str | None = None,
    workers: int = 0,
    limits: MemoryLimits = DEFAULT_MEMORY_LIMITS,
) -> MemoryReport:
    """Analyse a run folder, any folder of snapshots, or some snapshots; `before` are earlier ones to compare with.

    With `workers`, so many processes read the files; one that takes much more CPU time than files of that size take is
    ended. The calling script then needs the `__main__` guard of multiprocessing. 0: this process reads them.
    Files that cannot be read, or exceed `limits`, are in `skipped`.
    Raises InvalidTrace if no snapshot can be analysed, or none of `before`.
    """
    files, notes = find_snapshots(source)
    analysed, skipped = _analyse_files(files, workers, limits)
    changes: tuple[RankChanges, ...] = ()
    if before is not None:
        old_files, old_notes = find_snapshots(before)
        old, old_skipped = _analyse_files(old_files, workers, limits)
        changes = _compare(old, analysed)
        notes, skipped = [*notes, *old_notes], [*skipped, *old_skipped]
    ranks = tuple(sorted((one.memory for one in analysed), key=lambda rank: (rank.rank is None, rank.rank, rank.label)))
    folder = _run_folder(files[0])
    return MemoryReport(
        name=name or (files[0].name if len(files) == 1 else folder.resolve().name),
        folder=str(folder.absolute()),
        ranks=ranks,
        spread=_spread(ranks),
        advice=derive_advice(ranks),
        changes=changes,
        notes=tuple(notes),
        skipped=tuple(SkippedFile(Path(one.source).name, one.reason) for one in skipped),
    )


def find_snapshots(source: PathText | Sequence[PathText]) -> tuple[list[Path], list[str]]:
    """The snapshots of a folder or of a list of files, and notes about those left out.

    Of a run folder, those of the newest attempt and steps. Raises InvalidTrace if there are none.
    """
    if not isinstance(source, str | os.PathLike):
        files = list(dict.fromkeys(map(Path, source)))
        for file in files:
            if not file.is_file():
                raise InvalidTrace(f"{file}: {'must be a snapshot; got a folder' if file.is_dir() else 'no such file'}")
        if not files:
            raise InvalidTrace("must name a folder or at least one snapshot")
        return files, []
    path = Path(source)
    if path.is_file():
        return [path], []
    if not path.is_dir():
        raise InvalidTrace(f"{path}: no such file or folder")
    found = _snapshots_below(path)
    if not found:
        raise InvalidTrace(f"{path}: contains no memory snapshot (*.pickle); `muster trace JOB --memory` records them")
    windows: dict[tuple[int, int, int], list[Path]] = {}
    for file in found:
        if match := SNAPSHOT_NAME.fullmatch(file.name):
            windows.setdefault((int(match[2]), int(match[4]), int(match[3])), []).append(file)
    if not windows:
        return found[:MAX_FILES], []
    newest = max(windows)
    others = len(windows) - 1
    kept = sorted(windows[newest], key=lambda file: int(SNAPSHOT_NAME.fullmatch(file.name)[1]))  # type: ignore[index]
    note = f"snapshots of steps {newest[2]} to {newest[1] - 1} are analysed; {pluralize(others, 'other window')} not"
    return kept[:MAX_FILES], [note] if others else []


def _run_folder(file: Path) -> Path:
    """The run folder of a snapshot, or the folder that it is in."""
    return next((parent.parent for parent in file.parents if parent.name == TRACES), file.parent)


def _snapshots_below(path: Path) -> list[Path]:
    """The snapshots of a run folder, collected or not, of several versions of one file the collected one; of any other
    folder those in it."""
    run = [path / SPOOL, *sorted((path / TRACES / CLAIMED).glob("*")), path / TRACES / MEMORY]
    folders = run if any(folder.is_dir() for folder in run) else [path]
    found = [file for folder in folders for pattern in _PATTERNS for file in folder.glob(pattern) if file.is_file()]
    return sorted({file.name.removesuffix(".gz"): file for file in found}.values(), key=lambda file: file.name)


def _analyse_files(
    files: Sequence[Path], workers: int, limits: MemoryLimits
) -> tuple[list[AnalysedSnapshot], list[UnreadableSnapshot]]:
    if workers < 1:
        results = [analyse_snapshot_file(file, limits) for file in files]
    else:
        results = _analyse_in_processes(files, min(workers, len(files)), limits)
    unreadable = [result for result in results if isinstance(result, UnreadableSnapshot)]
    analysed = [one for result in results if not isinstance(result, UnreadableSnapshot) for one in result]
    if not analysed:
        raise InvalidTrace("; ".join(f"{one.source}: {one.reason}" for one in unreadable[:3]))
    return analysed, unreadable


def _analyse_in_processes(
    files: Sequence[Path], workers: int, limits: MemoryLimits
) -> list[tuple[AnalysedSnapshot, ...] | UnreadableSnapshot]:
    """Each process reads one file after another; one that has ended is replaced."""
    idle: SimpleQueue[ProcessPoolExecutor] = SimpleQueue()
    for _ in range(workers):
        idle.put(_new_process())

    def analyse(file: Path) -> tuple[AnalysedSnapshot, ...] | UnreadableSnapshot:
        process, cpu_s = idle.get(), _cpu_s(file)
        try:
            return process.submit(_analyse_limited, file, limits, cpu_s).result()
        except BrokenProcessPool:
            process.shutdown()
            process = _new_process()
            why = f"that takes more than {cpu_s:.0f} s of CPU time, or much memory"
            return UnreadableSnapshot(str(file), f"the process that read it was killed: {why}")
        finally:
            idle.put(process)

    with ThreadPoolExecutor(workers) as threads:
        results = list(threads.map(analyse, files))
    while not idle.empty():
        idle.get().shutdown()
    return results


def _new_process() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=exit_with_parent)


def _analyse_limited(
    file: Path, limits: MemoryLimits, cpu_s: float
) -> tuple[AnalysedSnapshot, ...] | UnreadableSnapshot:
    """In a process, which the kernel ends if it takes too much CPU time: nothing else interrupts the unpickler."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    wanted = math.ceil(used.ru_utime + used.ru_stime + cpu_s)
    resource.setrlimit(resource.RLIMIT_CPU, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))
    return analyse_snapshot_file(file, limits)


def _cpu_s(file: Path) -> float:
    """Several times what a snapshot of this size takes."""
    try:
        size = file.stat().st_size
    except OSError:
        size = 0
    return CPU_BASE_S + size / _BYTES_PER_CPU_S * (_COMPRESSION if file.suffix == ".gz" else 1)


def _spread(ranks: Sequence[RankMemory]) -> RankSpread | None:
    if len(ranks) < 2:
        return None
    ordered = sorted(ranks, key=lambda rank: (rank.peak.in_use_bytes, rank.label))
    highest, median = ordered[-1], ordered[(len(ordered) - 1) // 2]
    categories = sorted({*highest.peak.by_category, *median.peak.by_category})
    differences = {
        category: highest.peak.by_category.get(category, 0) - median.peak.by_category.get(category, 0)
        for category in categories
    }
    category = max(differences, key=lambda name: (differences[name], name), default="")
    return RankSpread(
        highest=highest.label,
        median=median.label,
        highest_bytes=highest.peak.in_use_bytes,
        median_bytes=median.peak.in_use_bytes,
        above_bytes=highest.peak.in_use_bytes - median.peak.in_use_bytes,
        category=category,
        category_bytes=differences.get(category, 0),
    )


def _compare(before: Sequence[AnalysedSnapshot], after: Sequence[AnalysedSnapshot]) -> tuple[RankChanges, ...]:
    """The changes of each rank that has a snapshot in both, or of the only two snapshots. Raises InvalidTrace."""
    if len(before) == len(after) == 1:
        pairs = [(before[0], after[0])]
    else:
        old = {one.memory.label: one for one in before}
        pairs = [(old[one.memory.label], one) for one in after if one.memory.label in old]
    if not pairs:
        labels = ", ".join(one.memory.label for one in before[:8])
        raise InvalidTrace(f"no snapshot to compare with is of the same rank; those given are of {labels}")
    return tuple(_rank_changes(old, new) for old, new in pairs)


def _rank_changes(before: AnalysedSnapshot, after: AnalysedSnapshot) -> RankChanges:
    old, new = before.memory.peak, after.memory.peak
    return RankChanges(
        label=after.memory.label,
        before=before.memory.source,
        after=after.memory.source,
        peak_before_bytes=old.in_use_bytes,
        peak_after_bytes=new.in_use_bytes,
        reserved_before_bytes=before.memory.fragmentation.peak_reserved_bytes,
        reserved_after_bytes=after.memory.fragmentation.peak_reserved_bytes,
        end_before_bytes=sum(before.at_end.values()),
        end_after_bytes=sum(after.at_end.values()),
        by_category={
            category: new.by_category.get(category, 0) - old.by_category.get(category, 0)
            for category in sorted({*old.by_category, *new.by_category})
        },
        at_peak=_changes(before.at_peak, after.at_peak),
        at_end=_changes(before.at_end, after.at_end),
    )


def _changes(before: BytesByStack, after: BytesByStack) -> tuple[Change, ...]:
    changes = [Change(*key, before.get(key, 0), after.get(key, 0)) for key in {**before, **after}]
    changed = [change for change in changes if change.grown_bytes]
    return tuple(
        sorted(changed, key=lambda one: (-abs(one.grown_bytes), one.category, one.place, one.frames))[:MAX_CHANGES]
    )
