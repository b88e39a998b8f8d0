"""What has to be in the environment before torch is imported for traces to be taken quietly."""

from __future__ import annotations

from collections.abc import MutableMapping


def silence_kineto(environ: MutableMapping[str, str]) -> None:
    """Kineto logs its own steps as ERROR and USDT lines into the job's log; above every level it logs nothing."""
    environ.setdefault("KINETO_LOG_LEVEL", "99")
