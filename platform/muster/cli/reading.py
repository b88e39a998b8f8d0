"""Files of objects, and what the command line sets over them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from muster.amounts import parse_duration, parse_steps
from muster.cli.clusters import chosen
from muster.cli.printing import aside
from muster.documents import Object, Placed, load_placed
from muster.documents.located import MAX_BYTES
from muster.errors import InvalidSpec, Refused
from muster.local.oversubscription import allowing
from muster.local.submitter import passing
from muster.spec import TrainingJob
from muster.variables import is_secret, read_env


@dataclass(frozen=True, slots=True)
class Overrides:
    """Options of `muster submit` that count instead of what a file says; None leaves the file's word."""

    queue: str | None = None
    priority: int | None = None
    max_runtime: str | None = None
    trace_steps: str | None = None
    namespace: str | None = None
    oversubscribe: bool = False
    pass_names: Sequence[str] = ()  # variables of the user's environment that pods on this host get, too
    variables: Mapping[str, str] = field(default_factory=dict)  # over those of the templates


def environment_overrides(given: Sequence[str], on_host: bool) -> tuple[list[str], dict[str, str]]:
    """What `--env NAME` and `--env NAME=VALUE` mean: (names that the job gets from the user's environment, values that
    are written into the job). On a cluster all are written into the job; secrets are refused there.

    Raises `InvalidSpec` for what is neither, and for a name that is not set.
    """
    names, values = read_env(given, "--env")
    missing = [name for name in names if name not in os.environ]
    if missing:
        raise InvalidSpec(f"--env {missing[0]}: must be set in your environment", field="--env")
    if on_host:
        return names, values
    secret = next((name for name in names if is_secret(name)), None)
    if secret is not None:
        message = (
            f"--env {secret}: would be readable in the job by others of its namespace; make a Secret, and name it in"
        )
        raise InvalidSpec(f"{message} the template: env[].valueFrom.secretKeyRef", field="--env")
    return [], {name: os.environ[name] for name in names} | values


@dataclass(frozen=True, slots=True)
class Read:
    """A job that was read, with the overrides put in, and where it is written."""

    job: TrainingJob
    written: Placed

    @property
    def name(self) -> str:
        """`namespace/name`."""
        return f"{self.job.metadata.namespace or 'default'}/{self.job.metadata.name}"


def read_objects(file: str) -> list[Object]:
    """The objects of one file; `-` is stdin. Raises `InvalidSpec`, `OSError`."""
    return [placed.item for placed in _read(file)]


def _read(file: str) -> list[Placed]:
    """Warns of fields that a cluster may know and this Muster does not; on this host they are refused."""
    newer = chosen() is not None
    if file == "-":
        found = load_placed(sys.stdin.buffer.read(MAX_BYTES + 1), "stdin", newer=newer)
    else:
        with Path(file).open("rb") as stream:
            found = load_placed(stream.read(MAX_BYTES + 1), file, newer=newer)
    for doubt in (doubt for placed in found for doubt in placed.doubts):
        aside(f"warning: {doubt}")
    return found


@contextmanager
def placing(jobs: Sequence[Read]) -> Iterator[None]:
    """Put file and line before whatever these jobs are refused for, where it is known which of them it is."""
    try:
        yield
    except (InvalidSpec, Refused) as error:
        about = next((read for read in jobs if error.job == read.name), jobs[0] if len(jobs) == 1 else None)
        if about is None:
            raise
        of = f"job {about.job.metadata.name}: " if len(jobs) > 1 else ""
        told = f"{about.written.place(error.field)}: {of}{error}"
        raise type(error)(told, field=error.field, reason=error.reason) from error


def read_jobs(file: str, overrides: Overrides) -> list[Read]:
    """The jobs of one file with the overrides put in. Raises `InvalidSpec` when it holds anything else."""
    jobs = []
    for placed in _read(file):
        item = placed.item
        if not isinstance(item, TrainingJob):
            told = (
                f"{file}: {item.kind} {item.metadata.name!r} is no job; `muster apply {file}` takes queues and flavors"
            )
            raise InvalidSpec(told, field="kind")
        job = _with(item, overrides)
        job = passing(allowing(job) if overrides.oversubscribe else job, overrides.pass_names)
        jobs.append(Read(job, placed))
    return jobs


def _with(job: TrainingJob, overrides: Overrides) -> TrainingJob:
    fields: dict[str, Any] = {}
    if overrides.queue is not None:
        fields["queue"] = overrides.queue
    if overrides.priority is not None:
        fields["priority"] = overrides.priority
    if overrides.max_runtime is not None:
        fields["maxRuntimeSeconds"] = parse_duration(overrides.max_runtime, "--max-runtime")
    if overrides.trace_steps is not None:
        start, steps = parse_steps(overrides.trace_steps, "--trace-steps")
        fields["trace"] = {"startStep": start, "steps": steps}
    if not fields and overrides.namespace is None and not overrides.variables:
        return job
    written = job.model_dump(by_alias=True, mode="json", exclude_unset=True)
    written["spec"] |= fields
    for role in written["spec"]["roles"]:
        _set_variables(role["template"]["spec"]["containers"][0], overrides.variables)
    if overrides.namespace is not None:
        written["metadata"]["namespace"] = overrides.namespace
    return _checked(written)


def _set_variables(container: dict[str, Any], variables: Mapping[str, str]) -> None:
    others = [entry for entry in container.get("env") or [] if entry["name"] not in variables]
    if variables:
        container["env"] = others + [{"name": name, "value": value} for name, value in variables.items()]


def _checked(written: dict[str, Any]) -> TrainingJob:
    import json

    text = json.dumps({"apiVersion": "muster.dev/v1alpha1", "kind": "TrainingJob"} | written)
    job = load_placed(text, "options", newer=True)[0].item  # the file itself was checked before
    assert isinstance(job, TrainingJob)
    return job
