"""What a job asks for beyond its AppDef: queue, priority, times, where to run, what to trace.

One table. A component sets AppDef metadata (`muster.dev/queue`), a person writes `-cfg queue=...`, which wins; both
take the same text, so options serve `dist.ddp` as well as our own components.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, List  # noqa: UP035  (TorchX 0.7.0 compares with typing.List)

from muster.forms import read_duration, read_window
from muster.nearest import meant
from muster.torchx.forms import (
    read_flag,
    read_json_list,
    read_list,
    read_names,
    read_positive,
    read_ranks,
    read_topology,
    read_whole,
)
from muster.torchx.refusal import SubmissionRefused

PREFIX = "muster.dev/"
_CLUSTER, _HOST = "muster", "muster_local"


@dataclass(frozen=True, slots=True)
class Setting:
    """One thing to ask for. `type`: of the run option, None where there is none; `read`: text to the field's value."""

    key: str
    field: str  # of TrainingJobSpec; ".x" for what is put together elsewhere
    read: Callable[[str], Any]
    help: str
    type: Any = None
    only: str | None = None  # the scheduler that has it, where others have not

    @property
    def metadata_key(self) -> str:
        """As a component writes it: `muster.dev/max-runtime`."""
        return PREFIX + self.key.replace("_", "-")


SETTINGS = (
    Setting("queue", "queue", str.strip, "queue that the job waits in (default: default)", str),
    Setting("priority", "priority", read_whole, "higher goes first within the queue (default: 0)", int),
    Setting(
        "max_runtime",
        "maxRuntimeSeconds",
        read_duration,
        "longest time from admission, such as 2h; tells others when room is free and lets the job backfill",
        str,
    ),
    Setting(
        "start_timeout", "startTimeoutSeconds", read_duration, "longest time until all pods are up (default: 10m)", str
    ),
    Setting(
        "stall_timeout", "stallTimeoutSeconds", read_duration, "no step for so long is a failure (default: none)", str
    ),
    Setting("flavors", "flavors", read_list, "kinds of node, tried in order (default: all of the queue)", List[str]),  # noqa: UP006
    Setting("topology", "topology", read_topology, "REQUIRED[:PREFERRED] level in common, such as block:rack", str),
    Setting("trace_steps", ".window", read_window, "FIRST:END steps to profile, such as 20:25 (default: none)", str),
    Setting(
        "namespace",
        ".namespace",
        str.strip,
        "namespace of the job (default: default, in a cluster that of the context)",
        str,
    ),
    Setting("min_replicas", ".least", read_positive, "fewest pods of the role; makes it elastic (default: as -j)", int),
    Setting(
        "oversubscribe",
        ".oversubscribe",
        read_flag,
        "allow more processes than a node has CPU cores or a pod GPUs (default: false)",
        bool,
    ),
    Setting(
        "env",
        ".env",
        read_names,
        "variables of your environment that the pods get besides the usual ones, such as AWS_PROFILE;NETRC",
        List[str],  # noqa: UP006
        _HOST,
    ),
    Setting("priority_class", ".priority_class", str.strip, "PriorityClass whose value is the priority", str, _CLUSTER),
    Setting("service_account", ".service_account", str.strip, "service account of the pods", str, _CLUSTER),
    Setting(
        "image_pull_secrets",
        ".image_pull_secrets",
        read_list,
        "secrets that open the registry",
        list[str],
        _CLUSTER,
    ),
    Setting(
        "run_volume",
        ".run_volume",
        str.strip,
        "PersistentVolumeClaim that keeps the run folder, checkpoints above all (default: gone with each pod)",
        str,
        _CLUSTER,
    ),
    Setting("context", ".context", str.strip, "context of the kubeconfig (default: $MUSTER_CONTEXT)", str, _CLUSTER),
    Setting("kubeconfig", ".kubeconfig", str.strip, "kubeconfig (default: $KUBECONFIG)", str, _CLUSTER),
    Setting("trace_ranks", ".ranks", read_ranks, "ranks to profile, such as 0,3; all when empty"),
    Setting("grace", ".grace", read_duration, "time between SIGTERM and SIGKILL, such as 60s"),
    Setting("failure_rules", ".rules", read_json_list, "failurePolicy.rules of the TrainingJob, as JSON"),
    Setting("ttl", "ttlSecondsAfterFinished", read_duration, "how long the record stays after the end"),
)


def settings_of(cfg: Mapping[str, object], metadata: Mapping[str, object]) -> dict[str, Any]:
    """Values by field of TrainingJobSpec: what `cfg` says, else what the app's metadata says; an empty option takes
    back what the metadata says. Raises SubmissionRefused that names the option, its text and what would be right."""
    _refuse_unknown(metadata)
    found: dict[str, Any] = {}
    for setting in SETTINGS:
        for name, source in ((setting.key, cfg), (setting.metadata_key, metadata)):
            given = source.get(name)
            if given is not None:
                if given != "":
                    found[setting.field] = _read(setting, name, given)
                break
    return found


def _read(setting: Setting, name: str, given: object) -> Any:
    text = ",".join(map(str, given)) if isinstance(given, list | tuple) else str(given)
    try:
        return setting.read(text)
    except ValueError as error:
        raise SubmissionRefused(f"{name}: {text!r} {error}") from error


def _refuse_unknown(metadata: Mapping[str, object]) -> None:
    known = [setting.metadata_key for setting in SETTINGS]
    for key in metadata:
        if key.startswith(PREFIX) and key not in known:
            raise SubmissionRefused(f"metadata {key}: Muster knows no such key; {_nearest(key, known)}")


def _nearest(name: str, known: Iterable[str]) -> str:
    known = sorted(known)
    return meant(name, known, f"there are {', '.join(known)}")
