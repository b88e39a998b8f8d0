"""Termination messages of at most 3,500 characters that name 4,500 process groups, which were compared
pair by pair: eight pods with such messages once stopped the operator for seconds."""

from __future__ import annotations

import base64
import json
import zlib

GROUPS = 4512
_CALLED = 480
_RANKS = 64


def hostile_ranks(first: int) -> str:
    """The value of `hung` in a collector's message: `_RANKS` ranks from `first` on, the first with calls in many
    groups, the others in as many groups without a call."""
    called = [
        {
            "name": "g",
            "description": "",
            "backend": f"{i:x}",
            "entered": 1,
            "operations": [{"sequence": 1, "name": "a"}],
        }
        for i in range(_CALLED)
    ]
    idle = [{"name": "g", "description": "", "backend": ""}] * ((GROUPS - _CALLED) // (_RANKS - 1))
    ranks = [
        {"rank": first + i, "frames": ["f"], "collectives": {"rank": first + i, "groups": idle if i else called}}
        for i in range(_RANKS)
    ]
    return base64.b85encode(zlib.compress(json.dumps(ranks, separators=(",", ":")).encode(), 9)).decode()


def hostile_message(first: int = 0) -> str:
    """The whole termination message."""
    return json.dumps({"traces": 0, "hung": hostile_ranks(first)})
