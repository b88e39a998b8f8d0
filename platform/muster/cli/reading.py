"""Files of objects, and what the command line sets over them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from muster.amounts import parse_duration, parse_steps
from muster.cli.clusters import chosen
from muster.cli.printing import aside
from muster.documents import Object, Placed, load_placed
from muster.documents.located import MAX_BYTES
from muster.errors import InvalidSpec, Refused
from muster.local.oversubscription import allowing
from muster.spec import TrainingJob


@dataclass(frozen=True, slots=True)
class Overrides:
    """Options of `muster submit` that count instead of what a file says; None leaves the file's word."""

    queue: str | None = None
    priority: int | None = None
    max_runtime: str | None = None
    trace_steps: str | None = None
    namespace: str | None = None
    oversubscribe: bool = False


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
        jobs.append(Read(allowing(job) if overrides.oversubscribe else job, placed))
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
    if not fields and overrides.namespace is None:
        return job
    written = job.model_dump(by_alias=True, mode="json", exclude_unset=True)
    written["spec"] |= fields
    if overrides.namespace is not None:
        written["metadata"]["namespace"] = overrides.namespace
    return _checked(written)


def _checked(written: dict[str, Any]) -> TrainingJob:
    import json

    text = json.dumps({"apiVersion": "muster.dev/v1alpha1", "kind": "TrainingJob"} | written)
    job = load_placed(text, "options", newer=True)[0].item  # the file itself was checked before
    assert isinstance(job, TrainingJob)
    return job
