"""Decodes JSON as some profilers write it: with NaN and inf, raw control characters, bytes that are not UTF-8."""

from __future__ import annotations

import json
import re
from typing import Any

# Maximum text: Python's objects take up to thirty times the size of their text.
MAX_LENIENT_BYTES = 4 << 20
NONSTANDARD_JSON = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x80-\xff]|:\s*-?(?:[nN]a[nN]|[iI]nf)")
_BARE_NUMBERS = re.compile(r":\s*-?(?:nan|inf)\b", re.IGNORECASE)


def decode_leniently(text: bytes) -> Any:
    """The value; None for invalid JSON, and for text of more than `MAX_LENIENT_BYTES`."""
    if len(text) > MAX_LENIENT_BYTES:
        return None
    try:
        return json.loads(_BARE_NUMBERS.sub(": null", text.decode("utf-8", "replace")), strict=False)
    except ValueError:
        return None
