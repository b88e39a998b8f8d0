"""Why a run hung, from the dumps of flight recorders in its run folder, or of any other folder or files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from muster.errors import InvalidTrace
from muster.text import pluralize, rank_list
from muster.tracing.hang.hangs import explain_hang
from muster.tracing.read.flight_recorder import (
    FLIGHT_RECORDER,
    RECORDER_NAME,
    SIGNAL_REQUEST,
    STOP_REQUEST,
    RankCollectives,
    read_dump,
)
from muster.tracing.runs.run_folder import SkippedFile

MAX_FILES = 4096
_NO_DUMP = (
    "contains no dump of torch's flight recorder; they are saved of ranks that hang, and by muster trace JOB --stacks"
)
_TORCH_PREFIX = "nccl_trace_rank_"
"""Of the files that torch writes, unless TORCH_NCCL_DEBUG_INFO_TEMP_FILE names others."""
_LAST_REQUESTS = (SIGNAL_REQUEST, STOP_REQUEST)
"""Of an attempt, in this order."""


class HangReport(msgspec.Struct, frozen=True):
    """`sentences`: which rank the others wait for, the most important first; empty if no rank waits for another.
    `ranks`: their collectives. `skipped`: files that cannot be read."""

    sentences: tuple[str, ...]
    ranks: tuple[RankCollectives, ...]
    skipped: tuple[SkippedFile, ...]


def analyse_hang(source: Path | Sequence[Path]) -> HangReport:
    """Analyse the newest dumps of a run folder, all dumps of another folder, or some files.

    Raises InvalidTrace if none can be read, OSError if the folder cannot be listed.
    """
    files = find_dumps(source) if isinstance(source, Path) else list(source)
    is_folder = isinstance(source, Path) and not source.is_file()
    ranks: dict[int, RankCollectives] = {}
    skipped: list[SkippedFile] = []
    others = 0  # files of a folder that are something else, such as checkpoints
    for file in files[:MAX_FILES]:
        try:
            found = read_dump(file)
        except (InvalidTrace, OSError) as error:
            if is_folder and not _is_named_as_dump(file):
                others += 1
                continue
            skipped.append(SkippedFile(file.name, str(error).removeprefix(f"{file}: ")))
            continue
        if found.rank in ranks:
            raise InvalidTrace(f"{file}: rank {found.rank} must have one dump; another one is of the same rank")
        ranks[found.rank] = found
    if len(files) > MAX_FILES:
        skipped.append(SkippedFile(files[MAX_FILES].name, f"only the first {MAX_FILES} of {len(files)} dumps are read"))
    if not ranks and others and not skipped:
        raise InvalidTrace(f"{files[0].parent}: {_NO_DUMP}; {pluralize(others, 'file')} there: something else")
    if not ranks:
        reasons = "; ".join(f"{one.file}: {one.reason}" for one in skipped[:3])
        raise InvalidTrace(
            f"{files[0].parent if files else source}: no dump of a flight recorder can be read: {reasons}"
        )
    known = tuple(ranks[rank] for rank in sorted(ranks))
    sentences = explain_hang(known)
    absent = set(range(max(ranks))).union(*(group.ranks for one in known for group in one.groups)) - set(ranks)
    if absent and not sentences:
        have = "has" if len(absent) == 1 else "have"
        sentences = [f"{rank_list(absent)} {have} no dump; no other rank waits in a collective"]
    return HangReport(tuple(sentences), known, tuple(skipped))


def find_dumps(path: Path) -> list[Path]:
    """The files of a folder; of a run folder those of the newest attempt: the last one of each rank before it ended, or
    else those of the newest request. Raises InvalidTrace."""
    if path.is_file():
        return [path]
    folder = path / FLIGHT_RECORDER if (path / FLIGHT_RECORDER).is_dir() else path
    files = sorted(file for file in folder.iterdir() if file.is_file() and not file.name.startswith("."))
    named = [(file, match) for file in files if (match := RECORDER_NAME.fullmatch(file.name))]
    if named:
        attempt = max(int(match["attempt"]) for _, match in named)
        requests: dict[str, dict[int, Path]] = {}
        for file, match in named:
            if int(match["attempt"]) == attempt:
                requests.setdefault(match["request"], {})[int(match["rank"])] = file
        if last := {rank: file for request in _LAST_REQUESTS for rank, file in requests.get(request, {}).items()}:
            return [last[rank] for rank in sorted(last)]
        # Downloaded files have times of their own.
        newest = max(requests.values(), key=lambda found: max(map(_modified_ns, found.values())))
        return [newest[rank] for rank in sorted(newest)]
    if not files:
        raise InvalidTrace(f"{folder}: {_NO_DUMP}")
    return files


def _is_named_as_dump(file: Path) -> bool:
    """Whether its name is one that Muster's launcher or torch gives a dump."""
    return RECORDER_NAME.fullmatch(file.name) is not None or file.name.startswith(_TORCH_PREFIX)


def _modified_ns(file: Path) -> int:
    """0 for a file that has been deleted meanwhile."""
    try:
        return file.stat().st_mtime_ns
    except OSError:
        return 0
