"""TrainingJob: what became of it. Written by the engine alone."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field, model_validator

from muster.spec.fields import ListMapKey, Time
from muster.spec.meta import Condition, StatusModel


class NodePods(StatusModel):
    """Pods of a role on one node."""

    node: str
    """The node."""
    indexes: str
    """Which pods: "0-7" or "3"."""


class RolePlacementStatus(StatusModel):
    """Where the pods of one role are."""

    role: str
    """The role."""
    flavor: str = ""
    """The kind of node."""
    nodes: list[NodePods] = []
    """Node by node, indexes counting up."""


class NominationStatus(StatusModel):
    """Capacity nominated for this job: see docs/glossary.md."""

    placement: list[RolePlacementStatus]
    """The room."""
    victims: list[str] = []
    """Uids of the jobs that leave for it."""
    expires_at: Time
    """When the promise ends."""


class EvictionStatus(StatusModel):
    """For whom this job is leaving, and until when it may take."""

    beneficiary: str = Field(alias="for")
    """Uid of the job that gets the room."""
    reason: str = ""
    """Why."""
    deadline: Time
    """When the pods are killed."""


class LastFailure(StatusModel):
    """The earliest failing container of the attempt that failed last."""

    pod: str
    """The pod."""
    node: str = ""
    """The node it ran on."""
    exit_code: int | None = None
    """Of the rank that failed first; 128 + signal when a signal ended it."""
    reason: str = ""
    """In one word."""
    log_tail: str = ""
    """The end of its log, at most 4 KiB."""
    at: Time | None = None
    """When."""


class CheckpointStatus(StatusModel):
    """The newest durable checkpoint."""

    step: int
    """The step it was taken after."""
    at: Time
    """When."""


class ProgressStatus(StatusModel):
    """How far the job was when it last said so; at most once a minute, and only where it cannot be read live."""

    step: int
    """Steps made."""
    steps: int | None = None
    """The last step."""
    loss: float | None = None
    """The loss at this step."""
    tokens_per_second: float | None = None
    """Of the whole job."""
    attempt: int = 0
    """The attempt that said so."""
    at: Time
    """When it said so."""


class FinishedPods(StatusModel):
    """Pods of a role whose work is done."""

    role: str
    """The role."""
    indexes: str
    """Which pods: "0-3,7"."""


class BlamedNode(StatusModel):
    """A node this job avoids for a time."""

    node: str
    """The node."""
    until: Time
    """Until when."""


class TraceStatus(StatusModel):
    """Where the traces and their report lie."""

    report: str = ""
    """The report, where one was built."""
    files: int = 0
    """Number of traces that were collected, as far as it is known; once all pods have ended, all."""
    location: str = ""
    """The run's folder with its traces: of a store, as s3://bucket/muster/NAMESPACE/JOB-UID, or of a volume, as
    pvc://CLAIM/NAMESPACE/JOB-UID. Empty: they are on this host, or go with their pods."""


Phase: TypeAlias = Literal[
    "Pending", "Admitted", "Running", "Suspended", "Terminating", "Succeeded", "Failed", "Cancelled"
]
TERMINAL_PHASES: tuple[Phase, ...] = ("Succeeded", "Failed", "Cancelled")
"""Phases that a job never leaves."""


class TrainingJobStatus(StatusModel):
    """Conditions are the truth, `phase` and `reason` are derived."""

    observed_generation: int = 0
    """The generation of the spec that this is said of."""
    phase: Phase = "Pending"
    """The state in one word, derived from the conditions and finishedAt. Terminating: cancelled, while processes of it
    still run."""
    reason: str = ""
    """Why, in one word, derived from the conditions too: what one line of a table has room for."""
    conditions: Annotated[list[Condition], Field(max_length=32), ListMapKey("type", "write each condition once")] = []
    """Admitted, PodsReady, Evicted, Suspended, and one of Complete, Failed and Cancelled once the end is decided."""
    priority: int | None = None
    """The priority that counts: that of the spec, or the value of its PriorityClass."""
    queue_position: int | None = None
    """How many gangs go first in the queue, plus one."""
    estimated_start: Time | None = None
    """When it may start, as far as the runtimes of others tell."""
    placement: list[RolePlacementStatus] = []
    """Which pods are on which node."""
    nomination: NominationStatus | None = None
    """Capacity nominated for this job, until it is admitted or the nomination expires."""
    hold: Annotated[NominationStatus | None, Field(exclude=True)] = None
    """Deprecated: read as nomination where an earlier version wrote it; never written. Removed in the next version."""
    eviction: EvictionStatus | None = None
    """Set while the job leaves for another."""
    submitted_at: Time | None = None
    """First submission; kept across evictions."""
    admitted_at: Time | None = None
    """Start of the current stay."""
    started_at: Time | None = None
    """When all pods of the attempt were ready."""
    ran_seconds: int = 0
    """How long earlier attempts ran together; the present one has run since startedAt."""
    finished_at: Time | None = None
    """When its last process had ended; since when it was complete, failed or cancelled, its condition tells."""
    resized_at: Time | None = None
    """When an elastic job last changed its size."""
    requeue_after: Time | None = None
    """Backoff: not admitted before."""
    attempt: int = 0
    """Starts of the gang, counted from 0."""
    restarts: int = 0
    """Restarts that count against maxRestarts."""
    start_retries: int = 0
    """Start timeouts in a row; these have their own limit, maxStartRetries."""
    node_losses: int = 0
    """Restarts because of lost nodes; these have their own bound."""
    pods_wanted: int = 0
    """Pods of the attempt."""
    pods_ready: int = 0
    """Pods of the attempt that are ready."""
    elastic_replicas: int | None = None
    """Pods of the attempt of the one elastic role; 0 while the job has none. For the subresource `scale`."""
    selector: str | None = None
    """Selects the pods of the one elastic role by their labels. For the subresource `scale`."""
    finished_pods: list[FinishedPods] = []
    """Pods of the attempt that have done their work while others run on; they may be deleted."""
    blamed_nodes: list[BlamedNode] = []
    """Nodes that are avoided."""
    last_failure: LastFailure | None = None
    """What failed last."""
    last_checkpoint: CheckpointStatus | None = None
    """What the job resumes from."""
    progress: ProgressStatus | None = None
    """How far it is."""
    traces: TraceStatus | None = None
    """Traces and report."""

    @model_validator(mode="after")
    def _read_hold(self) -> TrainingJobStatus:
        if self.hold is None:
            return self
        return self.model_copy(update={"nomination": self.nomination or self.hold, "hold": None})
