"""Builds the job of `muster run` from a command line: a script, a module, a shell command, or a script from stdin.

Python programs start once per process through Muster's launcher and `instrument`, as torchrun would start them, with
heartbeats and traces. Another command starts once per node.
"""

from __future__ import annotations

import os
import re
import secrets
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path, PurePath
from typing import Any

from muster.api.job_documents import to_kubernetes_name, with_suffix
from muster.api.quantity import parse_quantity, whole_cores
from muster.cli.output import usage_error
from muster.local.command_lines import INSTRUMENT_MODULE, LAUNCHER_MODULE
from muster.local.nodes import GPU
from muster.text import parse_duration, parse_future_time

ROLE = "trainer"
_GRACE_S = 60  # to save a checkpoint when the job is preempted or stopped
_USAGE_EXIT_CODES = [2]  # of argparse, Python and the launcher: a retry would fail again
_SHEBANG = re.compile(r"#!\s*(\S[^\n]*)")
_PYTHON = re.compile(r"python[\d.]*")
_OUTCOMES = {"ok": "Succeeded", "any": "Any", "notok": "NotSucceeded"}
_ARRAY_RANGE = re.compile(r"(\d{1,5})(?:-(\d{1,5})(?::(\d{1,5}))?)?")
_CPU_SHARE = 0.9  # of a node's cores, for the GPUs that a pod requests: pods that run on every node need some, too


