"""Which workloads wait for others: by name, as dependencies, or in a row, as singletons."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Protocol, TypeAlias

from muster.api.spec import ObjectMeta, QueueingStatus
from muster.model import GangKey
from muster.workload.conditions import has_terminated
from muster.workload.start_conditions import StartConditions

_Key: TypeAlias = tuple[str, str]
"""(namespace, name or singleton key)."""
_Submission: TypeAlias = tuple[float, str]
"""Time and uid, to sort by."""
DEPENDABLE_KIND = "TrainingJob"
"""Names of other kinds could be the same."""


class RelatedWorkload(Protocol):
    """The part of `Workload` that others wait for."""

    @property
    def kind(self) -> str: ...

    @property
    def metadata(self) -> ObjectMeta: ...

    @property
    def key(self) -> GangKey: ...

    @property
    def status(self) -> QueueingStatus: ...

    @property
    def start_conditions(self) -> StartConditions: ...

    @property
    def is_group(self) -> bool: ...

    def gang(self, index: int) -> RelatedWorkload | None: ...


@dataclass(slots=True)
class RelatedWorkloads:
    """Indexes of all workloads that are observed. `put` and `remove` return the uids of those that may be able to start
    now, or no longer."""

    _named: dict[_Key, RelatedWorkload] = field(default_factory=dict)
    _dependents: dict[_Key, dict[str, RelatedWorkload]] = field(default_factory=dict)  # by uid
    _singletons: dict[_Key, dict[str, RelatedWorkload]] = field(default_factory=dict)  # by uid
    _ordered: dict[_Key, list[tuple[_Submission, RelatedWorkload]]] = field(default_factory=dict)  # as far as asked for
    _keys: dict[str, tuple[tuple[_Key, ...], _Key | None]] = field(default_factory=dict)  # by uid

    def find(self, namespace: str, name: str) -> RelatedWorkload | None:
        """The job of this name, or the gang JOB-INDEX of one with several; None if there is none."""
        found, parts = self._named.get((namespace, name)), split_gang_name(name)
        if found is not None or parts is None:
            return found
        group = self._named.get((namespace, parts[0]))
        return None if group is None or not group.is_group else group.gang(parts[1])

    def find_group(self, namespace: str, name: str) -> RelatedWorkload | None:
        """The job that JOB-INDEX would be a gang of."""
        parts = split_gang_name(name)
        found = None if parts is None else self._named.get((namespace, parts[0]))
        return found if found is not None and found.is_group else None

    def before_in_singleton(self, workload: RelatedWorkload) -> RelatedWorkload | None:
        """The workload of the same singleton that was submitted last before this one, of those that have not ended."""
        key = workload.metadata.namespace or "default", workload.start_conditions.singleton or ""
        ordered = self._ordered.get(key)
        if ordered is None:
            left = (one for one in self._singletons.get(key, {}).values() if not has_terminated(one.status))
            ordered = sorted(((_submission(one), one) for one in left), key=itemgetter(0))
            self._ordered[key] = ordered
        at = bisect_left(ordered, _submission(workload), key=itemgetter(0))
        return ordered[at - 1][1] if at else None

    def is_awaited(self, workload: RelatedWorkload) -> bool:
        """Whether a workload depends on this one and has not recorded yet that it has ended."""
        name = workload.metadata.name
        return any(
            _waits(one) and all(ended.job != name for ended in one.status.dependencies)
            for one in self._dependents.get(_name_key(workload), {}).values()
        )

    def put(self, workload: RelatedWorkload) -> set[str]:
        """Add a workload, or its new version."""
        uid, conditions = workload.key, workload.start_conditions
        if workload.kind == DEPENDABLE_KIND:
            self._named[_name_key(workload)] = workload
        namespace = workload.metadata.namespace or "default"
        names = (name for one in conditions.dependencies for name in _names_to_watch(one.job))
        depends_on = tuple((namespace, name) for name in names)
        singleton = None if conditions.singleton is None else (namespace, conditions.singleton)
        if depends_on or singleton is not None or uid in self._keys:
            self._drop_keys(uid)
            self._keys[uid] = depends_on, singleton
            for key in depends_on:
                self._dependents.setdefault(key, {})[uid] = workload
            if singleton is not None:
                self._singletons.setdefault(singleton, {})[uid] = workload
                self._ordered.pop(singleton, None)
        return self.affected_by(workload)

    def remove(self, workload: RelatedWorkload) -> set[str]:
        """Remove a workload that is no longer observed."""
        uid, key = workload.key, _name_key(workload)
        found = self.affected_by(workload)
        self._drop_keys(uid)
        named = self._named.get(key)
        if named is not None and named.key == uid:
            del self._named[key]
        return found

    def affected_by(self, workload: RelatedWorkload) -> set[str]:
        """The uids of workloads that may wait for this one."""
        _, singleton = self._keys.get(workload.key, ((), None))
        found = set(self._dependents.get(_name_key(workload), ())) if workload.kind == DEPENDABLE_KIND else set[str]()
        if singleton is not None:
            found.update(self._singletons.get(singleton, ()))
        found.discard(workload.key)
        return found

    def _drop_keys(self, uid: str) -> None:
        depends_on, singleton = self._keys.pop(uid, ((), None))
        if singleton is not None:
            self._ordered.pop(singleton, None)
        for index, key in (*((self._dependents, key) for key in depends_on), (self._singletons, singleton)):
            if key is not None and key in index:
                index[key].pop(uid, None)
                if not index[key]:
                    del index[key]


def split_gang_name(name: str) -> tuple[str, int] | None:
    """JOB and INDEX of JOB-INDEX; None for a name of another form."""
    base, _, index = name.rpartition("-")
    return (base, int(index)) if base and index.isdecimal() and index == str(int(index)) else None


def _names_to_watch(name: str) -> tuple[str, ...]:
    """The names of jobs whose changes concern who waits for this one."""
    parts = split_gang_name(name)
    return (name,) if parts is None else (name, parts[0])


def _submission(workload: RelatedWorkload) -> _Submission:
    known = (workload.status.submitted_at, workload.metadata.creation_timestamp)
    return next((at for at in known if at is not None), float("inf")), workload.metadata.uid


def _name_key(workload: RelatedWorkload) -> _Key:
    return workload.metadata.namespace or "default", workload.metadata.name


def _waits(workload: RelatedWorkload) -> bool:
    """Whether it has neither ended nor been deleted."""
    return not has_terminated(workload.status) and workload.metadata.deletion_timestamp is None
