"""The cluster on this host: a daemon, its database, and a shim process for each replica."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed

API_VERSION = 3
"""Version of the API between client and daemon; raised by every change that the other side would decode wrongly."""


def version() -> str:
    """The installed version of Muster; `unknown` if it runs from a folder that is not installed."""
    try:
        return installed("muster")
    except PackageNotFoundError:
        return "unknown"
