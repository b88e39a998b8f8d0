"""The report of a violated guarantee."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TypeAlias

from tests.cluster.chaos.checker.objects import Json, compact

Finding: TypeAlias = tuple[str, str, str, tuple[tuple[str, str], ...]]
"""(rule, key of the object that violates it, message, (kind, key) of the objects that show it)"""


@dataclass(frozen=True, slots=True)
class ObjectVersion:
    """An object at that moment, and the revision of its last write."""

    kind: str
    key: str
    revision: int
    document: Json | None


@dataclass(frozen=True, slots=True)
class Violation:
    """A violated guarantee (`rule`), the object that violates it (`key`), the revision, and objects that show it."""

    rule: str
    key: str
    message: str
    revision: int
    at: float
    objects: tuple[ObjectVersion, ...] = ()

    def line(self) -> str:
        """One line of JSON."""
        objects = [
            {
                "kind": one.kind,
                "key": one.key,
                "resourceVersion": str(one.revision),
                "object": None if one.document is None else json.loads(compact(one.document)),
            }
            for one in self.objects
        ]
        body = {
            "violation": self.rule,
            "of": self.key,
            "message": self.message,
            "resourceVersion": str(self.revision),
            "at": round(self.at, 3),
            "objects": objects,
        }
        return json.dumps(body, separators=(",", ":"))
