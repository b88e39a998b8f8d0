"""Checks whether this host can run a job, before anything is changed: supported fields, program, queue, size.

A replica here is a process, not a container: there are no images, volumes, secrets or second containers. A field whose
effect would silently be missing at run time is refused; one that only a container needs, such as the image, is ignored
with a notice.

A path that does not exist is more often a typing error than a file that will be there in time, and `--nproc 999` on two
cores is one as well.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from muster.api import spec
from muster.api.quantity import whole_cores
from muster.api.spec.pods import pod_request
from muster.api.validation import check_size
from muster.api.yaml_input import AnyObject
from muster.api.yaml_input.field_errors import field_path
from muster.api.yaml_input.unknown_fields import unknown_in_template
from muster.cluster import NodeView
from muster.errors import InvalidSpec, Refused, together
from muster.kinds.trainingjob.submit import KnownObjects, check_submit
from muster.local.command_lines import (
    INSTRUMENT_MODULE,
    LAUNCHER_MODULE,
    LAUNCHER_OPTIONS,
    data_argument,
    misspelled_module,
    processes_per_pod,
    records_traces,
    script_argument,
    unknown_launcher_argument,
    wrong_launcher_value,
)
from muster.local.environment import (
    OVERSUBSCRIBE_ANNOTATION,
    allows_oversubscription,
    check_annotations,
    command_line,
    find_executable,
    interpreter_environment,
    process_text_problem,
    working_directory,
)
from muster.local.nodes import GPU
from muster.state.projection import AllowedNamespaces, queues_in_use, to_flavor, to_node
from muster.text import did_you_mean

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
    may_record = job.spec.trace is None
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
        may_record = may_record or _may_record_traces(job, role.template.spec.containers[0], environment)
        notices += [f"{path}.{field} is ignored on this host" for field in _ignored_fields(role.template.spec)]
    if not may_record:
        raise InvalidSpec(
            "spec.trace: no trace would be recorded: the script is started without Muster's trainer or instrument;"
            f" start it with: python -m {LAUNCHER_MODULE} -- -m {INSTRUMENT_MODULE} SCRIPT args...",
            field="spec.trace",
        )
    return notices


def _may_record_traces(job: spec.TrainingJob, container: spec.Container, environment: Mapping[str, str]) -> bool:
    """Whether the program of this container may record traces, as far as its command line and its script tell."""
    line = command_line(container, environment)
    script = script_argument(line)
    if script is None:
        return records_traces(line, None)
    try:
        with open(os.path.join(working_directory(job, container), script), errors="replace") as file:
            return records_traces(line, file.read(_MAX_SCRIPT_CHARS))
    except OSError:
        return True


_MAX_SCRIPT_CHARS = 1_000_000


def check_fits(job: spec.TrainingJob, nodes: Sequence[NodeView], known: KnownObjects, now: float) -> None:
    """Raises `Refused` for a job whose queue or flavors do not exist, or that is too large for quota or nodes."""
    labels = namespace_labels(job.metadata.namespace or "default")
    gang = check_submit(job, replace(known, namespace_labels=labels), now)
    flavors = list(known.flavors.values())
    planner_nodes = [to_node(view, flavors) for view in nodes]
    planner_flavors = [to_flavor(flavor) for flavor in flavors]
    refused: list[Refused] = []
    for check in (
        partial(check_processes, job, nodes),
        partial(check_size, gang, known.queues.values(), planner_flavors, planner_nodes),
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
        elif problem := process_text_problem(f"{variable.name}={variable.value or ''}"):
            yield f"{field}.value", problem
    for part, texts in (("command", container.command), ("args", container.args)):
        for number, text in enumerate(texts):
            if problem := process_text_problem(text):
                yield f"containers[0].{part}[{number}]", f"{problem}; it begins with {text[:60]!r}"


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


def used_queues(jobs: Iterable[spec.TrainingJob], queues: Iterable[spec.Queue]) -> set[str]:
    """Queues that jobs of this host keep from being removed (`queues_in_use`)."""
    uses = ((job.spec.queue, job.metadata.namespace or "default", job.status) for job in jobs)
    return queues_in_use(uses, AllowedNamespaces(tuple(queues), {}))  # namespaces have no labels but their names


def check_program(
    job: spec.TrainingJob, container: spec.Container, base_environment: Mapping[str, str], path: str
) -> None:
    """Raises `InvalidSpec` if the program, its script, data or working directory does not exist; `path` is the
    container's field in the job."""
    if not container.command:
        raise InvalidSpec(
            f"{path}.command: must not be empty, since no image's entry point is used on this host;"
            " an example: [python, -m, ...]",
            field=f"{path}.command",
        )
    cwd = working_directory(job, container)
    if not os.path.isdir(cwd):
        field = f"{path}.workingDir"
        raise InvalidSpec(f"{field}: must be a folder on this host; got {cwd!r}", field=field)
    environment = dict(base_environment) | {variable.name: variable.value or "" for variable in container.env}
    line = command_line(container, environment)
    if find_executable(line[0], environment["PATH"].split(os.pathsep), cwd) is None:
        raise InvalidSpec(
            f"{path}.command: program {line[0]!r} not found in {cwd} or on PATH; install it or use its full path",
            field=f"{path}.command",
        )

    def field_of(argument: str) -> str:
        """The field that contains this part of the command line."""
        index = next(at for at, word in enumerate(line) if argument in word)  # of `sh -c TEXT`: within TEXT
        own = len(container.command)
        return f"{path}.command[{index}]" if index < own else f"{path}.args[{index - own}]"

    misspelled = misspelled_module(line)
    if misspelled is not None and not _has_module(misspelled[0], environment.get("PYTHONPATH", ""), cwd):
        field = field_of(misspelled[0])
        message = f"there is no module {misspelled[0]!r}; did you mean {misspelled[1]!r}?"
        raise InvalidSpec(f"{field}: {message}", field=field)
    unknown = unknown_launcher_argument(line)
    if unknown is not None:
        valid = f"valid are {' and '.join(LAUNCHER_OPTIONS)}, then `--` and the command of each rank"
        hint = did_you_mean(unknown.partition("=")[0], LAUNCHER_OPTIONS, valid)
        field = field_of(unknown)
        raise InvalidSpec(f"{field}: {LAUNCHER_MODULE} has no argument {unknown!r}; {hint}", field=field)
    wrong = wrong_launcher_value(line)
    if wrong is not None:
        field = field_of(wrong[0])
        message = f"{wrong[0]} of {LAUNCHER_MODULE} must be an integer of at least 1; got {wrong[1]!r}"
        raise InvalidSpec(f"{field}: {message}", field=field)
    script = script_argument(line)
    if script is not None and not os.path.isfile(os.path.join(cwd, script)):
        field = field_of(script)
        raise InvalidSpec(f"{field}: the script {script!r} does not exist in {cwd}; correct the path", field=field)
    data = data_argument(line)
    if data is not None and not _data_exists(data, cwd):
        field = field_of(data if data in line else f"--data={data}")
        raise InvalidSpec(
            f"{field}: --data {data!r} does not exist in {cwd}; give a folder, a file, or a glob such as"
            " 'texts/**/*.txt'",
            field=field,
        )


