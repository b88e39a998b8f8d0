"""Size of a run. Together with the seed it determines the jobs and the faults."""

from __future__ import annotations

import random
from dataclasses import dataclass

GPUS = 8  # of each node
KINDS = {"h200": 0.75, "a100": 0.25}  # flavors, and their share of the nodes
PER_RACK = 8


@dataclass(frozen=True, slots=True)
class Size:
    """Jobs are submitted and faults injected for `fault_s`; then all jobs must end within `end_timeout_s`."""

    seed: int
    jobs: int = 1000
    nodes: int = 200
    fault_s: float = 480.0
    end_timeout_s: float = 900.0
    fault_interval_s: float = 1.2
    quiet_s: float = 12.0  # without faults at the end, so that statuses are checked

    def rng(self, *about: object) -> random.Random:
        """A generator for each purpose, so that a change of one does not change the others."""
        return random.Random("/".join(str(part) for part in (self.seed, *about)))

    def nodes_of(self, flavor: str) -> int:
        """Number of nodes of a flavor."""
        first = round(self.nodes * KINDS["h200"])
        return first if flavor == "h200" else self.nodes - first

    def gpus_of(self, flavor: str) -> int:
        """Number of GPUs of a flavor."""
        return GPUS * self.nodes_of(flavor)
