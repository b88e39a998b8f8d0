"""One round of Muster: observe, let every job live, plan, write."""

from __future__ import annotations

from muster.engine.assess import assess
from muster.engine.engine import Engine, Round
from muster.engine.recording import dump, load

__all__ = ["Engine", "Round", "assess", "dump", "load"]
