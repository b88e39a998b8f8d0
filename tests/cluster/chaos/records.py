"""Histories as files, a line of JSON for each event, which can be checked again."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import TextIO

from tests.cluster.chaos.checker.model import Event


def write(event: Event, file: TextIO) -> None:
    """Append an event, without managedFields."""
    document = event.document
    if document is not None:
        meta = {name: value for name, value in document["metadata"].items() if name != "managedFields"}
        document = {**document, "metadata": meta}
    body = [event.revision, event.kind, event.key, document, round(event.at, 3)]
    file.write(json.dumps(body, separators=(",", ":")) + "\n")


def read(file: Iterable[str]) -> Iterator[Event]:
    """Every event, in order; all complete ones of a history whose writer was killed."""
    lines = iter(file)
    while True:
        try:
            line = next(lines, "")
        except EOFError:  # raised by gzip
            return
        if not line.endswith("\n"):
            return
        yield Event(*json.loads(line))
