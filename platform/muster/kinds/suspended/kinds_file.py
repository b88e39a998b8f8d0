"""The kinds that an installation queues: names of those that Muster knows, and rows of its own."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field, ValidationError

from muster.api.spec.fields import StrictModel
from muster.errors import InvalidSpec
from muster.kinds.suspended.table import KINDS, KindRow, PodSetRow

_PATH = r"^[A-Za-z][A-Za-z0-9]*(\.[A-Za-z][A-Za-z0-9]*)*$"
_Path = Annotated[str, Field(pattern=_PATH, max_length=256)]
_OptionalPath = Annotated[str, Field(pattern=f"{_PATH}|^$", max_length=256)]
_Word = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9]*$", max_length=63)]


class PodSetSpec(StrictModel):
    """See `PodSetRow`."""

    template: _Path = "spec.template"
    counts: Annotated[tuple[_Path, ...], Field(max_length=4)] = ()


class KindSpec(StrictModel):
    """See `KindRow`."""

    group: Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=253)]
    version: Annotated[str, Field(pattern=r"^[a-z0-9]+$", max_length=63)]
    plural: Annotated[str, Field(pattern=r"^[a-z][a-z0-9]*$", max_length=63)]
    kind: _Word
    pod_set: PodSetSpec = PodSetSpec()
    suspend: _Path = "spec.suspend"
    complete: _Word = "Complete"
    failed: _Word = "Failed"
    max_runtime: _OptionalPath = ""

    def row(self) -> KindRow:
        """As a row of the table."""
        pods = PodSetRow(template=self.pod_set.template, counts=self.pod_set.counts)
        return KindRow(
            self.group,
            self.version,
            self.plural,
            self.kind,
            (pods,),
            suspend=self.suspend,
            complete=self.complete,
            failed=self.failed,
            max_runtime=self.max_runtime,
        )


def read_kinds(text: str) -> tuple[KindRow, ...]:
    """The rows of a JSON list of names, such as "Job", and of rows. Raises InvalidSpec."""
    known = {row.kind: row for row in KINDS}
    try:
        entries: Any = json.loads(text)
    except ValueError as error:
        raise InvalidSpec(f"must be JSON: {error}") from error
    if not isinstance(entries, list):
        raise InvalidSpec("must be a list of kinds")
    rows = []
    for entry in entries:
        if isinstance(entry, str):
            if entry not in known:
                raise InvalidSpec(f"must be one of {', '.join(known)}, or the row of another kind; got {entry!r}")
            rows.append(known[entry])
            continue
        try:
            rows.append(KindSpec.model_validate(entry).row())
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            raise InvalidSpec(f"{place}: {first['msg']}; got {first['input']!r}") from error
    names = [(row.group, row.kind) for row in rows]
    if len({*names}) != len(names):
        raise InvalidSpec("each kind must be named once")
    return tuple(rows)


def gate_all(rows: Iterable[KindRow]) -> tuple[KindRow, ...]:
    """The kinds, their pods always gated: where users may make up pods of an admission, these do not tell what the next
    ones request."""
    return tuple(replace(row, sets_node_affinity=False) for row in rows)
