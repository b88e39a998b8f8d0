"""Pod templates, read once however many jobs carry the same one.

Thousands of jobs differ in nothing but their names; reading, checking and trying their template is done for the first.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import msgspec

from muster import spec

_MOST = 20_000


@dataclass(frozen=True, slots=True, eq=False)
class Template:
    """A pod template: what it says (`document`, never to be changed), as checked values, and a name for it."""

    digest: str
    document: dict[str, Any]
    model: spec.PodTemplate


class Templates:
    """Known templates by their text. The API server writes keys in order, so the same template is the same text."""

    def __init__(self) -> None:
        self._known: dict[bytes, Template] = {}

    def read(self, text: bytes) -> Template:
        """The template. Raises pydantic's ValidationError."""
        known = self._known.get(text)
        if known is None:
            document = msgspec.json.decode(text)
            known = Template(hashlib.sha256(text).hexdigest()[:16], document, spec.PodTemplate.model_validate(document))
            if len(self._known) >= _MOST:
                self._known.clear()  # only costs reading them again
            self._known[text] = known
        return known
