"""A snapshot as bytes and back, so that a surprising plan can be saved and planned again."""

from __future__ import annotations

import msgspec

from muster.errors import InvalidSpec
from muster.model import Snapshot


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """JSON with every field of the snapshot."""
    return msgspec.json.encode(snapshot)


def decode_snapshot(data: bytes) -> Snapshot:
    """The snapshot written by `encode_snapshot`. Raises InvalidSpec that names the missing or wrong field."""
    try:
        return msgspec.json.decode(data, type=Snapshot)
    except (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidSpec(f"not a snapshot file written by `muster`: {error}", field="snapshot") from error
