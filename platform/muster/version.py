"""The version of Muster."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed


def version() -> str:
    """That of the installed package; `unknown` if Muster runs from a folder that is not installed."""
    try:
        return installed("muster")
    except PackageNotFoundError:
        return "unknown"
