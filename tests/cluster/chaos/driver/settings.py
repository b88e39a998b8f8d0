"""How large the run is. What follows from a seed follows from these too."""

from __future__ import annotations

import random
from dataclasses import dataclass

GPUS = 8  # of each node
KINDS = {"h200": 0.75, "a100": 0.25}  # flavors, and which part of the nodes is of each
PER_RACK = 8


@dataclass(frozen=True, slots=True)
class Size:
    """`busy_s`: jobs come and things break for so long. `patience_s`: then all jobs have to end within so long."""

    seed: int
    jobs: int = 1000
    nodes: int = 200
    busy_s: float = 480.0
    patience_s: float = 900.0
    trouble_every_s: float = 1.2
    quiet_s: float = 12.0  # at the end nothing happens for so long, so that statuses are judged

    def chance(self, *about: object) -> random.Random:
        """Randomness of its own for each thing, so that a change of one does not change all others."""
        return random.Random("/".join(str(part) for part in (self.seed, *about)))

    def nodes_of(self, flavor: str) -> int:
        """How many nodes are of a flavor."""
        first = round(self.nodes * KINDS["h200"])
        return first if flavor == "h200" else self.nodes - first

    def gpus_of(self, flavor: str) -> int:
        """How many GPUs there are of a flavor."""
        return GPUS * self.nodes_of(flavor)
