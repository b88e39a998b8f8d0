"""Whether this operator may write: it holds the Lease, and what it decides from was listed since it got it.

Both, because a Lease can be lost and taken again while a plan is being made, or a list read. Whoever was frozen then
and only asked whether it holds the Lease would carry out what it decided before another one led.
"""

from __future__ import annotations

from muster_operator.kube.lease import LeaderElector


class Fence:
    """Asked right before every write. Without an election there is nobody else, and it is always open."""

    def __init__(self, election: LeaderElector | None) -> None:
        self.election = election
        self._term: str | None = None

    def __call__(self) -> bool:
        """Whether a write may begin now."""
        election = self.election
        return election is None or (election.may_write() and election.acquired == self._term)

    def enter(self, term: str | None) -> None:
        """Everything was listed in this term (`Election.acquired`): what follows from it may be written in no other."""
        self._term = term
