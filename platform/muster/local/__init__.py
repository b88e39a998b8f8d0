"""The cluster on this host: a daemon, its database, and a shim process for each replica."""

from __future__ import annotations

API_VERSION = 3
"""Version of the API between client and daemon; raised by every change that the other side would decode wrongly."""
