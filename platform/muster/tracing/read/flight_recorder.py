"""Reads what torch's flight recorder knows of a rank: its newest collectives, by process group.

A dump is a pickle, of `muster_components.trainer.flight_recorder` or of torch itself (`TORCH_NCCL_DUMP_ON_TIMEOUT`),
and read like a memory snapshot, without running anything that it contains. Format: that of torch 2.11 to 2.15,
`torch/csrc/distributed/c10d/FlightRecorder.hpp`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import msgspec

from muster.errors import InvalidTrace
from muster.heartbeats.parse import parse_count
from muster.tracing.read.group_counts import GroupCounts
from muster.tracing.read.restricted_pickle import MemoryLimits, read_small_pickle
from muster.tracing.shared_folder import open_regular

LIMITS = MemoryLimits(pickle_bytes=64 << 20, memory_bytes=1 << 30)
MAX_GROUPS, MAX_GROUP_RANKS = 64, 4096
_MAX_ENTRIES = 100_000
_KEPT, _KEPT_TRANSFERS = 4, 64
"""Operations of a group that are kept: so many of the oldest collectives that have not ended, of the sends and receives
that the rank waits in, and of the newest ones."""
MAX_GROUP_OPERATIONS = 2 * _KEPT + _KEPT_TRANSFERS
_MAX_NAME, _MAX_SHAPES = 80, 200
_MAX_INTEGER = 2**63
_SIDES = ("input", "output")
FLIGHT_RECORDER = "flight-recorder"
"""The folder of dumps in a run folder."""
RECORDER_NAME = re.compile(
    r"rank-(?P<rank>\d{1,6})\.attempt-(?P<attempt>\d{1,9})\.(?P<request>[A-Za-z0-9.-]{1,80})\.pickle"
)
"""A dump that a launcher has requested."""
STOP_REQUEST = "stop"
"""The request by which a launcher saves stacks and dumps of ranks that did not stop in time."""
SIGNAL_REQUEST = "sigterm"
"""The request by which a launcher saves them before it sends SIGTERM, which a program may not survive."""
_WATCHDOG_NAME = re.compile(r".*?(\d{1,6})")
_WORLD = "default_pg"
"""torch's description of the group of all ranks."""
_PEER = re.compile(r"(?:send \d+->|recv \d+<-)(\d{1,6})")


class Operation(msgspec.Struct, frozen=True):
    """A collective, or a send or receive (`peer`: the other rank). `sequence`: its number in the group, of collectives
    or of sends and receives; ranks count the latter differently, and those of one batch have the same number. `shapes`:
    dtypes and sizes of inputs and outputs. gloo reports no start, and NCCL only with timing. `called_us`: Unix time of
    the call. `waited_s`: from the call to the dump, by the rank's clock; None if the dump has no time, as those of
    torch's watchdog. `is_coalesced`: of a batch, as of `batch_isend_irecv`, which ends as a whole."""

    sequence: int
    name: str
    shapes: str = ""
    has_started: bool = False
    has_ended: bool = False
    peer: int | None = None
    called_us: int = 0
    waited_s: float | None = None
    is_coalesced: bool = False


class GroupProgress(msgspec.Struct, frozen=True):
    """How far a rank is in a process group of one backend. `ranks`: its members, empty if unknown. `entered`: the
    number of the last collective that it has called; 0: none. `operations`: some of them, by number. `is_overwritten`:
    the recorder has no collective of the group any more, so that `entered` is unknown."""

    name: str
    description: str
    backend: str
    ranks: tuple[int, ...] = ()
    entered: int = 0
    operations: tuple[Operation, ...] = ()
    is_overwritten: bool = False

    @property
    def pending(self) -> Operation | None:
        """The oldest collective that has not ended."""
        return next((one for one in self.operations if not one.has_ended and one.peer is None), None)

    @property
    def transfers(self) -> tuple[Operation, ...]:
        """The sends and receives that the rank waits in: those of the oldest batch that has not ended, and of the
        others the oldest with each rank."""
        return _oldest_transfers(self.operations)


class RankCollectives(msgspec.Struct, frozen=True):
    """The process groups of a rank. `dumped_us`: Unix time of the dump; 0 if unknown."""

    rank: int
    groups: tuple[GroupProgress, ...] = ()
    dumped_us: int = 0

    def compact(self) -> RankCollectives:
        """With what `muster.tracing.hang` needs alone, of each group the operations that the rank waits in, and within
        the bounds of `read_dump`: collectives that another program has sent may have any size."""
        return msgspec.structs.replace(self, groups=tuple(map(_compact, self.groups[:MAX_GROUPS])))


def _compact(group: GroupProgress) -> GroupProgress:
    known = msgspec.structs.replace(group, operations=group.operations[:MAX_GROUP_OPERATIONS])
    waiting = [one for one in (known.pending, *known.transfers) if one is not None]
    return GroupProgress(
        _text(group.name),
        _text(group.description),
        _text(group.backend),
        tuple(rank for rank in group.ranks[:MAX_GROUP_RANKS] if 0 <= rank < _MAX_INTEGER),
        group.entered,
        tuple(msgspec.structs.replace(one, name=_text(one.name), shapes=one.shapes[:_MAX_SHAPES]) for one in waiting),
        group.is_overwritten,
    )


