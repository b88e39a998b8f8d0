"""Checks of a job's command line before the job is accepted: program, working directory, script, data, processes.

A path that does not exist is more often a typing error than a file that will be there in time, and `--nproc 999` on two
cores is one as well. Only launchers whose arguments are known are parsed: Muster's, torchrun, and torchrun within
`sh -c`, as TorchX's `dist.ddp` starts it.
"""

from __future__ import annotations

import glob
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import PurePath

from muster.api import spec
from muster.api.quantity import whole_cores
from muster.api.spec.pods import pod_request
from muster.cluster import NodeView
from muster.errors import InvalidSpec, Refused
from muster.local.annotations import OVERSUBSCRIBE_ANNOTATION, allows_oversubscription
from muster.local.environment import command_line, find_executable, working_directory
from muster.local.nodes import GPU
from muster.text import did_you_mean

_LAUNCHER_MODULE = "muster_components.launch"
_LAUNCHER_OPTIONS = ("--nproc", "--nnodes")
_TRAINER_MODULE = "muster_components.trainer"
_INSTRUMENT_MODULE = "muster_components.trainer.instrument"
_MAX_DIGITS = 18  # of a number of processes; a longer number, cut to these, still exceeds every node
_NPROC_OPTIONS = {
    _LAUNCHER_MODULE: ("--nproc",),
    "torch.distributed.run": ("--nproc-per-node", "--nproc_per_node"),
    "torch.distributed.launch": ("--nproc-per-node", "--nproc_per_node"),
}


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
        index, own = line.index(argument), len(container.command)
        return f"{path}.command[{index}]" if index < own else f"{path}.args[{index - own}]"

    unknown = unknown_launcher_argument(line)
    if unknown is not None:
        valid = f"valid are {' and '.join(_LAUNCHER_OPTIONS)}, then `--` and the command of each rank"
        hint = did_you_mean(unknown.partition("=")[0], _LAUNCHER_OPTIONS, valid)
        field = field_of(unknown)
        raise InvalidSpec(f"{field}: {_LAUNCHER_MODULE} has no argument {unknown!r}; {hint}", field=field)
    script = script_argument(line)
    if script is not None and not os.path.isfile(os.path.join(cwd, script)):
        field = field_of(script)
        raise InvalidSpec(
            f"{field}: the script {script!r} does not exist in {cwd}; correct the path, or set workingDir", field=field
        )
    data = data_argument(line)
    if data is not None and not _data_exists(data, cwd):
        field = field_of(data if data in line else f"--data={data}")
        raise InvalidSpec(
            f"{field}: --data {data!r} does not exist in {cwd}; give a folder, a file, or a glob such as"
            " 'texts/**/*.txt'",
            field=field,
        )


def script_argument(line: list[str]) -> str | None:
    """The script: the first argument that is the name of a Python file; None after `-m MODULE` and `-c TEXT`, whose
    arguments may be files to write. Muster's launcher has the script after `--`, its tracing module after itself."""
    arguments = _rank_arguments(line[1:])
    if arguments[:2] == ["-m", _INSTRUMENT_MODULE]:
        arguments = arguments[2:]
    for argument in arguments:
        if argument in ("-m", "-c"):
            return None
        if (
            argument.endswith(".py")
            and not argument.startswith("-")
            and "$(" not in argument
            and not _is_inline_code(argument)
        ):
            return argument
    return None


def unknown_launcher_argument(line: list[str]) -> str | None:
    """The first argument that Muster's launcher does not have; None if another program runs."""
    arguments = line[1:]
    if not _runs_launcher(arguments):
        return None
    own = _before_separator(arguments[arguments.index("-m") + 2 :])
    index = 0
    while index < len(own):
        name, is_joined, _ = own[index].partition("=")
        if name not in _LAUNCHER_OPTIONS:
            return own[index]
        index += 1 if is_joined else 2
    return None


def data_argument(line: list[str]) -> str | None:
    """The value of `--data` of Muster's trainer; None if another program runs."""
    arguments = _rank_arguments(line[1:])
    if arguments[:2] != ["-m", _TRAINER_MODULE]:
        return None
    data = None
    for flag, value in zip(arguments, [*arguments[1:], None], strict=True):
        if flag == "--data":
            data = value
        elif flag.startswith("--data="):
            data = flag.removeprefix("--data=")
    return data


def _runs_launcher(arguments: Sequence[str]) -> bool:
    return "-m" in arguments[:-1] and arguments[arguments.index("-m") + 1] == _LAUNCHER_MODULE


def _rank_arguments(arguments: list[str]) -> list[str]:
    """The command of each rank if Muster's launcher runs, else the arguments themselves."""
    if _runs_launcher(arguments) and "--" in arguments:
        return arguments[arguments.index("--") + 1 :]
    return arguments


def _before_separator(arguments: Sequence[str]) -> Sequence[str]:
    return arguments[: arguments.index("--")] if "--" in arguments else arguments


def _data_exists(data: str, cwd: str) -> bool:
    """Whether a folder, a file or a match of a glob exists, as the trainer resolves it."""
    path = os.path.join(cwd, os.path.expanduser(data))
    return os.path.exists(path) or (glob.has_magic(data) and next(glob.iglob(path, recursive=True), None) is not None)


def _is_inline_code(argument: str) -> bool:
    """Whether it is shell or Python code (`-c "import x.py"`) rather than a file name."""
    return any(char in argument for char in " \n;=()'\"")


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


def processes_per_pod(line: Sequence[str]) -> int | None:
    """The number of processes that a command line starts in each pod; None if another program runs, or the number is
    not given (`--nproc_per_node=gpu`)."""
    words = list(line)
    if len(words) > 2 and PurePath(words[0]).name in ("sh", "bash") and words[1] == "-c":
        try:
            words = shlex.split(words[2])
        except ValueError:
            return None
    if words and PurePath(words[0]).name == "torchrun":
        return _option_value(_NPROC_OPTIONS["torch.distributed.run"], words[1:])
    module = words.index("-m") + 1 if "-m" in words[:-1] else len(words)
    options = _NPROC_OPTIONS.get(words[module]) if module < len(words) else None
    return None if options is None else _option_value(options, words[module + 1 :])


def _option_value(options: Sequence[str], arguments: Sequence[str]) -> int | None:
    """The value of the first of these options before `--`, since later arguments may be a script's; 1 without any."""
    own = _before_separator(arguments)
    for index, word in enumerate(own):
        name, joined, value = word.partition("=")
        if name in options:
            text = value if joined else next(iter(own[index + 1 :]), "")
            return int(text.lstrip("0")[:_MAX_DIGITS] or "0") if text.isdecimal() else None
    return 1
