"""Jobs as a cluster lists them: those that can be read, and beside them those that cannot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from muster.spec import TrainingJob


@dataclass(frozen=True, slots=True)
class UnreadableJobItem:
    """A job that cannot be read: as it came, and what is wrong with it."""

    document: Mapping[str, Any]
    error: str

    @property
    def name(self) -> str:
        """NAMESPACE/NAME."""
        meta = self.document["metadata"]
        return f"{meta.get('namespace') or 'default'}/{meta['name']}"

    @property
    def queue(self) -> str | None:
        """The queue that it names; None where not even that can be read."""
        return _text_field(self.document.get("spec"), "queue", "default")

    @property
    def phase(self) -> str | None:
        """The phase of its status, if that can be read."""
        return _text_field(self.document.get("status"), "phase", "Pending")

    @property
    def flavors(self) -> frozenset[str]:
        """Flavors that its pods are on, as far as its status tells."""
        return frozenset(name for part in self._placement() if (name := _text_field(part, "flavor", "")))

    @property
    def nodes(self) -> frozenset[str]:
        """Nodes that its pods are on, as far as its status tells."""
        shares = (share for part in self._placement() for share in _list_field(part, "nodes"))
        return frozenset(name for share in shares if (name := _text_field(share, "node", "")))

    def _placement(self) -> list[object]:
        return _list_field(self.document.get("status"), "placement")


@dataclass(frozen=True, slots=True)
class JobList:
    """Jobs, oldest first, and those that cannot be read, by name."""

    jobs: list[TrainingJob]
    unreadable: Sequence[UnreadableJobItem] = ()


def _list_field(fields: object, name: str) -> list[object]:
    found = fields.get(name) if isinstance(fields, dict) else None
    return found if isinstance(found, list) else []


def _text_field(fields: object, name: str, default: str) -> str | None:
    found = fields.get(name, default) if isinstance(fields, dict) else default if fields is None else None
    return found if isinstance(found, str) else None
