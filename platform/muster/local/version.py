"""Which Muster this is, and which language its daemon speaks."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed

API_VERSION = 2  # of the calls over the socket; one more for every change that an older side would misread


def version() -> str:
    """The installed version; `unknown` when it runs from a folder that is not installed."""
    try:
        return installed("muster")
    except PackageNotFoundError:
        return "unknown"
