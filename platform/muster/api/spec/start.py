"""What has to hold before a job may start, capacity aside: other jobs that have ended, and times."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from muster.api.spec.fields import MAX_JOB_NAME, Name, StatusModel, StrictModel, Time

MAX_DEPENDENCIES = 64
DependencyOutcome: TypeAlias = Literal["Succeeded", "NotSucceeded", "Any"]
EndedPhase: TypeAlias = Literal["Succeeded", "Failed", "Cancelled"]


class JobDependency(StrictModel):
    """A job of the same namespace that has to end first."""

    job: Name
    """Name of the job."""
    outcome: DependencyOutcome = "Succeeded"
    """How it has to end: Succeeded, NotSucceeded (failed or cancelled), or Any."""
    each_index: bool = False
    """Of an array: each index waits for the same index of that array only, instead of for all of it."""

    def is_satisfied_by(self, phase: str) -> bool:
        """Whether a job that has ended in this phase has ended as it has to."""
        return self.outcome == "Any" or (self.outcome == "Succeeded") == (phase == "Succeeded")


class DependencyStatus(StatusModel):
    """A job of `dependsOn` that has ended. It counts although that job may be deleted since."""

    job: Annotated[str, Field(max_length=MAX_JOB_NAME)]
    """Name of the job."""
    phase: EndedPhase
    """How it ended."""
    at: Time
    """Time at which that was recorded."""
