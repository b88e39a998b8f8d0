"""What the annotations of a job may say (`muster.dev/...`), checked before anything has changed."""

from __future__ import annotations

from collections.abc import Mapping

from muster import spec
from muster.documents.complaints import field_path
from muster.errors import InvalidSpec
from muster.local.log_limits import LOG_LIMIT, limit_of
from muster.local.oversubscription import OVERSUBSCRIBE, may_oversubscribe
from muster.local.submitter import NOTES, PASSED, passed
from muster.nearest import nearest

_PREFIX = "muster.dev/"
_KNOWN = NOTES | {LOG_LIMIT, OVERSUBSCRIBE}


def check_annotations(job: spec.TrainingJob, old: spec.TrainingJob | None = None) -> None:
    """Raises `InvalidSpec` for a name that is not known, and for a value that is not valid or may no longer change;
    `old`: the job as it is stored."""
    _refuse_unknown(job, {} if old is None else old.metadata.annotations)
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


def _refuse_unknown(job: spec.TrainingJob, stored: Mapping[str, str]) -> None:
    """What an earlier version has stored stays, so that its job can still be changed."""
    known = sorted(name.removeprefix(_PREFIX) for name in _KNOWN)
    for name in job.metadata.annotations:
        if name.startswith(_PREFIX) and name not in _KNOWN and name not in stored:
            field = field_path(("metadata", "annotations", name))
            near = nearest(name.removeprefix(_PREFIX), known)
            right = f"did you mean {_PREFIX + near!r}?" if near else f"known here: {', '.join(sorted(_KNOWN))}"
            raise InvalidSpec(f"{field}: unknown annotation; {right}", field=field)
