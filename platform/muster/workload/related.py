"""Which workloads wait for others: by name, as dependencies, or in a row, as singletons."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from muster.api.spec import ObjectMeta, QueueingStatus
from muster.model import GangKey
from muster.workload.conditions import has_terminated
from muster.workload.start_conditions import StartConditions

_Key: TypeAlias = tuple[str, str]
"""(namespace, name or singleton key)."""
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


@dataclass(slots=True)
class RelatedWorkloads:
    """Indexes of all workloads that are observed. `put` and `remove` return the uids of those that may be able to start
    now, or no longer."""

    _named: dict[_Key, RelatedWorkload] = field(default_factory=dict)
    _dependents: dict[_Key, dict[str, RelatedWorkload]] = field(default_factory=dict)  # by uid
    _singletons: dict[_Key, dict[str, RelatedWorkload]] = field(default_factory=dict)  # by uid
    _keys: dict[str, tuple[tuple[_Key, ...], _Key | None]] = field(default_factory=dict)  # by uid

    def find(self, namespace: str, name: str) -> RelatedWorkload | None:
        """The job of this name; None if there is none."""
        return self._named.get((namespace, name))

    def singletons(self, namespace: str, key: str) -> Iterator[RelatedWorkload]:
        """The workloads of a singleton that have not ended."""
        for one in self._singletons.get((namespace, key), {}).values():
            if not has_terminated(one.status):
                yield one

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
        depends_on = tuple((namespace, one.job) for one in conditions.dependencies)
        singleton = None if conditions.singleton is None else (namespace, conditions.singleton)
        if depends_on or singleton is not None or uid in self._keys:
            self._drop_keys(uid)
            self._keys[uid] = depends_on, singleton
            for key in depends_on:
                self._dependents.setdefault(key, {})[uid] = workload
            if singleton is not None:
                self._singletons.setdefault(singleton, {})[uid] = workload
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
        for index, key in (*((self._dependents, key) for key in depends_on), (self._singletons, singleton)):
            if key is not None and key in index:
                index[key].pop(uid, None)
                if not index[key]:
                    del index[key]


def _name_key(workload: RelatedWorkload) -> _Key:
    return workload.metadata.namespace or "default", workload.metadata.name


def _waits(workload: RelatedWorkload) -> bool:
    """Whether it has neither ended nor been deleted."""
    return not has_terminated(workload.status) and workload.metadata.deletion_timestamp is None
