"""The status of a TrainingJob, written only by the engine."""

from __future__ import annotations

from muster.api.spec.arrays import ArrayStatus
from muster.api.spec.fields import StatusModel, Time
from muster.api.spec.queueing import QueueingStatus


class LastFailure(StatusModel):
    """The first failed container of the last failed attempt."""

    pod: str
    """Name of the pod."""
    node: str = ""
    """Name of the node on which the pod ran."""
    exit_code: int | None = None
    """Exit code of the rank that failed first; 128 + signal if a signal ended it."""
    reason: str = ""
    """Reason for the failure, in one word."""
    log_tail: str = ""
    """The last lines of the container's log, at most 4 KiB; the kubelet's message if it rejected the pod."""
    at: Time | None = None
    """Time of the failure."""


class CheckpointStatus(StatusModel):
    """The newest durable checkpoint."""

    step: int | None = None
    """The last step that the checkpoint contains; not set if it is unknown."""
    at: Time
    """Time of the checkpoint."""


class StopStatus(StatusModel):
    """An attempt that was stopped before its end: evicted, suspended or resized."""

    attempt: int
    """Number of the attempt."""
    reason: str
    """Why it was stopped: the reason of the eviction, Suspended or Resized."""
    at: Time
    """When its pods were asked to stop."""
    started_at: Time
    """When the attempt had started."""
    ended_at: Time | None = None
    """When its last pod had ended; what follows is known from then on."""
    step: int | None = None
    """The last step that was reported before; not set if the job reports none."""
    saved: bool = False
    """Whether a checkpoint was completed after the pods were asked to stop."""
    checkpoint_step: int | None = None
    """Step of the newest checkpoint, if it is known."""
    checkpoint_at: Time | None = None
    """Time of the newest checkpoint."""
    lost_seconds: int = 0
    """Run time that is lost: since the newest checkpoint, or the start of the attempt."""
    ranks: str = ""
    """Where the ranks were when they were asked to stop, if no checkpoint was saved."""


class ProgressStatus(StatusModel):
    """The last reported progress, updated at most once a minute; on one host not stored, but in the output of
    `muster describe --json`."""

    step: int
    """Number of completed steps."""
    steps: int | None = None
    """Total number of steps."""
    loss: float | None = None
    """The loss at this step."""
    tokens_per_second: float | None = None
    """Tokens per second of the whole job."""
    estimated_remaining_seconds: float | None = None
    """Time from the report to the last step, in seconds."""
    collectives_per_step: float | None = None
    """Collectives that rank 0 calls in a step."""
    collective_bytes_per_step: float | None = None
    """Bytes of these collectives, of each the larger one of its input and output on rank 0."""
    attempt: int = 0
    """Number of the attempt that reported it."""
    at: Time
    """Time of the report."""


class TraceStatus(StatusModel):
    """Location of the traces and their report."""

    report: str = ""
    """Path of the report, if one was built."""
    files: int = 0
    """Number of collected traces as far as known; complete once all pods have ended."""
    location: str = ""
    """The run folder with the traces: in a store, as s3://bucket/muster/NAMESPACE/JOB-UID, or in a volume, as
    pvc://CLAIM/NAMESPACE/JOB-UID. Empty: on this host, or deleted with the pods."""


class TrainingJobStatus(QueueingStatus):
    """`conditions` is authoritative; `phase` and `reason` are derived from it."""

    elastic_replicas: int | None = None
    """Number of pods of the only elastic role in this attempt; 0 without pods. For the subresource `scale`."""
    selector: str | None = None
    """Label selector of the pods of the only elastic role. For the subresource `scale`."""
    last_failure: LastFailure | None = None
    """The last failure."""
    last_checkpoint: CheckpointStatus | None = None
    """The checkpoint from which the job resumes."""
    last_stop: StopStatus | None = None
    """The last attempt that was stopped before its end."""
    progress: ProgressStatus | None = None
    """The last reported progress."""
    traces: TraceStatus | None = None
    """Location of traces and report."""
    array: ArrayStatus | None = None
    """The indices of an array."""
