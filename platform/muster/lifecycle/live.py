"""What becomes of one job now: from the job, its pods and the time to its new status and what to do, in order.

The question is asked again whenever something about the job changes, and at `wake_at`. Nothing is remembered between
two answers, so it does not matter which engine asks, nor how often: asking again after everything was carried out
changes nothing, and asking again after a crash finishes what was begun.
"""

from __future__ import annotations

from collections.abc import Iterable

from muster.beats import SKEW_S
from muster.cluster import CreatePod, DeletePod, PodView, RecordEvent, RemoveJob, Write
from muster.lifecycle import moves
from muster.lifecycle.bounds import Bounds
from muster.lifecycle.conditions import (
    CANCELLED,
    FAILED,
    SUSPENDED,
    is_admitted,
    is_finished,
    is_leaving,
    is_true,
    with_fields,
)
from muster.lifecycle.failure import is_gone
from muster.lifecycle.finished import record, recorded, unrecorded
from muster.lifecycle.judge import Ruling, completed, judge
from muster.lifecycle.keeping import hold_s, kept_places
from muster.lifecycle.places import Seat, from_status, is_wanted, pod_name, seats, without_nodes
from muster.lifecycle.sight import LIVE_PHASES, Sight, Verdict, role_grace
from muster.spec import JOB_LABEL, ROLE_LABEL, CheckpointStatus, ProgressStatus, RoleStatusPlacement, TrainingJob

_OF_GARBAGE_COLLECTION = ("foregroundDeletion", "orphan")
"""Finalizers of Kubernetes itself, which it removes without delay once the pods are gone."""


def live(job: TrainingJob, sight: Sight, bounds: Bounds) -> Verdict:
    """The job's next status and actions."""
    return _Life(job, sight, bounds).verdict()