def read_dump(path: Path) -> RankCollectives:
    """The dump of a rank, which is in the dump, or at the end of the file's name (torch's own files).

    Raises InvalidTrace if the file is none, OSError if it cannot be read.
    """
    with open_regular(path) as file:
        return read_open_dump(file, path)


def read_open_dump(file: IO[bytes], path: Path, limits: MemoryLimits = LIMITS) -> RankCollectives:
    """As `read_dump`, of an open file."""
    content = read_small_pickle(file, path, limits, "torch's flight recorder")
    if not isinstance(content, dict) or not {"entries", "pg_config"} & set(content):
        raise InvalidTrace(f"{path}: must be a dump of torch's flight recorder; it has no collectives")
    entries = content.get("entries") or ()
    if not isinstance(entries, list | tuple):
        raise InvalidTrace(f"{path}: entries must be a list; got {type(entries).__name__}")
    own = content.get("muster")
    own = own if isinstance(own, dict) else {}
    rank = parse_count(own.get("rank"))
    if rank is None and (match := RECORDER_NAME.fullmatch(path.name) or _WATCHDOG_NAME.fullmatch(path.name)):
        rank = int(match[1])
    if rank is None:
        raise InvalidTrace(f"{path}: its name must end with the rank, as torch names its dumps")
    members = _members(content.get("pg_config"), own.get("groups"))
    dumped_us = _time(own.get("time_ns"))
    counts = GroupCounts(content, own, members)
    return RankCollectives(rank, _groups(entries, members, counts, dumped_us), dumped_us)


def _members(config: object, own: object) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Description and ranks by name of a group. torch's configuration has none of gloo's groups, Muster's has all."""
    found: dict[str, tuple[str, tuple[int, ...]]] = {}
    for source in (config, own):
        for name, group in source.items() if isinstance(source, dict) else ():
            if not isinstance(name, str) or not isinstance(group, dict) or len(found) >= MAX_GROUPS:
                continue
            ranks = group.get("ranks")
            if isinstance(ranks, str):  # "[0, 1]"
                ranks = [int(number) for number in re.findall(r"\d{1,6}", ranks[: 8 * MAX_GROUP_RANKS])]
            listed = ranks if isinstance(ranks, list | tuple) else ()
            counts = (parse_count(number) for number in listed[:MAX_GROUP_RANKS])
            members = tuple(number for number in counts if number is not None)
            if name and members:
                found[name] = _text(group.get("desc")), members
    return found


def _groups(
    entries: Iterable[object], members: Mapping[str, tuple[str, tuple[int, ...]]], counts: GroupCounts, dumped_us: int
) -> tuple[GroupProgress, ...]:
    """The groups with entries, and those without of which this rank is a member."""
    recorded: dict[tuple[str, str], _Recorded] = {}
    for entry in list(entries)[-_MAX_ENTRIES:]:
        if not isinstance(entry, dict):
            continue
        name, description = _group_name(entry.get("process_group"))
        backend, colon, operation = _text(entry.get("profiling_name")).partition(":")
        is_p2p = entry.get("is_p2p") is True
        sequence = parse_count(entry.get("p2p_seq_id" if is_p2p else "collective_seq_id"))
        if not name or not colon or sequence is None or len(recorded) > MAX_GROUPS:
            continue
        counts.add(name, backend, entry)
        instance = parse_count(entry.get("pg_id"))
        group = recorded.get((name, backend))
        if group is None or group.instance != instance:  # torch gives the name of a destroyed group again
            group = recorded[name, backend] = _Recorded(instance, description)
        called = _operation(entry, sequence, operation, dumped_us)
        if is_p2p:
            called = msgspec.structs.replace(called, peer=_peer(operation, description, members.get(name, ("", ()))[1]))
        group.add(called, is_p2p, parse_count(entry.get("op_id")))
    found = [
        GroupProgress(
            name,
            group.description,
            backend,
            members.get(name, ("", ()))[1],
            counts.called(
                name, backend, max((sequence for is_p2p, sequence in group.launches if not is_p2p), default=0)
            ),
            _kept(_operations(group.launches)),
        )
        for (name, backend), group in recorded.items()
    ]
    with_calls = {name for name, _ in recorded}
    for name, (text, ranks) in members.items():
        if name not in with_calls:
            known = counts.called_without_entries(name)
            found += [
                GroupProgress(name, text, backend, ranks, entered, is_overwritten=known is None)
                for backend, entered in ({"": 0} if known is None else known).items()
            ]
    return tuple(found[:MAX_GROUPS])