@dataclass(frozen=True, slots=True)
class RunProgram:
    """The command of `muster run`. `is_python`: started once per process. `words`: script or `-m MODULE` and arguments,
    or the words of another command. `script`: index in `words` of the file that the run should have a copy of."""

    words: tuple[str, ...]
    is_python: bool
    label: str
    script: int | None = None
    stdin: str | None = None


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of `muster run`, as given."""

    name: str | None = None
    processes: int | None = None
    nodes: int = 1
    gpus: int | None = None
    queue: str | None = None
    priority: int | None = None
    time: str | None = None
    namespace: str | None = None
    image: str | None = None
    max_restarts: int = 0
    after: tuple[str, ...] = ()
    singleton: str | None = None
    begin: str | None = None
    deadline: str | None = None
    cancel_if_unsatisfiable: bool = False
    array: str | None = None


@dataclass(frozen=True, slots=True)
class CodePlace:
    """Where pods find the code: the words of the program there, and variables of the pods."""

    words: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)


def parse_program(words: Sequence[str], stdin: str | None, folder: Path) -> RunProgram:
    """What a command line starts. Raises `InvalidSpec` Usage if nothing, or if a Python script does not exist."""
    given = list(words[1:] if words[:1] == ("--",) else words)
    if len(given) > 1 and _PYTHON.fullmatch(PurePath(given[0]).name) and (given[1] == "-m" or given[1].endswith(".py")):
        given = given[1:]  # `python train.py` is train.py
    if not given or given == ["-m"]:
        usage_error("must name what to run: train.py ARGS, -m MODULE ARGS, a shell command, or - for stdin", "command")
    first = given[0]
    if stdin is not None:
        return _stdin_program(stdin, given[1:])
    if first == "-m":
        return RunProgram(tuple(given), True, given[1].rpartition(".")[2])
    if first.endswith(".py"):
        if not (folder / first).is_file():
            usage_error(f"script {first!r} does not exist in {folder}; correct the path", "command")
        return RunProgram(tuple(given), True, PurePath(first).stem, script=0)
    if first.startswith("-"):
        usage_error(f"{first!r} is not an option of `muster run`; options of your program come after its name", first)
    if len(given) == 1 and re.search(r"[\s;|&<>()$`]", first):
        label = PurePath((shlex.split(first) if _is_splittable(first) else [first.split()[0]])[0]).stem
        return RunProgram(("sh", "-c", first), False, label)
    named = (at for at, word in enumerate(given) if not word.startswith("-") and (folder / word).is_file())
    script = next(named, None)
    label = PurePath(first if script is None else given[script]).stem
    return RunProgram(tuple(given), False, label, script)


def _is_splittable(text: str) -> bool:
    try:
        return bool(shlex.split(text))
    except ValueError:
        return False


def _stdin_program(text: str, arguments: Sequence[str]) -> RunProgram:
    if not text.strip():
        usage_error("-: stdin is empty; it must have a script", "command")
    shebang = _SHEBANG.match(text)
    interpreter = shlex.split(shebang[1]) if shebang else ["python"]
    if any(_PYTHON.fullmatch(PurePath(word).name) for word in interpreter):
        return RunProgram(("-", *arguments), True, "stdin", script=0, stdin=text)
    return RunProgram((*interpreter, "-", *arguments), False, "stdin", script=len(interpreter), stdin=text)


def build_document(
    program: RunProgram, options: RunOptions, place: CodePlace, nodes: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """The TrainingJob as in YAML. `nodes` are rows of `muster nodes`; empty if they may not be read."""
    processes, gpus, cpus = _size(program, options, nodes)
    command = list(place.words)
    if program.is_python:
        start = ["python", "-m", LAUNCHER_MODULE, "--nproc", str(processes), "--", "-m", INSTRUMENT_MODULE]
        command = [*start, *place.words]
    container: dict[str, Any] = {"name": ROLE, "command": command}
    if options.image:
        container["image"] = options.image
    if place.env:
        container["env"] = [{"name": name, "value": value} for name, value in place.env.items()]
    requests = {"cpu": str(cpus)} if cpus else {}
    container["resources"] = {"requests": requests | ({GPU: str(gpus)} if gpus else {})}
    if gpus:
        container["resources"]["limits"] = {GPU: str(gpus)}
    pod = {"terminationGracePeriodSeconds": _GRACE_S, "containers": [container]}
    rules = [{"onExitCodes": _USAGE_EXIT_CODES, "action": "FailJob"}]
    policy: dict[str, Any] = {"maxRestarts": options.max_restarts}
    spec: dict[str, Any] = {"failurePolicy": policy | ({"rules": rules} if options.max_restarts else {})}
    if options.queue is not None:
        spec["queue"] = options.queue
    if options.priority is not None:
        spec["priority"] = options.priority
    if options.time is not None:
        spec["maxRuntimeSeconds"] = parse_duration(options.time, "--time")
    if options.array is not None:
        spec["array"] = parse_array(options.array)
    spec |= _start_conditions(options, time.time())
    spec["roles"] = [{"name": ROLE, "replicas": options.nodes, "template": {"spec": pod}}]
    metadata: dict[str, Any] = {"name": options.name or unique_name(program.label)}
    if options.namespace is not None:
        metadata["namespace"] = options.namespace
    return {"apiVersion": "muster.dev/v1alpha1", "kind": "TrainingJob", "metadata": metadata, "spec": spec}


def _start_conditions(options: RunOptions, now: float) -> dict[str, Any]:
    """The fields of the spec that say when the job may start."""
    fields: dict[str, Any] = {}
    if options.after:
        fields["dependsOn"] = [_dependency(text) for text in options.after]
    if options.singleton is not None:
        fields["singleton"] = options.singleton
    for name, option, text in (
        ("beginTime", "--begin", options.begin),
        ("startDeadline", "--deadline", options.deadline),
    ):
        if text is not None:
            at = datetime.fromtimestamp(parse_future_time(text, now, option), UTC)
            if option == "--deadline" and at.timestamp() <= now:
                usage_error(f"--deadline: must be in the future; got {text!r}", "--deadline")
            fields[name] = at.isoformat(timespec="seconds").replace("+00:00", "Z")
    if options.cancel_if_unsatisfiable:
        fields["cancelIfUnsatisfiable"] = True
    return fields


def parse_array(text: str) -> dict[str, Any]:
    """The fields of `0-99%10` or `0-12:4`, as Slurm has it. Raises `InvalidSpec` Usage."""
    ranges, limit, parallelism = text.partition("%")
    parts = [_ARRAY_RANGE.fullmatch(part) for part in ranges.split(",")]
    if not all(parts) or (limit and not parallelism.isdecimal()):
        usage_error(f"--array: must be indices such as 0-99, 1,5-9 or 0-99:10, and %N for at most N at a time; got"
                    f" {text!r}", "--array")  # fmt: skip
    indices = []
    for part in filter(None, parts):
        first, last, step = part.groups()
        if step is None or last is None:
            indices.append(part[0])
        else:
            if int(step) < 1 or int(last) < int(first):
                why = "step must be at least 1" if int(step) < 1 else f"last index of {part[0]} is below its first one"
                usage_error(f"--array: {why}; got {text!r}", "--array")
            indices.extend(map(str, range(int(first), int(last) + 1, int(step))))
    return {"indices": ",".join(indices), **({"parallelism": int(parallelism)} if limit else {})}


def _dependency(text: str) -> dict[str, Any]:
    """The entry of `JOB` or `JOB:ok|any|notok|corr`. Raises `InvalidSpec` Usage."""
    name, _, word = text.partition(":")
    if not name or word not in ("", "corr", *_OUTCOMES):
        usage_error(f"--after: must be JOB or JOB:ok, JOB:any, JOB:notok, JOB:corr; got {text!r}", "--after")
    if word == "corr":
        return {"job": name, "eachIndex": True}
    return {"job": name, **({"outcome": _OUTCOMES[word]} if word else {})}


def unique_name(label: str) -> str:
    """A new name for a job: the label and six random characters, short enough for every pod name."""
    return with_suffix(to_kubernetes_name(label), secrets.token_hex(3), 40)


def _size(program: RunProgram, options: RunOptions, nodes: Sequence[dict[str, Any]]) -> tuple[int, int, int]:
    """Processes, GPUs and cores of each pod. Without --gpus: one GPU per process if a node has as many."""
    processes = options.processes or max(options.gpus or 1, 1)
    amounts = [node["allocatable"] for node in nodes]
    sizes = [(parse_quantity(one.get(GPU, "0"), GPU), parse_quantity(one.get("cpu", "0"), "cpu")) for one in amounts]
    gpus = options.gpus
    if gpus is None:
        gpus = processes if any(of_node >= processes for of_node, _ in sizes) else 0
    if not program.is_python and options.processes is not None and options.gpus is None:
        usage_error(
            "-n: must be used with a Python script or module, which starts once per process; another command starts"
            " once per node: use --gpus for the GPUs of a node",
            "-n",
        )
    if gpus:
        shares = [whole_cores(int(cpu * _CPU_SHARE)) * gpus // of_node for of_node, cpu in sizes if of_node >= gpus]
        return processes, gpus, max(min(shares, default=processes), 1)
    most = max((whole_cores(cpu) for _, cpu in sizes), default=processes)
    return processes, gpus, min(processes, most)


def environment_path(folder: Path, root: Path, copy: str) -> str:
    """PYTHONPATH of the run: this process's, with folders of the code replaced by those of its copy."""
    entries = []
    for entry in filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)):
        path = (folder / entry).resolve()
        inside = path == root.resolve() or root.resolve() in path.parents
        entries.append(str(PurePath(copy, path.relative_to(root.resolve()))) if inside else str(path))
    return os.pathsep.join(entries)
