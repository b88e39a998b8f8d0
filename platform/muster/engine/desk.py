"""Carries the planner's decisions into statuses, and keeps the promises of earlier rounds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Literal

from muster import lifecycle
from muster.cluster import CreatePod, NodeView, PodView, RecordEvent, World
from muster.engine.drafts import Draft, Rank
from muster.lifecycle import Bounds, Sight, is_admitted, is_leaving, max_grace, moves
from muster.lifecycle.places import describe, part_of
from muster.model import Admit, Decision, Evict, HoldRoom, Placement, Resize, Wait, WaitCode
from muster.spec import EvictionStatus, TrainingJob, TrainingJobStatus

SHUT_OUT: Final[frozenset[WaitCode]] = frozenset(
    {"QueueNotFound", "QueueNotAllowed", "QueueInactive", "PriorityTooHigh", "LargerThanQuota"}
)
"""Why a gang cannot start until somebody edits something: whoever holds room meanwhile gives it back. A cluster that is
too small is none of these, since room is kept for a gang whose node is about to come back."""


MISFIT = "NoLongerFits"
"""Why a gang lost the place that it had on paper only."""


class Desk:
    """The drafts of one round. `jobs` is by uid, as observed."""

    def __init__(
        self, world: World, jobs: Mapping[str, TrainingJob], nodes: Mapping[str, NodeView], bounds: Bounds
    ) -> None:
        self._world = world
        self._jobs = jobs
        self._nodes = nodes
        self._bounds = bounds
        self._queues_leaving = {q.metadata.name for q in world.queues if q.metadata.deletion_timestamp is not None}
        self.drafts: dict[str, Draft] = {}
        self.wakes: dict[str, float | None] = {}  # of the jobs looked at in this round
        self.unsettled = False  # someone leaves or shrinks: decide again at once

    def live(self, uid: str) -> None:
        """Let a job's own life go on, from its newest status."""
        draft = self.drafts.get(uid)
        job = self._jobs[uid] if draft is None else _with_status(draft.job, draft.status)
        world = self._world
        pods: tuple[PodView, ...] = world.pods.get(uid, ())
        deleted = job.spec.queue in self._queues_leaving
        verdict = lifecycle.live(job, Sight(world.now, pods, world.beats.get(uid), self._nodes, deleted), self._bounds)
        self.wakes[uid] = verdict.wake_at
        if draft is None and verdict.status is job.status and not verdict.actions:
            return
        draft = self._draft(
            uid, Rank.LIFE if draft is not None or verdict.actions else _rank(job.status, verdict.status)
        )
        draft.status = verdict.status
        events = [action for action in draft.actions if isinstance(action, RecordEvent)]
        draft.actions = [*events, *verdict.actions]

    def status(self, uid: str) -> TrainingJobStatus | None:
        """A job's newest status; None when there is no such job."""
        draft = self.drafts.get(uid)
        if draft is not None:
            return draft.status
        job = self._jobs.get(uid)
        return None if job is None else job.status

    def newest(self) -> dict[str, TrainingJob]:
        """Jobs whose status is about to change, as they will be."""
        drafts = self.drafts.items()
        return {uid: _with_status(draft.job, draft.status) for uid, draft in drafts if draft.changed}

    # ---- promises of earlier rounds

    def settle_holds(self, uids: Iterable[str]) -> None:
        """Bring holds and evictions of these jobs into line with who has left, and undo what a crash left half-done.

        A victim that has left, or is through with shrinking, leaves the hold's list. When one of them was never told,
        the hold is void: it was written and not all of what follows, and the planner decides anew with whoever leaves
        already. How the victim was to go, and whether it still may be asked to, nobody else knows.
        """
        uids = sorted(uids)
        for uid in uids:
            status = self.status(uid)
            if status is None or status.hold is None or not status.hold.victims:
                continue
            states = {victim: self._state(victim) for victim in status.hold.victims}
            if "untold" in states.values():
                self._put(uid, moves.drop_hold(status), Rank.HOLD)
                continue
            left = [victim for victim, state in states.items() if state == "told"]
            if left != status.hold.victims:
                hold = status.hold.model_copy(update={"victims": left})
                self._put(uid, status.model_copy(update={"hold": hold}), Rank.HOLD)
        for uid in uids:
            self._close_shrink(uid)

    def _state(self, victim: str) -> Literal["gone", "told", "untold"]:
        """Whether a victim makes way no more, does so now, or was not told yet.

        Gone: not admitted, removed, being deleted, or through with shrinking. It may still have pods that stop. Told:
        it leaves, for whatever reason, or shrinks. Untold is also who left and has been admitted again since.
        """
        status = self.status(victim)
        if status is None or not is_admitted(status) or self._jobs[victim].metadata.deletion_timestamp is not None:
            return "gone"
        if is_leaving(status):
            return "told"
        if status.eviction is None:
            return "untold"
        return "told" if self._has_stale_pods(victim, status) else "gone"

    def _close_shrink(self, uid: str) -> None:
        """A shrunk gang forgets for whom, once that one's hold no longer waits for it."""
        status = self.status(uid)
        if status is None or status.eviction is None or is_leaving(status) or self._has_stale_pods(uid, status):
            return
        beneficiary = self.status(status.eviction.beneficiary)
        hold = None if beneficiary is None else beneficiary.hold
        if hold is None or uid not in hold.victims:
            self._put(uid, status.model_copy(update={"eviction": None}), Rank.LIFE)

    def _has_stale_pods(self, uid: str, status: TrainingJobStatus) -> bool:
        return any(pod.attempt != status.attempt for pod in self._world.pods.get(uid, ()))

    # ---- the planner's decisions

    def carry_out(self, decisions: Iterable[Decision]) -> None:
        """Write down what was decided; `Wait` is not handled here (see `news`)."""
        for decision in decisions:
            if isinstance(decision, Admit):
                self._admit(decision)
            elif isinstance(decision, HoldRoom):
                self._hold(decision)
            elif isinstance(decision, Evict):
                self._evict(decision.gang, decision.beneficiary, decision.reason)
            elif isinstance(decision, Resize):
                self._resize(decision)

    def _admit(self, decision: Admit) -> None:
        uid, now = decision.gang, self._world.now
        if is_admitted(self._jobs[uid].status):
            # It gives room back in this round. One write for both would come beside that of whoever gets this room,
            # and on paper the room would be given twice; so the end of its stay is written now, the next one at once.
            self.unsettled = True
            return
        if uid not in self.drafts:
            self.live(uid)  # it arrived in an earlier round, which may not be written yet
        draft = self._draft(uid, Rank.ADMIT)
        waited = now - moves.waits_since(draft.status, now)
        self._put(uid, moves.admit(draft.status, decision.placement, now), Rank.ADMIT)
        self._event(uid, "Admitted", f"{describe(draft.status.placement)}, after {waited:.0f} s in the queue")
        self.live(uid)

    def _hold(self, decision: HoldRoom) -> None:
        draft = self._draft(decision.gang, Rank.HOLD)
        self._put(decision.gang, moves.hold_room(draft.status, decision), Rank.HOLD)
        leaving = ", ".join(self._name(victim) for victim in decision.victims)
        if leaving:
            self._event(decision.gang, "RoomHeld", f"room is held for it until {leaving} made way")
        self.unsettled = True

    def _evict(self, uid: str, beneficiary: str, reason: str) -> None:
        """Someone leaves; one that only holds room loses its hold."""
        draft = self._draft(uid, Rank.VICTIM)
        if not is_admitted(draft.status):
            self._put(uid, moves.drop_hold(draft.status), Rank.VICTIM)
            self._event(uid, "HoldLost", f"the room held for it went to {self._name(beneficiary)}, which comes first")
            self.unsettled = True
            return
        message = f"{reason.lower()} for {self._name(beneficiary)}"
        eviction = self._eviction(draft.job, beneficiary, reason)
        self._put(uid, moves.evict(draft.status, reason, message, self._world.now, eviction=eviction), Rank.VICTIM)
        self._event(uid, reason, message)
        self.live(uid)
        self.unsettled = True

    def _resize(self, decision: Resize) -> None:
        uid, beneficiary = decision.gang, decision.beneficiary
        rank = Rank.ADMIT if beneficiary is None else Rank.VICTIM
        draft = self._draft(uid, rank)
        eviction = None if beneficiary is None else self._eviction(draft.job, beneficiary, decision.reason)
        status = moves.resize(draft.status, decision.placement, decision.reason, self._world.now, eviction=eviction)
        self._put(uid, status, rank)
        why = "there was room" if beneficiary is None else f"{decision.reason.lower()} for {self._name(beneficiary)}"
        self._event(uid, "Resized", f"restarts with {describe(status.placement)}: {why}")
        self.live(uid)
        self.unsettled = True

    def give_back(self, waits: Iterable[Wait]) -> None:
        """Whoever is shut out holds no room."""
        for wait in waits:
            status = self.status(wait.gang) if wait.code in SHUT_OUT else None
            if status is not None and status.hold is not None:
                self._put(wait.gang, moves.drop_hold(status), Rank.LIFE)
                self._event(wait.gang, "HoldLost", f"the room held for it was given back: {wait.message}")
                self.unsettled = True

    # ---- placements that were written in an earlier round

    def unbound(self) -> dict[str, Placement]:
        """Of gangs that were admitted in an earlier round: where pods are that are created in this round, or that
        kube-scheduler could not bind."""
        found: dict[str, Placement] = {}
        for uid in self.wakes:
            draft = self.drafts.get(uid)
            job = self._jobs[uid]
            status = job.status if draft is None else draft.status
            if not is_admitted(job.status) or not is_admitted(status) or is_leaving(status):
                continue
            if draft is not None and draft.rank is not Rank.LIFE:
                continue
            pods = self._world.pods.get(uid, ())
            of_now = (pod for pod in pods if pod.attempt == status.attempt and not pod.deleting)
            seats = {(pod.role, pod.index) for pod in of_now if pod.start_blocker == "Unschedulable"}
            for action in () if draft is None else draft.actions:
                if isinstance(action, CreatePod):
                    seats.add((action.role, action.index))
            if seats:
                found[uid] = part_of(status.placement, seats)
        return found

    def take_back(self, uid: str, why: str) -> None:
        """Its placement is of no use to it any more: it is torn down whole and waits for another."""
        self._put(uid, moves.evict(self._draft(uid, Rank.LIFE).status, MISFIT, why, self._world.now), Rank.LIFE)
        self._event(uid, MISFIT, f"its placement is not valid any more: {why}")
        self.live(uid)
        self.unsettled = True

    # ---- drafts

    def _eviction(self, job: TrainingJob, beneficiary: str, reason: str) -> EvictionStatus:
        deadline = self._world.now + max_grace(job)
        return EvictionStatus.model_construct(beneficiary=beneficiary, reason=reason, deadline=deadline)

    def _draft(self, uid: str, rank: Rank) -> Draft:
        draft = self.drafts.get(uid)
        if draft is None:
            job = self._jobs[uid]
            draft = self.drafts[uid] = Draft(job, job.status, rank)
        else:
            draft.move(rank)
        return draft

    def _put(self, uid: str, status: TrainingJobStatus, rank: Rank) -> None:
        self._draft(uid, rank).status = status

    def put_news(self, uid: str, status: TrainingJobStatus) -> None:
        """A status that only tells why the job waits."""
        draft = self.drafts.get(uid)
        if draft is None:
            job = self._jobs[uid]
            draft = self.drafts[uid] = Draft(job, job.status, Rank.NEWS)
        draft.status = status

    def _event(self, uid: str, reason: str, message: str) -> None:
        self._draft(uid, Rank.LIFE).actions.append(RecordEvent(uid, "Normal", reason, message))

    def _name(self, uid: str) -> str:
        job = self._jobs.get(uid)
        return uid if job is None else f"{job.metadata.namespace or 'default'}/{job.metadata.name}"


def _rank(before: TrainingJobStatus, after: TrainingJobStatus) -> Rank:
    """Of a life that went on without any pod or event."""
    if _starts_to_run(before, after):
        return Rank.READY
    arrives = before.submitted_at is None and after.phase == "Pending" and not after.conditions
    return Rank.NEWS if arrives else Rank.LIFE


def _starts_to_run(before: TrainingJobStatus, after: TrainingJobStatus) -> bool:
    """Whether all that happened is that the pods of an admitted gang are ready now."""
    return before.phase == "Admitted" and after.phase == "Running" and before.placement is after.placement


def _with_status(job: TrainingJob, status: TrainingJobStatus) -> TrainingJob:
    return job if status is job.status else job.model_copy(update={"status": status})