class _Life:
    """One answer in the making: the status so far, the actions, the times to wake up at."""

    def __init__(self, job: TrainingJob, sight: Sight, bounds: Bounds) -> None:
        self.job = job
        self.sight = sight
        self.bounds = bounds
        self.status = job.status
        self.actions: list[Write] = []
        self.events: list[RecordEvent] = []
        self.last: list[Write] = []
        self.wakes: list[float] = []

    def verdict(self) -> Verdict:
        self._arrive()
        if self.job.metadata.deletion_timestamp is not None:
            self._leave_the_cluster()
        else:
            self._acknowledge_done_work()
            self._obey_the_user()
            if is_admitted(self.status) and not is_finished(self.status):
                self._heed(judge(self.job, self.status, self.sight, self.bounds))
            if is_finished(self.status):
                self._clear_up()
            elif is_leaving(self.status):
                self._tear_down()
            elif is_admitted(self.status):
                self._staff()
            else:
                self._stand_in_line()
        self._note_checkpoint()
        self._note_progress()
        self._note_finished_pods()
        self._note_scale()
        wake_at = min((at for at in self.wakes if at > self.sight.now), default=None)
        return Verdict(self.status, (*self.actions, *self.events, *self.last), wake_at)

    # ---- the steps, in the order of a job's life

    def _arrive(self) -> None:
        fields: dict[str, object] = {}
        if self.status.submitted_at is None:
            created = self.job.metadata.creation_timestamp
            fields["submitted_at"] = self.sight.now if created is None else created
        if self.status.observed_generation != self.job.metadata.generation:
            fields["observed_generation"] = self.job.metadata.generation
        if fields:
            self.status = with_fields(self.status, fields)

    def _leave_the_cluster(self) -> None:
        self.status = moves.drop_hold(self.status)
        self._delete(self.sight.pods)
        if not self.sight.pods:
            self._finish_deleted()
            self.last.append(RemoveJob(self.job.metadata.uid))

    def _finish_deleted(self) -> None:
        """End a deleted job that finalizers keep in the cluster after its pods are gone."""
        now = self.sight.now
        finalizers = [one for one in self.job.metadata.finalizers if one not in _OF_GARBAGE_COLLECTION]
        if not finalizers:
            return
        if not is_finished(self.status):
            message = f"deleted; the object is kept by its finalizers: {', '.join(finalizers)}"
            self.status = moves.finish(self.status, CANCELLED, "Deleted", message, now)
        if self.status.finished_at is None:
            self.status = with_fields(self.status, {"finished_at": now})

    def _acknowledge_done_work(self) -> None:
        """Before anything that is asked of the job: who cancels or suspends it cannot know yet that it is through."""
        if is_admitted(self.status) and not is_finished(self.status):
            ruling = completed(self.job, self.status, self.sight, self.bounds)
            if ruling is not None:
                self._heed(ruling)

    def _obey_the_user(self) -> None:
        now = self.sight.now
        if is_finished(self.status):
            return
        if self.job.spec.cancel:
            self.status = moves.finish(self.status, CANCELLED, "Cancelled", "cancelled by the user", now)
            self._event("Normal", "Cancelled", "cancelled by the user")
        elif self.job.spec.suspend and not is_true(self.status, SUSPENDED):
            self.status = moves.suspend(self.status, now)
            self._event("Normal", "Suspended", "gave its room back until it is resumed")
        elif not self.job.spec.suspend and is_true(self.status, SUSPENDED) and self.sight.queue_deleted:
            message = f"resumed while queue {self.job.spec.queue} is being deleted, which waits for its unfinished jobs"
            self.status = moves.finish(self.status, FAILED, "QueueDeleted", message, now)
            self._event("Warning", "QueueDeleted", message)
        elif not self.job.spec.suspend and is_true(self.status, SUSPENDED):
            self.status = moves.resume(self.status, now)
            self._event("Normal", "Resumed", "waits in its queue again")

    def _heed(self, ruling: Ruling) -> None:
        self.status = ruling.status
        self.wakes.extend(ruling.wakes)
        if ruling.event is not None:
            self._event(*ruling.event)

    def _clear_up(self) -> None:
        """Stop what still runs; the job has finished once nothing does. Keep ended pods for their logs until the job
        itself goes."""
        alive = [pod for pod in self.sight.pods if pod.phase in LIVE_PHASES]
        self._delete(alive)
        if not alive and self.status.finished_at is None:
            self.status = with_fields(self.status, {"finished_at": self.sight.now})
        ttl, finished_at = self.job.spec.ttl_seconds_after_finished, self.status.finished_at
        if ttl is not None and finished_at is not None and not alive:
            if self.sight.now >= finished_at + ttl:
                self.last.append(RemoveJob(self.job.metadata.uid))
            else:
                self.wakes.append(finished_at + ttl)

    def _tear_down(self) -> None:
        self._delete(self.sight.pods)
        if self.sight.pods:
            return
        now = self.sight.now
        self.status = moves.requeue(self.status, now, self.bounds, self._kept_room(), hold_s(self.job))
        self._stand_in_line()

    def _kept_room(self) -> list[RoleStatusPlacement]:
        """What a gang keeps while its lost nodes are replaced: its places on nodes that are still good."""
        places = kept_places(self.status, self.job.spec, self.sight.now)
        names = {share.node for part in places for share in part.nodes}
        views = {name: self.sight.nodes.get(name) for name in names}
        good = {n for n, v in views.items() if v is not None and v.takes_pods}
        return without_nodes(places, frozenset(names - good))

    def _staff(self) -> None:
        """Create what is missing of the present attempt, once nothing is left of older ones."""
        status, now = self.status, self.sight.now
        stale = [pod for pod in self.sight.pods if pod.attempt != status.attempt]
        self._delete(stale)
        if stale:
            return
        if status.requeue_after is not None and now < status.requeue_after:
            self.wakes.append(status.requeue_after)
            return
        have = recorded(status) | {(pod.role, pod.index) for pod in self.sight.pods}
        self.actions.extend(
            self._create(seat) for seat in seats(status.placement) if (seat.role, seat.index) not in have
        )

    def _stand_in_line(self) -> None:
        self._delete(self.sight.pods)
        status, now = self.status, self.sight.now
        if status.hold is not None:
            if not is_wanted(status.hold.placement, self.job.spec):
                self.status = moves.drop_hold(status)
                self._event("Normal", "HoldLost", "the room held for it was given back: its roles were edited")
            elif now >= status.hold.expires_at:
                self.status = moves.drop_hold(status)
                self._event("Warning", "HoldExpired", "the room held for it was given back: it could not start in time")
            else:
                self.wakes.append(status.hold.expires_at)
        if status.requeue_after is not None:
            self.wakes.append(status.requeue_after)
        self.wakes.extend(entry.until for entry in status.blamed_nodes)

    def _note_checkpoint(self) -> None:
        """The newest checkpoint goes along with any other news, and on its own at most once a minute; at once where the
        job's stay is over, since it may not be seen again.

        One that is dated ahead, by a clock that was wrong, counts as of now, and is told once; one that a status dates
        ahead keeps no other from being told.
        """
        beat, old, now = self.sight.beat, self.status.last_checkpoint, self.sight.now
        if beat is None or beat.checkpoint_at is None or beat.checkpoint_step is None:
            return
        ahead = beat.checkpoint_at > now + SKEW_S
        at = now if ahead else beat.checkpoint_at
        if old is not None and old.at > now + SKEW_S:
            old = None
        if old is not None and (at <= old.at + 1e-3 or (ahead and beat.checkpoint_step == old.step)):
            return
        over = is_finished(self.status) or not is_admitted(self.status)
        due = 0.0 if old is None or over else old.at + self.bounds.checkpoint_news_s
        if self.status is not self.job.status or max(now, at) >= due:
            news = CheckpointStatus(step=beat.checkpoint_step, at=at)
            self.status = with_fields(self.status, {"last_checkpoint": news})
        else:
            self.wakes.append(due)

    def _note_progress(self) -> None:
        """How far the present attempt is, where statuses are to tell: as a checkpoint, along with any other news."""
        beat, old, every_s = self.sight.beat, self.status.progress, self.bounds.progress_news_s
        started_at, attempt = self.job.status.started_at, self.job.status.attempt  # before what is decided just now
        if every_s is None or beat is None or started_at is None or beat.at < started_at:
            return
        if is_finished(self.job.status) or (old is not None and (old.attempt, old.step) == (attempt, beat.step)):
            return
        due = 0.0 if old is None or old.at > self.sight.now + SKEW_S else old.at + every_s
        if self.status is not self.job.status or max(self.sight.now, beat.at) >= due:
            news = ProgressStatus(
                step=beat.step,
                steps=beat.steps,
                loss=beat.loss,
                tokens_per_second=beat.tokens_per_s,
                attempt=attempt,
                at=beat.at,
            )
            self.status = with_fields(self.status, {"progress": news})
        else:
            self.wakes.append(due)

    def _note_finished_pods(self) -> None:
        """Which pods are done while others run on, along with any other news, and on its own after a while: most
        gangs are whole at their end, and one write tells that."""
        if not is_admitted(self.status) or is_finished(self.status) or is_leaving(self.status):
            return
        pods = unrecorded(self.status, self.sight.pods)
        if not pods:
            return
        due = min(pod.finished_at or 0.0 for pod in pods) + self.bounds.finished_news_s
        if self.status is not self.job.status or self.sight.now >= due:
            seats = recorded(self.status) | {(pod.role, pod.index) for pod in pods}
            self.status = with_fields(self.status, {"finished_pods": record(seats)})
        else:
            self.wakes.append(due)

    def _note_scale(self) -> None:
        """The size of the one elastic role and which pods it has, for whoever scales it by one number."""
        role = self.job.spec.elastic_role
        size = selector = None
        if role is not None:
            holds = is_admitted(self.status) and not is_finished(self.status)
            parts = from_status(self.status.placement) if holds else ()
            size = sum(part.replicas for part in parts if part.role == role.name)
            selector = f"{JOB_LABEL}={self.job.metadata.name},{ROLE_LABEL}={role.name}"
        if (size, selector) != (self.status.elastic_replicas, self.status.selector):
            self.status = with_fields(self.status, {"elastic_replicas": size, "selector": selector})

    # ---- what the steps are made of

    def _create(self, seat: Seat) -> CreatePod:
        meta, attempt = self.job.metadata, self.status.attempt
        return CreatePod(
            job_uid=meta.uid,
            name=pod_name(meta.name, meta.uid, seat.role, seat.index, attempt),
            role=seat.role,
            index=seat.index,
            replicas=seat.replicas,
            attempt=attempt,
            node=seat.node,
            flavor=seat.flavor,
            rank0_node=seat.rank0_node,
        )

    def _delete(self, pods: Iterable[PodView]) -> None:
        for pod in pods:
            node = self.sight.nodes.get(pod.node)
            if is_gone(node, self.sight.now, self.bounds):
                self.actions.append(DeletePod(pod.job_uid, pod.name, 0.0, force=True))
                continue
            if node is not None and node.not_ready_since is not None:
                self.wakes.append(node.not_ready_since + self.bounds.force_after_s)
            if not pod.deleting:
                self.actions.append(DeletePod(pod.job_uid, pod.name, role_grace(self.job, pod.role)))

    def _event(self, kind: str, reason: str, message: str) -> None:
        self.events.append(
            RecordEvent(self.job.metadata.uid, "Normal" if kind == "Normal" else "Warning", reason, message)
        )
