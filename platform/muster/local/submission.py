"""What a client notes on a job about whoever submits it, so that it means on this host what it meant to them.

Relative paths are relative to where they stood, and `python` is the interpreter they use, not the one that happened to
start the daemon. The notes are annotations; a job that comes without them starts in / with the daemon's interpreter.
"""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from muster import spec
from muster.local.environment import submitted_environment

WORKING_DIRECTORY_ANNOTATION = "muster.dev/working-directory"
INTERPRETER_ANNOTATION = "muster.dev/interpreter"  # the folder of `python`
SUBMISSION_ANNOTATION = "muster.dev/submission"  # the same for all tries of one submit, in case the daemon broke off
PASS_ENVIRONMENT_ANNOTATION = (
    "muster.dev/pass-environment"  # names of variables, separated by commas, that the job gets besides the usual
)
SUBMITTER_ANNOTATIONS = frozenset(
    {WORKING_DIRECTORY_ANNOTATION, INTERPRETER_ANNOTATION, SUBMISSION_ANNOTATION, PASS_ENVIRONMENT_ANNOTATION}
)


def annotate_submitter(job: spec.TrainingJob) -> spec.TrainingJob:
    """The job with our notes. What it has already stays, but for the mark: a job that was written out with it and is
    submitted again is another submission."""
    notes = {WORKING_DIRECTORY_ANNOTATION: os.getcwd(), INTERPRETER_ANNOTATION: str(Path(sys.executable).parent)}
    annotations = notes | job.metadata.annotations | {SUBMISSION_ANNOTATION: uuid.uuid4().hex}
    metadata = job.metadata.model_copy(update={"annotations": annotations})
    return job.model_copy(update={"metadata": metadata})


def pass_variables(job: spec.TrainingJob, names: Sequence[str]) -> spec.TrainingJob:
    """The job with a note that it gets these variables of its submitter's environment, too."""
    if not names:
        return job
    annotations = {
        **job.metadata.annotations,
        PASS_ENVIRONMENT_ANNOTATION: ",".join(dict.fromkeys([*passed_variables(job), *names])),
    }
    return job.model_copy(update={"metadata": job.metadata.model_copy(update={"annotations": annotations})})


def passed_variables(job: spec.TrainingJob) -> list[str]:
    """Names of the variables that the job is to get besides the usual ones."""
    return [
        name
        for name in job.metadata.annotations.get(PASS_ENVIRONMENT_ANNOTATION, "").replace(" ", "").split(",")
        if name
    ]


def submitter_environment(job: spec.TrainingJob) -> dict[str, str]:
    """What the job gets of our own environment. Raises `InvalidSpec` for a variable that it asks for and is not set."""
    return submitted_environment(os.environ, str(Path(sys.executable).parent), passed_variables(job))


def working_directory(job: spec.TrainingJob, container: spec.Container) -> str:
    """Where a replica starts: workingDir, relative to where its user stood."""
    stood = job.metadata.annotations.get(WORKING_DIRECTORY_ANNOTATION, "/")
    return os.path.normpath(os.path.join(stood, container.working_dir or "."))


def interpreter_environment(base: Mapping[str, str], job: spec.TrainingJob) -> dict[str, str]:
    """`base` with the user's interpreter first on PATH, and its virtual environment if it is one."""
    folder = job.metadata.annotations.get(INTERPRETER_ANNOTATION)
    if folder is None:
        return dict(base)
    others = [other for other in base["PATH"].split(os.pathsep) if other != folder]
    environment = {name: value for name, value in base.items() if name != "VIRTUAL_ENV"}
    if (Path(folder).parent / "pyvenv.cfg").exists():
        environment["VIRTUAL_ENV"] = str(Path(folder).parent)
    return environment | {"PATH": os.pathsep.join([folder, *others])}
