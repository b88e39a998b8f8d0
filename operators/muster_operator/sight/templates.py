"""Pod templates, read once however many jobs carry the same one.

Thousands of jobs differ in nothing but their names; reading, checking and trying their template is done for the first.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import msgspec

from muster import spec
from muster.model import Resources
from muster.snapshot import pod_request
from muster_operator.sight.recent import Recent


@dataclass(frozen=True, slots=True, eq=False)
class Template:
    """A pod template: what it says (`document`, never to be changed), as checked values, and a name for it.

    `request` is what it asks for by its own words.
    """

    digest: str
    document: dict[str, Any]
    model: spec.PodTemplate
    request: Resources


class Templates:
    """Known templates by their text. The API server writes keys in order, so the same template is the same text."""

    def __init__(self) -> None:
        self._known = Recent[bytes, Template]()

    def read(self, text: bytes) -> Template:
        """The template. Raises pydantic's ValidationError."""
        known = self._known.get(text)
        if known is None:
            document = msgspec.json.decode(text)
            model, digest = spec.PodTemplate.model_validate(document), hashlib.sha256(text).hexdigest()[:16]
            known = Template(digest, document, model, pod_request(model.spec))
            self._known.put(text, known, len(text))
        return known
