"""When this operator leads: it waits for the Lease, lists everything again, and then runs one term after another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from muster.kube.lease import Fence
from muster_operator.informers import InformerSet
from muster_operator.leader import Leader


@dataclass(frozen=True, slots=True)
class Leadership:
    """`forget` is called when another operator may have led: our unanswered writes and what was read of its Secrets are
    obsolete. `on_term_begins` and `on_term_ended` are called around each term."""

    leader: Leader
    fence: Fence
    informers: InformerSet
    forget: Callable[[], None]
    on_term_begins: Callable[[], None]
    on_term_ended: Callable[[], None]

    async def run(self) -> None:
        """Wait for the Lease, list everything again, then lead; repeat.

        A leader whose renewal came too late but that was not replaced continues with its cache: no other operator has
        written, and its own unanswered writes are resolved before the next decision.
        """
        election, listed_for = self.fence.election, None
        while True:
            if election is not None:
                await election.leading.wait()
                if election.acquired != listed_for:
                    listed_for = election.acquired
                    self.forget()
                    self.informers.start()  # the cache may lack the last writes of the previous holder
            await self.informers.wait_until_synced()
            if election is not None and election.acquired != listed_for:
                continue  # another operator led while we listed
            self.fence.enter(listed_for)
            self.on_term_begins()
            await self.leader.run_term()
            self.on_term_ended()
            if election is not None:
                election.refresh()  # otherwise the loop would try to lead until the next renewal ends
            await asyncio.sleep(0.1)

    def term_id(self) -> str | None:
        """The id of the term in which this operator leads; None while it does not."""
        term = self.leader.term
        return None if term is None or not self.fence() else term.id

    def is_leading(self) -> bool:
        """Whether this operator leads and may write."""
        return self.term_id() is not None
