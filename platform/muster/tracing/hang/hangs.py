"""Which rank the others wait for, from the collectives that each rank has entered.

A rank waits for another one if its oldest unfinished collective is one that the other has not entered, or not started
on its device, or if it sends to it or receives from it. Ranks that others wait for, and that wait for none, are
named. If each of them waits for another, they are in collectives of different groups, or in different ones of a group.

Two ranks number their sends and receives differently, so these are matched by group, direction and pair of ranks alone.

The ranks of a job that runs wait for each other, too: a wait that is known to be shorter than `SHORT_WAIT_S` is none.

Members without a dump, and those whose entries are overwritten, are unknown: they are named, and not accused.

Users' programs write what is analysed here, so the work is linear in its size.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from muster.text import rank_list
from muster.tracing.formatting import format_seconds
from muster.tracing.read.flight_recorder import GroupProgress, Operation, RankCollectives

SHORT_WAIT_S = 1.0
_MAX_LAG_S = 15.0  # dumps of one request are made within this time; more is a difference of clocks
_MAX_SENTENCES = 8
_MAX_BACKENDS = 4  # of a group; torch has gloo, nccl and a few more
_EQUAL_SHAPES = frozenset({"all-reduce", "allreduce", "all-gather", "all-gather-into-tensor", "broadcast"})
_EQUAL_SHAPES |= {"reduce-scatter", "reduce-scatter-tensor"}
_UNNAMED = frozenset({"", "undefined"})


@dataclass(frozen=True, slots=True)
class _Wait:
    """Ranks that are in an operation of a group and wait for others. `is_entered`: the others have called it too.
    `is_mutual`: a send or receive whose other rank waits in its receive or send of it."""

    group: GroupProgress
    operation: Operation
    waiting: tuple[int, ...]
    missing: tuple[int, ...]
    is_entered: bool = False
    is_mutual: bool = False


@dataclass(slots=True)
class _Members:
    """The progress of the ranks in one group."""

    ranks: frozenset[int]
    progress: dict[int, GroupProgress] = field(default_factory=dict)

    def inside(self) -> dict[int, Operation]:
        """The ranks in the oldest collective that has not ended."""
        pending = {rank: one for rank, group in self.progress.items() if (one := group.pending) is not None}
        first = min((one.sequence for one in pending.values()), default=0)
        return {rank: one for rank, one in pending.items() if one.sequence == first}

    def behind(self, sequence: int) -> tuple[int, ...]:
        """The ranks that have not entered a collective, as far as that is known."""
        known = ((rank, group) for rank, group in self.progress.items() if not group.is_overwritten)
        return tuple(sorted(rank for rank, group in known if group.entered < sequence))


def explain_hang(ranks: Sequence[RankCollectives], places: Mapping[int, str] | None = None) -> list[str]:
    """Sentences such as "rank 5 on node a never entered all-gather 288686 of group fsdp; ranks 0, 1 wait in it", the
    most important first; empty if no rank waits. `places`: what follows a rank's number, such as " on node a"."""
    groups, places = _by_group(ranks), places or {}
    found = _first(sentence for members in groups for sentence in _mismatches(members))
    seen = [wait for members in groups for wait in _waits(members)] + _transfers(ranks)
    lag_s = _lag_s(ranks)
    waits = [wait for wait in seen if not _is_short(wait.operation, lag_s)]
    waits.sort(key=lambda wait: wait.operation.called_us)
    one_sided = [wait for wait in waits if not wait.is_mutual]
    waiting_ranks = {rank for wait in waits for rank in wait.waiting}
    awaited = {rank for wait in one_sided for rank in wait.missing} - waiting_ranks
    blamed = ((wait, [rank for rank in wait.missing if rank in awaited]) for wait in one_sided)
    found = _first([*found, *(_blame(wait, by, places) for wait, by in blamed if by)])
    found = _first([*found, *_without_dump(ranks, groups, lag_s, places), *_overwritten(groups, lag_s, places)])
    if not found:
        found += _first(_mutual(waits))
    if one_sided and not found:
        found.append(f"ranks wait for each other: {'; '.join(_state(wait) for wait in one_sided[:4])}")
    if not found:
        found += _first(sentence for members in groups for sentence in _common(members, lag_s))
    short = [wait.operation for wait in seen if _is_short(wait.operation, lag_s)]
    if not found and short:
        longest = max(0.0, *((operation.waited_s or 0) - lag_s for operation in short))
        found.append(
            f"no rank has waited for another one for longer than {format_seconds(longest)}, as in a job that runs"
        )
    return found


def _first(sentences: Iterable[str]) -> list[str]:
    """The first different ones."""
    found: dict[str, None] = {}
    for sentence in sentences:
        found[sentence] = None
        if len(found) == _MAX_SENTENCES:
            break
    return list(found)


