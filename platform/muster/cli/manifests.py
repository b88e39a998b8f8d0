"""Files of objects, and what the command line sets over them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from muster.cli.cluster_options import selected_context
from muster.cli.output import print_note
from muster.env_vars import is_secret_name, parse_env_options
from muster.errors import InvalidSpec, Refused
from muster.local.oversubscription import allow_oversubscription
from muster.local.submission import pass_variables
from muster.spec import TrainingJob
from muster.text.humanize import parse_duration, parse_step_range
from muster.yaml_input import AnyObject, ParsedObject, parse_objects
from muster.yaml_input.source_map import MAX_BYTES


@dataclass(frozen=True, slots=True)
class SpecOverrides:
    """Options of `muster submit` that count instead of what a file says; None leaves the file's word."""

    queue: str | None = None
    priority: int | None = None
    max_runtime: str | None = None
    trace_steps: str | None = None
    namespace: str | None = None
    oversubscribe: bool = False
    pass_names: Sequence[str] = ()  # variables of the user's environment that pods on this host get, too
    variables: Mapping[str, str] = field(default_factory=dict)  # over those of the templates


def parse_env_overrides(given: Sequence[str], on_host: bool) -> tuple[list[str], dict[str, str]]:
    """What `--env NAME` and `--env NAME=VALUE` mean: (names that the job gets from the user's environment, values that
    are written into the job). On a cluster all are written into the job; secrets are refused there.

    Raises `InvalidSpec` for what is neither, and for a name that is not set.
    """
    names, values = parse_env_options(given, "--env")
    missing = [name for name in names if name not in os.environ]
    if missing:
        raise InvalidSpec(f"--env {missing[0]}: must be set in your environment", field="--env")
    if on_host:
        return names, values
    secret = next((name for name in names if is_secret_name(name)), None)
    if secret is not None:
        message = (
            f"--env {secret}: would be readable in the job by others of its namespace; make a Secret, and name it in"
        )
        raise InvalidSpec(f"{message} the template: env[].valueFrom.secretKeyRef", field="--env")
    return [], {name: os.environ[name] for name in names} | values


@dataclass(frozen=True, slots=True)
class LoadedJob:
    """A job that was read, with the overrides put in, and where it is written."""

    job: TrainingJob
    source: ParsedObject

    @property
    def name(self) -> str:
        """`namespace/name`."""
        return f"{self.job.metadata.namespace or 'default'}/{self.job.metadata.name}"


def load_objects(file: str) -> list[AnyObject]:
    """The objects of one file; `-` is stdin. Raises `InvalidSpec`, `OSError`."""
    return [placed.item for placed in _load_documents(file)]


def _load_documents(file: str) -> list[ParsedObject]:
    """Warns of fields that a cluster may know and this Muster does not; on this host they are refused."""
    newer = selected_context() is not None
    if file == "-":
        found = parse_objects(sys.stdin.buffer.read(MAX_BYTES + 1), "stdin", allow_unknown_pod_fields=newer)
    else:
        with Path(file).open("rb") as stream:
            found = parse_objects(stream.read(MAX_BYTES + 1), file, allow_unknown_pod_fields=newer)
    for doubt in (doubt for placed in found for doubt in placed.warnings):
        print_note(f"warning: {doubt}")
    return found


@contextmanager
def locate_errors(jobs: Sequence[LoadedJob]) -> Iterator[None]:
    """Put file and line before whatever these jobs are refused for, where it is known which of them it is."""
    try:
        yield
    except (InvalidSpec, Refused) as error:
        about = next((read for read in jobs if error.job == read.name), jobs[0] if len(jobs) == 1 else None)
        if about is None:
            raise
        of = f"job {about.job.metadata.name}: " if len(jobs) > 1 else ""
        told = f"{about.source.location(error.field)}: {of}{error}"
        raise type(error)(told, field=error.field, reason=error.reason) from error


def load_jobs(file: str, overrides: SpecOverrides) -> list[LoadedJob]:
    """The jobs of one file with the overrides put in. Raises `InvalidSpec` when it holds anything else."""
    jobs = []
    for placed in _load_documents(file):
        item = placed.item
        if not isinstance(item, TrainingJob):
            told = (
                f"{file}: {item.kind} {item.metadata.name!r} is no job; `muster apply {file}` takes queues and flavors"
            )
            raise InvalidSpec(told, field="kind")
        job = _apply_overrides(item, overrides)
        job = pass_variables(allow_oversubscription(job) if overrides.oversubscribe else job, overrides.pass_names)
        jobs.append(LoadedJob(job, placed))
    return jobs


def _apply_overrides(job: TrainingJob, overrides: SpecOverrides) -> TrainingJob:
    fields: dict[str, Any] = {}
    if overrides.queue is not None:
        fields["queue"] = overrides.queue
    if overrides.priority is not None:
        fields["priority"] = overrides.priority
    if overrides.max_runtime is not None:
        fields["maxRuntimeSeconds"] = parse_duration(overrides.max_runtime, "--max-runtime")
    if overrides.trace_steps is not None:
        start, steps = parse_step_range(overrides.trace_steps, "--trace-steps")
        fields["trace"] = {"startStep": start, "steps": steps}
    if not fields and overrides.namespace is None and not overrides.variables:
        return job
    written = job.model_dump(by_alias=True, mode="json", exclude_unset=True)
    written["spec"] |= fields
    for role in written["spec"]["roles"]:
        _set_env(role["template"]["spec"]["containers"][0], overrides.variables)
    if overrides.namespace is not None:
        written["metadata"]["namespace"] = overrides.namespace
    return _validate(written)


def _set_env(container: dict[str, Any], env: Mapping[str, str]) -> None:
    others = [entry for entry in container.get("env") or [] if entry["name"] not in env]
    if env:
        container["env"] = others + [{"name": name, "value": value} for name, value in env.items()]


def _validate(written: dict[str, Any]) -> TrainingJob:
    import json

    text = json.dumps({"apiVersion": "muster.dev/v1alpha1", "kind": "TrainingJob"} | written)
    job = parse_objects(text, "options", allow_unknown_pod_fields=True)[0].item  # the file itself was checked before
    assert isinstance(job, TrainingJob)
    return job
