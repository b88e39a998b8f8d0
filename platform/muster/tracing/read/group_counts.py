"""How many collectives of a process group a rank has called, where the recorder's entries do not say it.

torch's flight recorder is a ring (`TORCH_FR_BUFFER_SIZE`): calls of a busy group overwrite the entries of the others.
Beside it torch keeps a status of each group (`pg_status`), by its number of the group on this rank (`pg_id`), not by
its name. Numbers of groups without entries are known from the order in which the groups were created, if it fits.
A status counts sends and receives, too: it may be too high, and then a rank is not said to be missing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from muster.heartbeats.parse import parse_count

_NUMBER = re.compile(r"[0-9]{1,9}")
_MAX_BACKENDS = 16  # of a group


class GroupCounts:
    """Counts of one dump. `members`: the names of its groups."""

    def __init__(self, content: Mapping[Any, Any], own: Mapping[Any, Any], members: Iterable[str]) -> None:
        self._first_records: dict[str, int] = {}
        self._ids: dict[str, int] = {}
        self._seen: dict[tuple[str, str], int] = {}
        self._status = _statuses(content.get("pg_status"))
        self._groups = groups if isinstance(groups := own.get("groups"), dict) else {}
        self._names = tuple(members)

    def add(self, name: str, backend: str, entry: Mapping[Any, Any]) -> None:
        """Add an entry of a group; sends and receives have the number of the collective before them."""
        record = parse_count(entry.get("record_id"))
        if record is not None:
            self._first_records.setdefault(backend, record)
        number = parse_count(entry.get("pg_id"))
        if number is not None and self._ids.setdefault(name, number) != number:
            self._seen.pop((name, backend), None)  # torch gives the name of a destroyed group again
            self._ids[name] = number
        called = parse_count(entry.get("collective_seq_id")) or 0
        self._seen[name, backend] = max(called, self._seen.get((name, backend), 0))

    def called(self, name: str, backend: str, recorded: int) -> int:
        """The number of the last collective of a group with entries; `recorded`: that of its newest one."""
        own = _own_counts(self._groups.get(name)).get(backend, 0)
        seen = self._seen.get((name, backend), 0) if self._first_records.get(backend) else 0
        return max(recorded, own, seen)

    def called_without_entries(self, name: str) -> dict[str, int] | None:
        """By backend ("": any), of a group without entries; None: they may be overwritten, and the number unknown."""
        if own := _own_counts(self._groups.get(name)):
            return {backend: count for backend, count in own.items() if count} or {"": 0}
        if not any(self._first_records.values()):
            return {"": 0}
        number = self._numbers_by_order().get(name)
        return None if number is None else {"": self._status[number]}

    def _numbers_by_order(self) -> dict[str, int]:
        """torch's numbers of the groups without entries: both rise from group to group, and none may be left over."""
        names = [name for name in self._names if name not in self._ids]
        numbers = sorted(set(self._status) - set(self._ids.values()))
        if len(names) != len(numbers) or not all(map(_NUMBER.fullmatch, [*names, *self._ids])):
            return {}
        found = dict(zip(sorted(names, key=int), numbers, strict=True))
        all_numbers = [number for _, number in sorted((found | self._ids).items(), key=lambda item: int(item[0]))]
        return found if all_numbers == sorted(all_numbers) else {}


def _statuses(value: object) -> dict[int, int]:
    """The last collective that was enqueued, by torch's number of a group. torch writes -1 for none."""
    found = {}
    for key, status in value.items() if isinstance(value, dict) else ():
        if isinstance(key, str) and _NUMBER.fullmatch(key) and isinstance(status, dict):
            found[int(key)] = parse_count(status.get("last_enqueued_collective")) or 0
    return found


def _own_counts(group: object) -> dict[str, int]:
    """By backend, as Muster's trainer writes them beside torch's dump. In a hostile dump groups share a long dict."""
    called = group.get("entered") if isinstance(group, dict) else None
    entered = islice(called.items(), _MAX_BACKENDS) if isinstance(called, dict) else ()
    counts = {backend: parse_count(count) for backend, count in entered}
    return {backend: count for backend, count in counts.items() if isinstance(backend, str) and count is not None}