def _by_group(ranks: Iterable[RankCollectives]) -> list[_Members]:
    """The groups with the progress of their members. A group without a call has no backend: that of the others."""
    found: dict[tuple[str, tuple[int, ...]], dict[str, _Members]] = {}
    idle: list[tuple[int, GroupProgress]] = []
    for one in ranks:
        for group in one.groups:
            if not group.backend:
                idle.append((one.rank, group))
                continue
            backends = found.setdefault((group.name, group.ranks), {})
            if group.backend in backends or len(backends) < _MAX_BACKENDS:
                backends.setdefault(group.backend, _Members(frozenset(group.ranks))).progress[one.rank] = group
    for rank, group in idle:
        for entry in found.get((group.name, group.ranks), {}).values():
            entry.progress.setdefault(rank, group)
    return [entry for backends in found.values() for entry in backends.values()]


def _waits(members: _Members) -> list[_Wait]:
    """The oldest collective of the group that some ranks are in and others are not."""
    inside = members.inside()
    if not inside:
        return []
    earliest = min(inside, key=lambda rank: inside[rank].called_us)
    operation, group = inside[earliest], members.progress[earliest]
    if missing := members.behind(operation.sequence):
        return [_Wait(group, operation, tuple(sorted(inside)), missing)]
    started = tuple(sorted(rank for rank, one in inside.items() if one.has_started))
    behind = tuple(sorted(set(inside) - set(started)))
    return [_Wait(group, operation, started, behind, is_entered=True)] if started and behind else []


def _transfers(ranks: Iterable[RankCollectives]) -> list[_Wait]:
    """The sends and receives that ranks wait in. The two directions between a pair of ranks in a batch are one wait."""
    known = {one.rank for one in ranks}
    called: dict[tuple[str, int, int], tuple[GroupProgress, list[Operation]]] = {}  # by group, rank and other rank
    for one in ranks:
        for group in one.groups:
            for operation in group.transfers:
                if operation.peer in known:
                    key = (group.name, one.rank, operation.peer)
                    called.setdefault(key, (group, []))[1].append(operation)
    found = []
    for (name, rank, peer), (group, operations) in called.items():
        directions = set(map(_direction, operations))
        others = set(map(_direction, called.get((name, peer, rank), (group, []))[1]))
        is_mutual = ("send" in directions and "recv" in others) or ("recv" in directions and "send" in others)
        operation = _named_by_direction(*operations)
        found.append(_Wait(group, operation, (rank,), (peer,), is_mutual=is_mutual))
    return found


def _without_dump(
    ranks: Sequence[RankCollectives], groups: Sequence[_Members], lag_s: float, places: Mapping[int, str]
) -> Iterator[str]:
    """Members of a group without a dump, which ranks of the group wait for. Where its members are unknown, the ranks
    below the highest one may be."""
    known = {one.rank for one in ranks}
    gaps = set(range(max(known, default=0))) - known
    found: dict[tuple[int, ...], tuple[GroupProgress, Operation, list[int]]] = {}

    def add(absent: Iterable[int], group: GroupProgress, operation: Operation, waiting: Iterable[int]) -> None:
        key = tuple(sorted(absent))
        if (
            key
            and not _is_short(operation, lag_s)
            and (key not in found or operation.called_us < found[key][1].called_us)
        ):
            found[key] = group, operation, sorted(waiting)

    for members in groups:
        inside = members.inside()
        if inside:
            first = min(inside, key=lambda rank: inside[rank].called_us)
            add((members.ranks or gaps) - known, members.progress[first], inside[first], inside)
    for one in ranks:
        for group in one.groups:
            for operation in group.transfers:
                if operation.peer is not None:
                    add({operation.peer} - known, group, _named_by_direction(operation), [one.rank])
    for absent, (group, operation, waiting) in found.items():
        verb, they = ("has", "it") if len(absent) == 1 else ("have", "they")
        cause = f"{_who(absent, places)} {verb} no dump: {they} may have ended or be the cause"
        yield f"{cause}; {_waiting(waiting)} in {_called(group, operation)}{_since(operation)}"


def _overwritten(groups: Iterable[_Members], lag_s: float, places: Mapping[int, str]) -> Iterator[str]:
    """Ranks that may have entered the collective that others wait in, or not: their entries are overwritten."""
    for members in groups:
        unknown = [rank for rank, group in members.progress.items() if group.is_overwritten]
        inside = members.inside()
        if not unknown or not inside:
            continue
        first = min(inside, key=lambda rank: inside[rank].called_us)
        group, operation = members.progress[first], inside[first]
        if not _is_short(operation, lag_s):
            has, its = ("has", "its") if len(unknown) == 1 else ("have", "their")
            entries = f"{has} overwritten {its} entries of {_label(group)} (TORCH_FR_BUFFER_SIZE), and may be the cause"
            what = f"{_called(group, operation)}{_since(operation)}"
            yield f"{_who(unknown, places)} {entries}; {_waiting(inside)} in {what}"


def _mutual(waits: Sequence[_Wait]) -> Iterator[str]:
    """Pairs of ranks that are in the same transfer, which does not end."""
    first: dict[tuple[str, frozenset[int]], _Wait] = {}
    for wait in waits:
        if wait.is_mutual:
            pair = wait.waiting + wait.missing
            other = first.setdefault((wait.group.name, frozenset(pair)), wait)
            if other is not wait:
                what = _called(other.group, other.operation)
                yield f"{rank_list(sorted(pair))} are both in {what}{_endless(wait.operation)}"


