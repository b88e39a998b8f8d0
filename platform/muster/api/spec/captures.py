"""TraceCapture: a request to profile some steps of a running job."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from muster.api.spec.fields import (
    Condition,
    ListMapKey,
    Name,
    ObjectMeta,
    Seconds,
    StatusModel,
    StrictModel,
    Time,
)

CAPTURED_RANKS_PATTERN = r"^(all|slowest|stage-leaders|random:[1-9][0-9]{0,3}|[0-9]{1,6}(,[0-9]{1,6})*)$"
MAX_CAPTURED_RANKS = 1024

CaptureOption: TypeAlias = Literal["stacks", "shapes", "memory", "flops", "modules"]
CapturePhase: TypeAlias = Literal["Pending", "Agreed", "Recording", "Succeeded", "Failed"]
FINISHED_CAPTURE_PHASES: tuple[CapturePhase, ...] = ("Succeeded", "Failed")


class TraceCaptureSpec(StrictModel):
    """The steps and ranks to profile. The steps are chosen when the job's ranks have reported how far they are."""

    job: Name
    """The TrainingJob, in the same namespace."""
    kind: Literal["Trace", "Memory", "Stacks"] = "Trace"
    """Trace: profile steps. Memory: record the GPU's allocations during the steps (a snapshot of torch). Stacks: where
    the ranks of a job that hangs are; steps, ranks and options then mean nothing."""
    steps: Annotated[int, Field(ge=1, le=1000)] = 5
    """Number of steps."""
    ranks: Annotated[str, Field(pattern=CAPTURED_RANKS_PATTERN, max_length=8192)] = "all"
    """The ranks: `all`, a list such as `0,8`, `stage-leaders` (the first rank of each pipeline stage), `slowest` (the
    rank with the longest step time) or `random:4`. At most 1024 ranks."""
    options: Annotated[list[CaptureOption], Field(max_length=5)] = ["shapes"]
    """What torch.profiler records besides times: Python stacks, shapes of inputs, memory, FLOPs, modules."""
    ttl_seconds_after_finished: Seconds = 7 * 24 * 3600
    """Time after which the finished object is deleted. The traces are kept."""


class CapturedRank(StatusModel):
    """One rank that was chosen."""

    rank: Annotated[int, Field(ge=0)]
    """The rank."""
    state: Literal["waiting", "armed", "recording", "written", "collected", "rejected", "failed"] = "waiting"
    """`waiting`: it has not answered; `armed`: it starts its profiler at the agreed step; `collected`: its trace is
    stored."""
    reason: Annotated[str, Field(max_length=1024)] = ""
    """Why it was rejected, has failed, or has not answered."""
    file: Annotated[str, Field(max_length=256)] = ""
    """Name of the stored trace in the folder `traces` of the run; of memory and stacks, the path in the run."""
    frames: Annotated[list[Annotated[str, Field(max_length=512)]], Field(max_length=16)] = []
    """Of stacks: the innermost frames of the main thread."""


class TraceCaptureStatus(StatusModel):
    """How far a capture is. Everything that is needed to continue it is in here and in the answers of the ranks."""

    observed_generation: int = 0
    """The generation of the spec that this status describes."""
    phase: CapturePhase = "Pending"
    """Pending: the steps are not agreed yet. Agreed: all chosen ranks have acknowledged the steps."""
    reason: str = ""
    """Reason for the phase, in one word."""
    message: Annotated[str, Field(max_length=32768)] = ""
    """Details, for people."""
    job_uid: str = ""
    """Uid of the job; empty on one host, and before the first proposal."""
    attempt: int = 0
    """The attempt of the job."""
    proposal: int = 0
    """Number of steps that were proposed; a rank that is too late causes the next one."""
    start_step: int | None = None
    """The first step, equal on all ranks."""
    end_step: int | None = None
    """The step after the last one."""
    ranks: Annotated[
        list[CapturedRank], Field(max_length=MAX_CAPTURED_RANKS), ListMapKey("rank", "name each rank once")
    ] = []
    """The chosen ranks."""
    requested_at: Time | None = None
    """Time of the first proposal."""
    agreed_at: Time | None = None
    """Time at which the last rank acknowledged."""
    finished_at: Time | None = None
    """Time at which the outcome was known."""
    location: str = ""
    """The run folder with the traces, as in the status of the job."""
    conditions: Annotated[list[Condition], Field(max_length=8), ListMapKey("type", "write each condition once")] = []
    """Agreed, and one of Complete and Failed."""


class TraceCapture(StrictModel):
    """Profiles the same steps on some ranks of a running TrainingJob."""

    api_version: Literal["muster.dev/v1alpha1"] = "muster.dev/v1alpha1"
    kind: Literal["TraceCapture"] = "TraceCapture"
    metadata: ObjectMeta
    spec: TraceCaptureSpec
    """The desired state."""
    status: TraceCaptureStatus = TraceCaptureStatus()
    """The observed state."""
