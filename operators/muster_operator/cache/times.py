"""Times of the API server."""

from __future__ import annotations

from datetime import datetime


def parse_rfc3339(text: str | None) -> float | None:
    """RFC 3339 to Unix seconds; None stays None."""
    return None if text is None else datetime.fromisoformat(text).timestamp()
