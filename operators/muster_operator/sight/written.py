"""What the API server answers to a write: the metadata of the object as it is now.

Who owns which field stands in it too, and is as deep as whatever a user wrote.
"""

from __future__ import annotations

import msgspec

from muster.documents.shorn import decoded
from muster.errors import ClusterError
from muster_operator.sight.shapes import PodMeta


class _Written(msgspec.Struct):
    metadata: PodMeta


_written = msgspec.json.Decoder(_Written)


def written(answer: bytes) -> PodMeta:
    """The metadata. Raises ClusterError where the answer is none: who gives it is no API server."""
    try:
        return decoded(_written.decode, answer).metadata
    except ValueError as error:
        raise ClusterError(f"the answer to a write is no object: {answer[:200]!r}") from error
