"""Checks whether this host can run a job, before anything is changed: supported fields, queue, size.

A replica here is a process, not a container: there are no images, volumes, secrets or second containers. A field whose
effect would silently be missing at run time is refused; one that only a container needs, such as the image, is ignored
with a notice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from muster.api import spec
from muster.api.validation import check_size, check_submit
from muster.api.yaml_input import AnyObject
from muster.api.yaml_input.field_errors import field_path
from muster.api.yaml_input.unknown_fields import unknown_in_template
from muster.cluster import NodeView
from muster.errors import InvalidSpec, Refused, together
from muster.local.annotations import check_annotations
from muster.local.environment import interpreter_environment
from muster.local.programs import check_processes, check_program
from muster.state.nodes import to_flavor, to_node
from muster.workload.trainingjob import to_gang

_REFUSED_POD_FIELDS = {
    "hostPID": "replicas already see this host's processes; leave it out",
}
_REFUSED_CONTAINER_FIELDS = {
    "volumeMounts": "there are no volumes on this host; use paths",
    "volumeDevices": "there are no volumes on this host; use paths",
    "envFrom": "there are no secrets or config maps on this host; write env entries with a literal value",
    "lifecycle": "hooks do not run on this host; handle SIGTERM in the program",
}
_IGNORED_POD_FIELDS = ("hostNetwork", "imagePullSecrets", "securityContext", "serviceAccountName")
_IGNORED_CONTAINER_FIELDS = ("image", "livenessProbe", "readinessProbe", "startupProbe", "securityContext")


def check_local_support(
    job: spec.TrainingJob, base_environment: Mapping[str, str], old: spec.TrainingJob | None = None
) -> list[str]:
    """Check annotations, pod template and program; returns notices for the user. `old` is the stored job. Raises
    `InvalidSpec` with the field, the value and what is valid."""
    if job.spec.priority_class_name is not None:
        raise InvalidSpec(
            f"spec.priorityClassName: must be omitted, as this host has none; got {job.spec.priority_class_name!r};"
            " set priority",
            field="spec.priorityClassName",
        )
    check_annotations(job, old)
    notices: list[str] = []
    for number, role in enumerate(job.spec.roles):
        template = role.template.model_dump(by_alias=True, exclude_unset=True)
        for unknown in unknown_in_template(template, ("spec", "roles", number, "template")):
            field = field_path(unknown.path)
            raise InvalidSpec(f"{field}: {unknown.message}", field=field)
        path = f"spec.roles[{number}].template.spec"
        for field, problem in _unsupported_fields(role.template.spec):
            raise InvalidSpec(f"{path}.{field}: {problem}", field=f"{path}.{field}")
        environment = interpreter_environment(base_environment, job)
        check_program(job, role.template.spec.containers[0], environment, f"{path}.containers[0]")
        notices += [f"{path}.{field} is ignored on this host" for field in _ignored_fields(role.template.spec)]
    return notices


def check_fits(
    job: spec.TrainingJob,
    nodes: Sequence[NodeView],
    queues: Sequence[spec.Queue],
    flavors: Sequence[spec.Flavor],
    now: float,
) -> None:
    """Raises `Refused` for a job whose queue or flavors do not exist, or that is too large for quota or nodes."""
    check_submit(job, queues, flavors, namespace_labels(job.metadata.namespace or "default"))
    gang = to_gang(job, now, {})
    planner_nodes = [to_node(view, flavors) for view in nodes]
    planner_flavors = [to_flavor(flavor) for flavor in flavors]
    refused: list[Refused] = []
    for check in (
        partial(check_processes, job, nodes),
        partial(check_size, gang, queues, planner_flavors, planner_nodes),
    ):
        try:
            check()
        except Refused as error:
            refused.append(error)
    if refused:
        raise together(refused)


def _unsupported_fields(pod: spec.PodSpec) -> Iterator[tuple[str, str]]:
    if pod.init_containers:
        yield (
            "initContainers",
            f"{pod.init_containers[0].name!r}: init containers do not run on this host; leave them out",
        )
    if len(pod.containers) > 1:
        yield "containers", f"must be one, since a replica on this host is one process; got {len(pod.containers)}"
    if pod.volumes:
        yield "volumes", f"{pod.volumes[0].get('name', '')!r}: there are no volumes on this host; use paths"
    yield from _refused_fields(pod, _REFUSED_POD_FIELDS, "")
    container = pod.containers[0]
    yield from _refused_fields(container, _REFUSED_CONTAINER_FIELDS, "containers[0].")
    for number, variable in enumerate(container.env):
        if "valueFrom" in (variable.model_extra or {}):
            hint = (
                "there are no secrets or config maps on this host; set a literal value, or read a file in the program"
            )
            yield f"containers[0].env[{number}].valueFrom", f"{variable.name!r}: {hint}"
    yield from _invalid_process_fields(container)


def _invalid_process_fields(container: spec.Container) -> Iterator[tuple[str, str]]:
    """Values with which no process can be started."""
    for number, variable in enumerate(container.env):
        field = f"containers[0].env[{number}]"
        if not variable.name or "=" in variable.name or "\0" in variable.name:
            yield f"{field}.name", f"must be a name without '=' and the character NUL; got {variable.name!r}"
        if "\0" in (variable.value or ""):
            yield f"{field}.value", "must not contain the character NUL"
    for part, texts in (("command", container.command), ("args", container.args)):
        for number, text in enumerate(texts):
            if "\0" in text:
                yield f"containers[0].{part}[{number}]", f"must not contain the character NUL; got {text[:60]!r}"


def _refused_fields(part: spec.ExtensibleModel, fields: Mapping[str, str], prefix: str) -> Iterator[tuple[str, str]]:
    for name, message in fields.items():
        if _field_values(part).get(name):
            yield f"{prefix}{name}", message


def _field_values(part: spec.ExtensibleModel) -> dict[str, object]:
    """Fields by their names in the API, including undeclared ones."""
    fields = type(part).model_fields.items()
    return {field.alias or name: getattr(part, name) for name, field in fields} | (part.model_extra or {})


def _ignored_fields(pod: spec.PodSpec) -> Iterator[str]:
    of_pod, of_container = _field_values(pod), _field_values(pod.containers[0])
    yield from (name for name in _IGNORED_POD_FIELDS if of_pod.get(name))
    yield from (f"containers[0].{name}" for name in _IGNORED_CONTAINER_FIELDS if of_container.get(name))


def check_unique_names(documents: Sequence[AnyObject]) -> None:
    """Raises `InvalidSpec` if two objects of one kind have the same name and namespace."""
    seen: set[tuple[str, str, str]] = set()
    for item in documents:
        key = (item.kind, item.metadata.namespace or "default", item.metadata.name)
        if key in seen:
            message = f"metadata.name: must be unique; {item.kind} {item.metadata.name!r} is given twice"
            raise InvalidSpec(message, field="metadata.name")
        seen.add(key)


def namespace_labels(name: str) -> dict[str, str]:
    """The label that Kubernetes sets on every namespace; the only one on this host."""
    return {"kubernetes.io/metadata.name": name}
