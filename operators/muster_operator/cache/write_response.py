"""The answer of the API server to a write: the object's new metadata.

It includes managedFields, which are nested as deep as the user's object.
"""

from __future__ import annotations

import msgspec

from muster.api.yaml_input.undecodable import decode_truncated
from muster.errors import ClusterError
from muster.kube.objects import V1PodMeta


class _WriteResponse(msgspec.Struct):
    metadata: V1PodMeta


_write_response = msgspec.json.Decoder(_WriteResponse)


def written_metadata(answer: bytes) -> V1PodMeta:
    """The metadata. Raises ClusterError where the answer is not an object."""
    try:
        return decode_truncated(_write_response.decode, answer).metadata
    except ValueError as error:
        raise ClusterError(f"the answer to a write is not an object: {answer[:200]!r}") from error
