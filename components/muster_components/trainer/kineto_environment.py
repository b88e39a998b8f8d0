"""Environment variables of Kineto, which must be set before torch is imported."""

from __future__ import annotations

from collections.abc import MutableMapping


def silence_kineto(environ: MutableMapping[str, str]) -> None:
    """Disable Kineto's log, which writes its own steps as errors to the job's log."""
    environ.setdefault("KINETO_LOG_LEVEL", "99")
