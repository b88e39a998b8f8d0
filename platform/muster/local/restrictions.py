"""What a pod template may not ask of this host, refused by name before anything has changed.

A replica here is a process, not a container: no images, mounts, secrets or second containers. Whatever would silently
be missing at run time is an error now; what only a container could need (the image first) is ignored with a notice.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from muster import spec
from muster.errors import InvalidSpec
from muster.local.environment import command_line, search
from muster.local.submitter import interpreter_environment, working_directory

_REFUSED_OF_POD = {
    "hostPID": "replicas already see this host's processes; leave it out",
    "resourceClaims": "ask for nvidia.com/gpu in resources instead",
}
_REFUSED_OF_CONTAINER = {
    "volumeMounts": "there are no volumes on this host; use paths",
    "volumeDevices": "there are no volumes on this host; use paths",
    "envFrom": "there are no secrets or config maps on this host; write env entries with a literal value",
    "lifecycle": "hooks do not run on this host; handle SIGTERM in the program",
}
_LAUNCHER = "muster_components.launch"
_ATTACHER = "muster_components.trainer.attach"
_IGNORED_OF_POD = ("hostNetwork", "imagePullSecrets", "securityContext", "serviceAccountName")
_IGNORED_OF_CONTAINER = ("image", "livenessProbe", "readinessProbe", "startupProbe", "securityContext")


def check_runs_here(job: spec.TrainingJob, base_environment: Mapping[str, str]) -> list[str]:
    """Notices for the user. Raises `InvalidSpec` with the field, the value and what would be right."""
    if job.spec.priority_class_name is not None:
        raise InvalidSpec(
            f"spec.priorityClassName: {job.spec.priority_class_name!r}: none exist on this host; write priority",
            field="spec.priorityClassName",
        )
    notices: list[str] = []
    for number, role in enumerate(job.spec.roles):
        path = f"spec.roles[{number}].template.spec"
        for field, problem in _problems(role.template.spec):
            raise InvalidSpec(f"{path}.{field}: {problem}", field=f"{path}.{field}")
        environment = interpreter_environment(base_environment, job)
        _check_command(job, role.template.spec.containers[0], environment, f"{path}.containers[0]")
        notices += [f"{path}.{field} is ignored on this host" for field in _ignored(role.template.spec)]
    return notices


def _problems(pod: spec.PodSpec) -> Iterator[tuple[str, str]]:
    if pod.init_containers:
        yield (
            "initContainers",
            f"{pod.init_containers[0].name!r}: init containers do not run on this host; leave them out",
        )
    if len(pod.containers) > 1:
        yield "containers", f"{len(pod.containers)} containers; a replica on this host is one process: write one"
    if pod.volumes:
        yield "volumes", f"{pod.volumes[0].get('name', '')!r}: there are no volumes on this host; use paths"
    yield from _forbidden(pod, _REFUSED_OF_POD, "")
    container = pod.containers[0]
    yield from _forbidden(container, _REFUSED_OF_CONTAINER, "containers[0].")
    for number, variable in enumerate(container.env):
        if "valueFrom" in (variable.model_extra or {}):
            what = (
                "there are no secrets or config maps on this host; write a literal value, or read a file in the program"
            )
            yield f"containers[0].env[{number}].valueFrom", f"{variable.name!r}: {what}"


def _forbidden(part: spec.Open, fields: Mapping[str, str], prefix: str) -> Iterator[tuple[str, str]]:
    for name, instead in fields.items():
        if (part.model_extra or {}).get(name):
            yield f"{prefix}{name}", instead


def _ignored(pod: spec.PodSpec) -> Iterator[str]:
    container = pod.containers[0]
    written = (container.model_extra or {}) | {"image": container.image}
    yield from (name for name in _IGNORED_OF_POD if (pod.model_extra or {}).get(name))
    yield from (f"containers[0].{name}" for name in _IGNORED_OF_CONTAINER if written.get(name))


def _check_command(
    job: spec.TrainingJob, container: spec.Container, base_environment: Mapping[str, str], path: str
) -> None:
    if not container.command:
        raise InvalidSpec(
            f"{path}.command: empty; the image's entry point is not known here: write one, e.g. [python, -m, ...]",
            field=f"{path}.command",
        )
    cwd = working_directory(job, container)
    if not os.path.isdir(cwd):
        raise InvalidSpec(f"{path}.workingDir: {cwd!r} is no folder on this host", field=f"{path}.workingDir")
    environment = dict(base_environment) | {variable.name: variable.value or "" for variable in container.env}
    line = command_line(container, environment)
    if search(line[0], environment["PATH"].split(os.pathsep), cwd) is None:
        raise InvalidSpec(
            f"{path}.command: {line[0]!r} is no program found in {cwd} or on PATH; install it or write its full path",
            field=f"{path}.command",
        )
    script = named_script(line)
    if script is not None and not os.path.isfile(os.path.join(cwd, script)):
        raise InvalidSpec(
            f"{path}.args: the script {script!r} does not exist in {cwd}; write a path that does, or set workingDir",
            field=f"{path}.args",
        )


def named_script(line: list[str]) -> str | None:
    """The first argument that is a Python file's name: the script. Later ones may be files that it writes, and so may
    all that follow `-m MODULE` and `-c TEXT`; of our launcher we know that the script comes after `--`, and of what
    adds traces to a script that it comes next."""
    arguments = line[1:]
    if "-m" in arguments[:-1] and arguments[arguments.index("-m") + 1] == _LAUNCHER and "--" in arguments:
        arguments = arguments[arguments.index("--") + 1 :]
        if arguments[:2] == ["-m", _ATTACHER]:
            arguments = arguments[2:]
    for argument in arguments:
        if argument in ("-m", "-c"):
            return None
        if (
            argument.endswith(".py")
            and not argument.startswith("-")
            and "$(" not in argument
            and not _is_text(argument)
        ):
            return argument
    return None


def _is_text(argument: str) -> bool:
    """A shell or Python text (`-c "import x.py"`), not a file name."""
    return any(char in argument for char in " \n;=()'\"")
