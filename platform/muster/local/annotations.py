"""What the annotations of a job may say (`muster.dev/...`), checked before anything has changed."""

from __future__ import annotations

from muster import spec
from muster.errors import InvalidSpec
from muster.local.log_limits import limit_of
from muster.local.oversubscription import may_oversubscribe
from muster.local.submitter import PASSED, passed


def check_annotations(job: spec.TrainingJob, old: spec.TrainingJob | None = None) -> None:
    """Raises `InvalidSpec` for a value that is not valid, or that may no longer change; `old`: the job as
    it is stored."""
    limit_of(job, 0)
    may_oversubscribe(job)
    if old is not None and PASSED in job.metadata.annotations and set(passed(job)) != set(passed(old)):
        field = f"metadata.annotations[{PASSED}]"
        stored, given = ",".join(passed(old)), ",".join(passed(job))
        raise InvalidSpec(
            f"{field}: must be {stored!r} or left out: a job keeps the environment that it was submitted with;"
            f" got {given!r}. Delete the job and submit it again to change it",
            field=field,
        )
