"""What the judge says when a promise is broken."""

from __future__ import annotations

import json
from dataclasses import dataclass

from tests.cluster.chaos.judge.objects import Json, compact


@dataclass(frozen=True, slots=True)
class Exhibit:
    """An object as it was at that moment, and the revision that made it so."""

    kind: str
    key: str
    revision: int
    document: Json | None


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken promise: which (`rule`), by whom (`key`), seen in which revision, and the objects that show it."""

    rule: str
    key: str
    message: str
    revision: int
    at: float
    exhibits: tuple[Exhibit, ...] = ()

    def line(self) -> str:
        """One line of JSON."""
        shown = [
            {
                "kind": one.kind,
                "key": one.key,
                "resourceVersion": str(one.revision),
                "object": None if one.document is None else json.loads(compact(one.document)),
            }
            for one in self.exhibits
        ]
        body = {
            "violation": self.rule,
            "of": self.key,
            "message": self.message,
            "resourceVersion": str(self.revision),
            "at": round(self.at, 3),
            "objects": shown,
        }
        return json.dumps(body, separators=(",", ":"))
