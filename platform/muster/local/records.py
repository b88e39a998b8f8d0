"""What the database keeps of a pod, beyond the objects that users write."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from muster.cluster import PodView
from muster.model import Resources

PodPhase = Literal["Pending", "Running", "Succeeded", "Failed", "Lost"]


@dataclass(frozen=True, slots=True)
class PodRecord:
    """One replica, from the intent to run it until its room is free.

    `devices` is None until the GPUs are chosen, which is before the shim is started. `deleting_at` is when the engine
    asked for its end. `failed_at` is when its first rank failed. `request` is what it asked for when it was made; a
    database of before there was such a field is given it when it is opened. Times are Unix seconds.
    """

    name: str
    job_uid: str
    role: str
    index: int
    replicas: int
    attempt: int
    node: str
    flavor: str
    port: int
    gpus: int
    devices: tuple[str, ...] | None = None
    phase: PodPhase = "Pending"
    exit_code: int | None = None
    reason: str = ""
    finished_at: float | None = None
    log_tail: str = ""
    deleting_at: float | None = None
    grace_s: float = 30.0
    failed_at: float | None = None
    request: Resources = Resources()

    @property
    def finished(self) -> bool:
        """No process of it is left."""
        return self.phase in ("Succeeded", "Failed", "Lost")

    def to_view(self) -> PodView:
        """As the engine sees it; ready as soon as it runs, since there are no probes here."""
        return PodView(
            name=self.name,
            job_uid=self.job_uid,
            role=self.role,
            index=self.index,
            attempt=self.attempt,
            node=self.node,
            phase=self.phase,
            ready=self.phase == "Running",
            deleting=self.deleting_at is not None,
            exit_code=self.exit_code,
            reason=self.reason,
            finished_at=self.finished_at,
            failed_at=self.failed_at,
            log_tail=self.log_tail,
            request=self.request,
        )


@dataclass(frozen=True, slots=True)
class EventRecord:
    """Something happened to a job; `count` times in a row, last at `at`."""

    job_uid: str
    at: float
    type: Literal["Normal", "Warning"]
    reason: str
    message: str
    count: int = 1

    def to_json(self) -> dict[str, Any]:
        """For the API."""
        return {"at": self.at, "type": self.type, "reason": self.reason, "message": self.message, "count": self.count}
