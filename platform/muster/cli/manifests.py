"""Reading manifests, and applying the options of `muster submit` to them."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from muster.api.env_vars import is_secret_name, parse_env_options
from muster.api.spec import TrainingJob
from muster.api.spec.pods import Container, pod_request
from muster.api.yaml_input import AnyObject, ParsedObject, parse_objects
from muster.api.yaml_input.source_map import MAX_BYTES
from muster.cli.options import selected_context
from muster.cli.output import print_note
from muster.errors import InvalidSpec, Refused
from muster.local.command_lines import processes_per_pod, trainer_arguments
from muster.local.environment import allow_oversubscription, pass_variables
from muster.local.nodes import GPU
from muster.text import parse_duration, parse_step_range


@dataclass(frozen=True, slots=True)
class SpecOverrides:
    """Options of `muster submit` that override fields of the manifest; None keeps the manifest's value."""

    queue: str | None = None
    priority: int | None = None
    max_runtime: str | None = None
    trace_steps: str | None = None
    namespace: str | None = None
    oversubscribe: bool = False
    pass_names: Sequence[str] = ()  # variables of the user's environment that pods on this host inherit
    variables: Mapping[str, str] = field(default_factory=dict)  # override env of the pod templates
    name: str | None = None


def parse_env_overrides(given: Sequence[str], on_host: bool) -> tuple[list[str], dict[str, str]]:
    """Parse `--env NAME` and `--env NAME=VALUE` into (names passed from the user's environment, values written into
    the job). For a cluster all values are written into the job, and names of secrets are refused.

    Raises `InvalidSpec` for another form, and for a name that is not set.
    """
    names, values = parse_env_options(given, "--env")
    missing = [name for name in names if name not in os.environ]
    if missing:
        raise InvalidSpec(f"--env {missing[0]}: must be set in your environment", field="--env")
    if on_host:
        return names, values
    secret = next((name for name in names if is_secret_name(name)), None)
    if secret is not None:
        message = f"--env {secret}: must not be a credential: others in the namespace can read the job's spec"
        raise InvalidSpec(f"{message}; use a Secret with env[].valueFrom.secretKeyRef in the template", field="--env")
    return [], {name: os.environ[name] for name in names} | values


@dataclass(frozen=True, slots=True)
class LoadedJob:
    """A job with its overrides applied, and its source location."""

    job: TrainingJob
    source: ParsedObject

    @property
    def name(self) -> str:
        return f"{self.job.metadata.namespace or 'default'}/{self.job.metadata.name}"


def load_objects(file: str) -> list[AnyObject]:
    """Objects of one file; `-` is stdin. Raises `InvalidSpec`, `OSError`."""
    return [parsed.item for parsed in _load_documents(file)]


def read_manifest(file: str) -> bytes:
    """The text of one file; `-` is stdin. Raises `OSError`."""
    if file == "-":
        return sys.stdin.buffer.read(MAX_BYTES + 1)
    with Path(file).open("rb") as stream:
        return stream.read(MAX_BYTES + 1)


def _load_documents(file: str, text: bytes | None = None, *, generate_names: bool = False) -> list[ParsedObject]:
    """Parse a file. Unknown pod fields are a warning for a cluster, which may be newer, and an error on this host."""
    text = read_manifest(file) if text is None else text
    source, allow_unknown = "stdin" if file == "-" else file, selected_context() is not None
    found = parse_objects(text, source, allow_unknown_pod_fields=allow_unknown, generate_names=generate_names)
    for warning in (warning for parsed in found for warning in parsed.warnings):
        print_note(f"warning: {warning}")
    return found


@contextmanager
def locate_errors(jobs: Sequence[LoadedJob]) -> Iterator[None]:
    """Prefix a refusal with file and line of the job that it concerns, if that is known."""
    try:
        yield
    except (InvalidSpec, Refused) as error:
        about = next((read for read in jobs if error.job == read.name), jobs[0] if len(jobs) == 1 else None)
        if about is None:
            raise
        of = f"job {about.job.metadata.name}: " if len(jobs) > 1 else ""
        message = f"{about.source.location(error.field)}: {of}{error}"
        raise type(error)(message, field=error.field, reason=error.reason) from error


def load_jobs(file: str, overrides: SpecOverrides, text: bytes | None = None) -> list[LoadedJob]:
    """The jobs of one file, whose `text` was perhaps read already, with the overrides applied. Raises `InvalidSpec` if
    it contains another kind."""
    jobs = []
    for parsed in _load_documents(file, text, generate_names=True):
        item = parsed.item
        if not isinstance(item, TrainingJob):
            message = (
                f"{file}: kind: must be TrainingJob; got {item.kind} {item.metadata.name!r};"
                f" apply queues and flavors with: muster apply {file}"
            )
            raise InvalidSpec(message, field="kind")
        job = _apply_overrides(item, overrides)
        job = pass_variables(allow_oversubscription(job) if overrides.oversubscribe else job, overrides.pass_names)
        jobs.append(LoadedJob(job, parsed))
    return jobs


def check_trainer_flags(read: LoadedJob) -> None:
    """Raises `InvalidSpec` if a role starts Muster's trainer with flags that the trainer of this version rejects for
    its ranks, or with the steps of `spec.trace`. Flags with variables that the kubelet expands are not checked."""
    trace = read.job.spec.trace
    traced = [] if trace is None else [f"--trace_steps={trace.start_step}:{trace.start_step + trace.steps}"]
    for index, role in enumerate(read.job.spec.roles):
        container = role.template.spec.containers[0]
        line = [*container.command, *container.args]
        flags = trainer_arguments(line)
        if flags is None or any("$(" in flag for flag in flags):
            continue
        # By name: no package of `muster` needs the trainer's, and a job may run with another version of it.
        rejection = partial(
            importlib.import_module("muster_components.trainer.submission").rejection,
            min_pods=role.min_replicas or role.replicas,
            pods=role.replicas,
            processes=processes_per_pod(line),
            on_gpus=bool(pod_request(role.template.spec).get(GPU)),
            has_trace_variable=trace is not None or _may_have_trace_variable(container),
        )
        field = f"spec.roles[{index}].template.spec.containers[0].{'args' if container.args else 'command'}"
        why = rejection([*traced, *flags])  # once: with `--device`, it measures the model
        if why is not None and traced:
            own = rejection(flags)
            why, field = (why, "spec.trace.startStep") if own is None else (own, field)
        if why is not None:
            error = InvalidSpec(f"{field}: {why}", field=field)
            error.job = read.name
            raise error


def _may_have_trace_variable(container: Container) -> bool:
    names = {variable.name for variable in container.env}
    return "MUSTER_TRACE_STEPS" in names or "envFrom" in (container.model_extra or {})


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
    if not fields and overrides.namespace is None and overrides.name is None and not overrides.variables:
        return job
    written = job.model_dump(by_alias=True, mode="json", exclude_unset=True)
    written["spec"] |= fields
    for role in written["spec"]["roles"]:
        _set_env(role["template"]["spec"]["containers"][0], overrides.variables)
    if overrides.name is not None:
        written["metadata"]["name"] = overrides.name
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
    job = parse_objects(text, "options", allow_unknown_pod_fields=True)[0].item  # unknown fields were checked at load
    assert isinstance(job, TrainingJob)
    return job