@dataclass(slots=True)
class _Recorded:
    """The entries of a process group, by launch: whether it sends and receives, and its number. `instance`: torch's
    number of the group, which is never given again."""

    instance: int | None
    description: str
    launches: dict[tuple[bool, int], list[Operation]] = field(default_factory=dict)
    newest: tuple[bool, int] | None = None
    newest_op_id: int | None = None

    def add(self, called: Operation, is_p2p: bool, op_id: int | None) -> None:
        """Add an entry. The last one of a coalesced launch has the number of the operation before, and torch 2.11 does
        not say that it is of sends and receives."""
        is_end = called.name == "coalesced" or (called.name.endswith("_coalesced") and op_id == self.newest_op_id)
        if not is_end:
            self.newest, self.newest_op_id = (is_p2p, called.sequence), op_id
        if self.newest is not None:  # else the operations of the launch are not in the recorder any more
            self.launches.setdefault(self.newest, []).append(called)


def _operations(launches: Mapping[tuple[bool, int], Sequence[Operation]]) -> Iterator[Operation]:
    """The collectives, and the sends and receives.

    Operations of a coalesced launch have the same number and no state. The last entry, such as `coalesced` or
    `ALLGATHER_coalesced`, has the state of all, and no shapes.
    """
    for (is_p2p, _), entries in launches.items():
        state = {
            "has_started": any(one.has_started for one in entries),
            "has_ended": any(one.has_ended for one in entries),
            "is_coalesced": len(entries) > 1,
        }
        for one in entries if is_p2p else entries[:1]:
            if not is_p2p or one.peer is not None:
                yield msgspec.structs.replace(one, **state)


def _operation(entry: Mapping[str, Any], sequence: int, name: str, dumped_us: int) -> Operation:
    state = entry.get("state")
    called_us = _time(entry.get("time_created_ns"))
    return Operation(
        sequence,
        name,
        _shapes(entry),
        state in ("started", "completed") or entry.get("time_discovered_started_ns") is not None,
        entry.get("retired") is True or state == "completed",
        called_us=called_us,
        waited_s=max(0.0, (dumped_us - called_us) / 1e6) if dumped_us and called_us else None,
    )


def _peer(name: str, description: str, ranks: Sequence[int]) -> int | None:
    """The other rank of a send or receive, which torch names by its place in the group; None if it is unknown."""
    match = _PEER.fullmatch(name)
    if match is None:
        return None
    place = int(match[1])
    if place < len(ranks):
        return ranks[place]
    return place if not ranks and description == _WORLD else None


def _time(value: object) -> int:
    """Nanoseconds as microseconds; 0 if the value is none."""
    return value // 1000 if isinstance(value, int) and 0 < value < _MAX_INTEGER else 0


def _oldest_transfers(operations: Iterable[Operation]) -> tuple[Operation, ...]:
    """NCCL runs the batches of a group one after the other. Other sends and receives use a communicator per pair."""
    oldest: dict[int | None, int] = {}
    pending = [one for one in operations if not one.has_ended and one.peer is not None]
    for one in pending:
        oldest.setdefault(None if one.is_coalesced else one.peer, one.sequence)
    return tuple(one for one in pending if oldest[None if one.is_coalesced else one.peer] == one.sequence)


def _kept(operations: Iterable[Operation]) -> tuple[Operation, ...]:
    """Those that the rank waits in, and the newest ones."""
    listed = list(operations)
    collectives = [one for one in listed if not one.has_ended and one.peer is None]
    kept = dict.fromkeys([*collectives[:_KEPT], *_oldest_transfers(listed)[:_KEPT_TRANSFERS], *listed[-_KEPT:]])
    return tuple(sorted(kept, key=lambda one: (one.sequence, one.name)))


def _shapes(entry: Mapping[str, Any]) -> str:
    parts = (f"{_values(entry.get(f'{side}_dtypes'))} {_values(entry.get(f'{side}_sizes'))}" for side in _SIDES)
    return " -> ".join(parts)[:_MAX_SHAPES]


def _values(value: object, length: int = _MAX_SHAPES) -> str:
    """Lists of numbers and texts as Python prints them, of about `length` characters: the lists of a pickle may contain
    themselves, or each other so often that their whole text fits into no memory. Each item has a text, so that few of a
    long list are read, which many operations may share."""
    if isinstance(value, list | tuple):
        text = "["
        for one in value:
            if len(text) >= length:
                break
            text += (", " if len(text) > 1 else "") + (_values(one, length - len(text)) or "?")
        return f"{text}]"
    if isinstance(value, int):
        return str(value) if abs(value) < _MAX_INTEGER else "?"
    return repr(_text(value)) if isinstance(value, str) else ""


def _group_name(value: object) -> tuple[str, str]:
    """Name and description of `process_group`."""
    if isinstance(value, tuple | list) and len(value) == 2:
        return _text(value[0]), _text(value[1])
    return "", ""


def _text(value: object) -> str:
    """Without surrogates, which cannot be encoded."""
    return value[:_MAX_NAME].encode(errors="replace").decode() if isinstance(value, str) else ""
