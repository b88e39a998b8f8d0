"""How many processes a pod starts, compared with what a node has: `--nproc 999` on two cores is a typing error.

Only launchers whose arguments are known are looked at: ours, torchrun, and torchrun within `sh -c`, as TorchX's
`dist.ddp` starts it.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import PurePath

from muster import spec
from muster.cluster import NodeView
from muster.errors import InvalidSpec, Refused
from muster.local.capacity import GPU
from muster.quantity import whole_cores
from muster.snapshot import pod_request

OVERSUBSCRIBE_ANNOTATION = "muster.dev/oversubscribe"
"""The annotation of a job that may start more processes than a node has CPU cores, or a pod has GPUs."""
_MAX_DIGITS = 18  # of a number of processes; cut to these, a longer one is still more than any node has
_LAUNCHERS = {
    "muster_components.launch": ("--nproc",),
    "torch.distributed.run": ("--nproc-per-node", "--nproc_per_node"),
    "torch.distributed.launch": ("--nproc-per-node", "--nproc_per_node"),
}


def check_processes(job: spec.TrainingJob, nodes: Sequence[NodeView]) -> None:
    """Raise `Refused` Oversubscribed when a pod starts more processes than it asks for GPUs or, without GPUs, than any
    node has CPU cores (a part of a core counts as one). Raises `InvalidSpec` for an annotation that is neither true nor
    false."""
    if allows_oversubscription(job) or not nodes:
        return
    largest = max(nodes, key=lambda node: (node.allocatable.get("cpu"), node.name))
    cores = whole_cores(largest.allocatable.get("cpu"))
    for number, role in enumerate(job.spec.roles):
        container, gpus = role.template.spec.containers[0], pod_request(role.template.spec).get(GPU)
        processes = processes_per_pod([*container.command, *container.args])
        if processes is None or processes <= (gpus or cores):
            continue
        limit = f"the pod asks for {gpus} GPUs" if gpus else f"the largest node, {largest.name}, has {cores} CPU cores"
        raise Refused(
            f"role {role.name}: {processes} processes a pod, but {limit}; write at most {gpus or cores}, or allow more"
            " with --oversubscribe, -cfg oversubscribe=true (TorchX) or the annotation "
            f'{OVERSUBSCRIBE_ANNOTATION}: "true"',
            field=f"spec.roles[{number}].template.spec.containers[0]",
            reason="Oversubscribed",
        )


def allow_oversubscription(job: spec.TrainingJob) -> spec.TrainingJob:
    """The job with the annotation that allows more processes than cores."""
    annotations = {**job.metadata.annotations, OVERSUBSCRIBE_ANNOTATION: "true"}
    return job.model_copy(update={"metadata": job.metadata.model_copy(update={"annotations": annotations})})


def processes_per_pod(line: Sequence[str]) -> int | None:
    """How many processes a command line starts in each pod; None where another program runs, or it does not say a
    number (`--nproc_per_node=gpu`)."""
    words = list(line)
    if len(words) > 2 and PurePath(words[0]).name in ("sh", "bash") and words[1] == "-c":
        try:
            words = shlex.split(words[2])
        except ValueError:
            return None
    if words and PurePath(words[0]).name == "torchrun":
        return _option_value(_LAUNCHERS["torch.distributed.run"], words[1:])
    module = words.index("-m") + 1 if "-m" in words[:-1] else len(words)
    options = _LAUNCHERS.get(words[module]) if module < len(words) else None
    return None if options is None else _option_value(options, words[module + 1 :])


def _option_value(options: Sequence[str], arguments: Sequence[str]) -> int | None:
    """The value of the first of these options before `--`, since later words may be a script's; 1 without any."""
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    for place, word in enumerate(own):
        name, joined, value = word.partition("=")
        if name in options:
            given = value if joined else next(iter(own[place + 1 :]), "")
            return int(given.lstrip("0")[:_MAX_DIGITS] or "0") if given.isdecimal() else None
    return 1


def allows_oversubscription(job: spec.TrainingJob) -> bool:
    """What the annotation says. Raises `InvalidSpec` if it is neither true nor false."""
    output = job.metadata.annotations.get(OVERSUBSCRIBE_ANNOTATION, "false")
    if output not in ("true", "false"):
        field = f"metadata.annotations[{OVERSUBSCRIBE_ANNOTATION}]"
        raise InvalidSpec(f'{field}: must be "true" or "false"; got {output!r}', field=field)
    return output == "true"
