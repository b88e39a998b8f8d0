"""Which ranks of a collector's pod have no trace of steps that other ranks have traced."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress

import msgspec

from muster.tracing.run_folder import RANK_FILE
from muster.tracing.shared_folder import SharedFolder
from muster.tracing.trace_files import Manifest, MissingRanks

_REQUEST = "capture/request.json"
_MAX_REQUEST_BYTES = 1 << 20


class _Request(msgspec.Struct):
    """What counts of a request to profile steps (docs/run-folder.md)."""

    attempt: int
    start_step: int
    end_step: int
    ranks: tuple[int, ...] = ()


def missing_ranks(
    run: SharedFolder,
    manifests: Iterable[Manifest],
    own_ranks: frozenset[int] | None,
    environ: Mapping[str, str] = os.environ,
) -> tuple[MissingRanks, ...]:
    """For each attempt and window of steps in the manifests the ranks without an entry, in order.

    Expected are `own_ranks` (None: those with a heartbeat), of them the ranks that were asked to trace these steps: by
    the request for them, else by the job's configuration (`MUSTER_TRACE_RANKS`).
    """
    traced: dict[tuple[int, int, int], set[int]] = {}
    for manifest in manifests:
        for entry in manifest.traces:
            traced.setdefault((entry.attempt, entry.start_step, entry.end_step), set()).add(entry.rank)
    if not traced:
        return ()
    pod = _ranks_with_heartbeat(run) if own_ranks is None else own_ranks
    configured = frozenset(int(rank) for rank in environ.get("MUSTER_TRACE_RANKS", "").split(",") if rank.isdecimal())
    request = _request(run)
    found = []
    for (attempt, start, end), ranks in sorted(traced.items()):
        chosen = configured
        if request is not None and (request.attempt, request.start_step, request.end_step) == (attempt, start, end):
            chosen = frozenset(request.ranks)
        expected = pod & chosen if chosen else pod
        if missing := tuple(sorted(expected - ranks)):
            found.append(MissingRanks(attempt, start, end, missing))
    return tuple(found)


def _ranks_with_heartbeat(run: SharedFolder) -> frozenset[int]:
    with suppress(OSError):
        names = run.file_names("heartbeats")
        return frozenset(int(match[1]) for name in names if (match := RANK_FILE.fullmatch(name)))
    return frozenset()


def _request(run: SharedFolder) -> _Request | None:
    with suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return msgspec.json.decode(run.read(_REQUEST, _MAX_REQUEST_BYTES), type=_Request)
    return None
