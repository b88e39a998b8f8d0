"""Whether this operator may write: it holds the Lease, and its state was listed in the present term.

Both are needed, because a Lease can be lost and acquired again during a decision or a list. An operator that was frozen
then and checked the Lease only would write decisions from before another leader's term.
"""

from __future__ import annotations

from muster_operator.kube.lease import LeaderElector


class Fence:
    """Asked before every write. Always open without leader election."""

    def __init__(self, election: LeaderElector | None) -> None:
        self.election = election
        self._term: str | None = None

    def __call__(self) -> bool:
        """Whether a write may start now."""
        election = self.election
        return election is None or (election.may_write() and election.acquired == self._term)

    def enter(self, term: str | None) -> None:
        """Everything was listed in this term (`LeaderElector.acquired`): decisions from it may be written in no other
        term."""
        self._term = term