def _mismatches(members: _Members) -> list[str]:
    """Ranks that are in different collectives of the same number, or with different shapes."""
    pending = {rank: one for rank, group in members.progress.items() if (one := group.pending) is not None}
    if not pending:
        return []
    first = min(one.sequence for one in pending.values())
    kinds: dict[tuple[str, str], list[int]] = {}
    for rank, one in sorted(pending.items()):
        if one.sequence == first:
            kinds.setdefault((one.name, one.shapes if _has_equal_shapes(one.name) else ""), []).append(rank)
    if len(kinds) < 2:
        return []
    label = _label(next(iter(members.progress.values())))
    same_name = len({name for name, _ in kinds}) == 1
    parts = [
        f"{rank_list(ranks)} in {_title(name)}" + (f" of {shapes}" if same_name else "")
        for (name, shapes), ranks in sorted(kinds.items(), key=lambda item: (len(item[1]), item[1]))
    ]
    what = "shapes" if same_name else "collectives"
    return [f"different {what} are number {first} of {label}: {'; '.join(parts)}"]


def _common(members: _Members, lag_s: float) -> list[str]:
    """All ranks have entered a collective, which does not end, or only for some."""
    inside = members.inside()
    others = sorted(set(members.progress) - set(inside))
    if not inside or (members.ranks and set(members.progress) != members.ranks):
        return []
    group = members.progress[next(iter(inside))]
    operation = next(iter(inside.values()))
    if _is_short(operation, lag_s) or members.behind(operation.sequence):
        return []
    what = f"{_called(group, operation)}{_endless(operation)}"
    if not others:
        return [f"{rank_list(inside)} {'is' if len(inside) == 1 else 'are all'} in {what}"]
    verbs = "is" if len(inside) == 1 else "are", "has" if len(others) == 1 else "have"
    return [f"{rank_list(inside)} {verbs[0]} in {what}; {rank_list(others)} {verbs[1]} ended it"]


def _blame(wait: _Wait, blamed: Sequence[int], places: Mapping[int, str]) -> str:
    who = _who(blamed, places)
    since = _since(wait.operation)
    others = f"{_waiting(wait.waiting)} in it{since}"
    what = _called(wait.group, wait.operation)
    if wait.operation.peer is not None:
        return f"{rank_list(wait.waiting)} waits in {what} for {who}{since}"
    if wait.is_entered:
        return f"{who} entered {what}, and {'has' if len(blamed) == 1 else 'have'} not started it; {others}"
    return f"{who} never entered {what}; {others}"


def _who(ranks: Sequence[int], places: Mapping[int, str]) -> str:
    return f"rank {ranks[0]}{places.get(ranks[0], '')}" if len(ranks) == 1 else rank_list(ranks)


def _waiting(ranks: Collection[int]) -> str:
    return f"{rank_list(ranks)} {'waits' if len(ranks) == 1 else 'wait'}"


def _state(wait: _Wait) -> str:
    return f"{rank_list(wait.waiting)} in {_called(wait.group, wait.operation)}, without {rank_list(wait.missing)}"


def _lag_s(ranks: Iterable[RankCollectives]) -> float:
    """From the first dump to the last one: a rank may have entered a collective since its dump."""
    times = [one.dumped_us for one in ranks if one.dumped_us]
    return min((max(times) - min(times)) / 1e6, _MAX_LAG_S) if times else 0.0


def _is_short(operation: Operation, lag_s: float) -> bool:
    return operation.waited_s is not None and operation.waited_s - lag_s < SHORT_WAIT_S


def _since(operation: Operation) -> str:
    return "" if operation.waited_s is None else f", since {format_seconds(operation.waited_s)}"


def _endless(operation: Operation) -> str:
    return f", which does not end{_since(operation)}"


def _called(group: GroupProgress, operation: Operation) -> str:
    return f"{_title(operation.name)} {operation.sequence} of {_label(group)}"


def _title(name: str) -> str:
    """`all-gather` of `_all_gather_base`, as torch names it."""
    return name.strip("_").removesuffix("_base").replace("_", "-").lower()


def _direction(operation: Operation) -> str:
    """`send` of `send 0->1`."""
    return operation.name.partition(" ")[0]


def _named_by_direction(*operations: Operation) -> Operation:
    """The first one, as `send and recv`."""
    directions = sorted(set(map(_direction, operations)), reverse=True)
    return msgspec.structs.replace(operations[0], name=" and ".join(directions))


def _label(group: GroupProgress) -> str:
    name = group.name if group.description in _UNNAMED else group.description
    return f"group {name.removeprefix('mesh_')}"


def _has_equal_shapes(name: str) -> bool:
    """Whether all ranks must give tensors of the same shapes."""
    return _title(name).removesuffix("-coalesced") in _EQUAL_SHAPES
