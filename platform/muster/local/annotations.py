"""Validation of a job's `muster.dev/...` annotations, before anything is changed."""

from __future__ import annotations

from collections.abc import Mapping

from muster import spec
from muster.errors import InvalidSpec
from muster.local.log_limits import LOG_LIMIT_ANNOTATION, job_log_limit
from muster.local.oversubscription import OVERSUBSCRIBE_ANNOTATION, allows_oversubscription
from muster.local.submission import PASS_ENVIRONMENT_ANNOTATION, SUBMITTER_ANNOTATIONS, passed_variables
from muster.text.suggest import closest_match
from muster.yaml_input.field_errors import field_path

_PREFIX = "muster.dev/"
_KNOWN = SUBMITTER_ANNOTATIONS | {LOG_LIMIT_ANNOTATION, OVERSUBSCRIBE_ANNOTATION}


def check_annotations(job: spec.TrainingJob, old: spec.TrainingJob | None = None) -> None:
    """Raises `InvalidSpec` for an unknown name, and for a value that is invalid or immutable; `old` is the stored
    job."""
    _refuse_unknown(job, {} if old is None else old.metadata.annotations)
    job_log_limit(job, 0)
    allows_oversubscription(job)
    if (
        old is not None
        and PASS_ENVIRONMENT_ANNOTATION in job.metadata.annotations
        and set(passed_variables(job)) != set(passed_variables(old))
    ):
        field = f"metadata.annotations[{PASS_ENVIRONMENT_ANNOTATION}]"
        stored, given = ",".join(passed_variables(old)), ",".join(passed_variables(job))
        raise InvalidSpec(
            f"{field}: must be {stored!r} or omitted: a job keeps the environment of its submission; got {given!r};"
            " to change it, delete the job and submit it again",
            field=field,
        )


def _refuse_unknown(job: spec.TrainingJob, stored: Mapping[str, str]) -> None:
    """Annotations that an earlier version stored are accepted, so that the job can still be changed."""
    known = sorted(name.removeprefix(_PREFIX) for name in _KNOWN)
    for name in job.metadata.annotations:
        if name.startswith(_PREFIX) and name not in _KNOWN and name not in stored:
            field = field_path(("metadata", "annotations", name))
            near = closest_match(name.removeprefix(_PREFIX), known)
            hint = f"did you mean {_PREFIX + near!r}?" if near else f"valid on this host: {', '.join(sorted(_KNOWN))}"
            raise InvalidSpec(f"{field}: unknown annotation; {hint}", field=field)