def _has_module(name: str, python_path: str, cwd: str) -> bool:
    """Whether a user's own module has this name."""
    paths = (os.path.join(cwd, folder, *name.split(".")) for folder in ("", *python_path.split(os.pathsep)))
    return any(os.path.isfile(f"{path}.py") or os.path.isdir(path) for path in paths)


_DATASET_REFERENCE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def _data_exists(data: str, cwd: str) -> bool:
    """Whether a folder, a file or a match of a glob exists, as the trainer resolves it, or it names a Python object."""
    if _DATASET_REFERENCE.fullmatch(data):
        return True
    path = os.path.join(cwd, os.path.expanduser(data))
    return os.path.exists(path) or (glob.has_magic(data) and next(glob.iglob(path, recursive=True), None) is not None)


def check_processes(job: spec.TrainingJob, nodes: Sequence[NodeView]) -> None:
    """Raises `Refused` Oversubscribed if a pod starts more processes than it requests GPUs or, without GPUs, than every
    node has CPU cores (a part of a core counts as one); `InvalidSpec` for an invalid annotation."""
    if allows_oversubscription(job) or not nodes:
        return
    largest = max(nodes, key=lambda node: (node.allocatable.get("cpu"), node.name))
    cores = whole_cores(largest.allocatable.get("cpu"))
    for number, role in enumerate(job.spec.roles):
        container, gpus = role.template.spec.containers[0], pod_request(role.template.spec).get(GPU)
        processes = processes_per_pod([*container.command, *container.args])
        if processes is None or processes <= (gpus or cores):
            continue
        limit = f"the pod requests {gpus} GPUs" if gpus else f"the largest node, {largest.name}, has {cores} CPU cores"
        raise Refused(
            f"role {role.name}: {processes} processes per pod, but {limit}; use at most {gpus or cores}, or allow more"
            " with --oversubscribe, -cfg oversubscribe=true (TorchX) or the annotation "
            f'{OVERSUBSCRIBE_ANNOTATION}: "true"',
            field=f"spec.roles[{number}].template.spec.containers[0]",
            reason="Oversubscribed",
        )
