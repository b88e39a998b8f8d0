"""The `muster.dev/...` annotations of a job on this host: names, values, and checks before anything is changed.

The client annotates a job with its working directory and interpreter, so that relative paths and `python` mean on the
host what they meant to the submitter. A job without them starts in / with the daemon's interpreter.
"""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from muster.api import spec
from muster.api.quantity import parse_quantity
from muster.errors import InvalidSpec
from muster.text import closest_match

_PREFIX = "muster.dev/"
WORKING_DIRECTORY_ANNOTATION = _PREFIX + "working-directory"
INTERPRETER_ANNOTATION = _PREFIX + "interpreter"  # the folder of `python`
SUBMISSION_ANNOTATION = _PREFIX + "submission"  # the same for every attempt to send one submission
PASS_ENVIRONMENT_ANNOTATION = _PREFIX + "pass-environment"  # names of additional variables, separated by commas
LOG_LIMIT_ANNOTATION = _PREFIX + "log-limit"  # replaces the daemon's limit; 0 for none
OVERSUBSCRIBE_ANNOTATION = _PREFIX + "oversubscribe"  # allows more processes than a node has cores, or a pod GPUs
SUBMITTER_ANNOTATIONS = frozenset(
    {WORKING_DIRECTORY_ANNOTATION, INTERPRETER_ANNOTATION, SUBMISSION_ANNOTATION, PASS_ENVIRONMENT_ANNOTATION}
)
_KNOWN = SUBMITTER_ANNOTATIONS | {LOG_LIMIT_ANNOTATION, OVERSUBSCRIBE_ANNOTATION}
_MIN_LOG_LIMIT_BYTES = 2**20


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
            field = f'metadata.annotations["{name}"]'
            near = closest_match(name.removeprefix(_PREFIX), known)
            hint = f"did you mean {_PREFIX + near!r}?" if near else f"valid on this host: {', '.join(sorted(_KNOWN))}"
            raise InvalidSpec(f"{field}: unknown annotation; {hint}", field=field)


def annotate_submitter(job: spec.TrainingJob) -> spec.TrainingJob:
    """The job with the annotations of its submission. Existing values are kept, except the submission's id: a job that
    was exported and is submitted again is a new submission."""
    working = {WORKING_DIRECTORY_ANNOTATION: os.getcwd(), INTERPRETER_ANNOTATION: str(Path(sys.executable).parent)}
    return _annotated(job, working | job.metadata.annotations | {SUBMISSION_ANNOTATION: uuid.uuid4().hex})


def pass_variables(job: spec.TrainingJob, names: Sequence[str]) -> spec.TrainingJob:
    """The job with these variables of its submitter's environment in addition to those that every job gets."""
    if not names:
        return job
    passed = ",".join(dict.fromkeys([*passed_variables(job), *names]))
    return _annotated(job, {**job.metadata.annotations, PASS_ENVIRONMENT_ANNOTATION: passed})


def passed_variables(job: spec.TrainingJob) -> list[str]:
    """Names of the variables that the job gets in addition to those that every job gets."""
    names = job.metadata.annotations.get(PASS_ENVIRONMENT_ANNOTATION, "").replace(" ", "").split(",")
    return [name for name in names if name]


def job_log_limit(job: spec.TrainingJob, default: int) -> int:
    """Most bytes that a replica's log may have; 0 for no limit. Raises `InvalidSpec` for an invalid annotation."""
    text = job.metadata.annotations.get(LOG_LIMIT_ANNOTATION)
    if text is None:
        return default
    field = f"metadata.annotations[{LOG_LIMIT_ANNOTATION}]"
    limit = parse_log_limit(text)
    if limit is None:
        raise InvalidSpec(f"{field}: must be 0 or an amount of at least 1Mi, such as 10Gi; got {text!r}", field=field)
    return limit


def parse_log_limit(text: str) -> int | None:
    """Bytes, 0 for no limit; None if the text is invalid."""
    try:
        limit = parse_quantity(text, "memory")
    except ValueError:
        return None
    return limit if limit == 0 or limit >= _MIN_LOG_LIMIT_BYTES else None


def allow_oversubscription(job: spec.TrainingJob) -> spec.TrainingJob:
    """The job with the annotation that allows more processes than cores."""
    return _annotated(job, {**job.metadata.annotations, OVERSUBSCRIBE_ANNOTATION: "true"})


def allows_oversubscription(job: spec.TrainingJob) -> bool:
    """Whether the annotation is true. Raises `InvalidSpec` if it is neither true nor false."""
    text = job.metadata.annotations.get(OVERSUBSCRIBE_ANNOTATION, "false")
    if text not in ("true", "false"):
        field = f"metadata.annotations[{OVERSUBSCRIBE_ANNOTATION}]"
        raise InvalidSpec(f'{field}: must be "true" or "false"; got {text!r}', field=field)
    return text == "true"


def _annotated(job: spec.TrainingJob, annotations: dict[str, str]) -> spec.TrainingJob:
    return job.model_copy(update={"metadata": job.metadata.model_copy(update={"annotations": annotations})})
