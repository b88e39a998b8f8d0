"""One round of Muster: observe, let every job live, plan, write."""

from __future__ import annotations

from muster.engine.assess import assess
from muster.engine.engine import Engine, Round
from muster.engine.recording import dump, load
from muster.engine.replay import POLICIES, replay
from muster.scheduling import MUSTER, Policy

__all__ = ["MUSTER", "POLICIES", "Engine", "Policy", "Round", "assess", "dump", "load", "replay"]
