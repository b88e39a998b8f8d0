"""Settings of a job beyond its AppDef: queue, priority, timeouts, placement, tracing; and the run options for them.

A component sets them as AppDef metadata (`muster.dev/queue`), a user as options (`-cfg queue=...`), which take
precedence. Both have the same text form, so options also work with other components such as `dist.ddp`. Each parser
returns a value of `muster.api.spec`, or raises ValueError with the valid form.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, List  # noqa: UP035  (TorchX 0.7.0 compares with typing.List)

from torchx.specs import CfgVal, runopts
from torchx.util.types import to_dict

from muster.api.env_vars import is_valid_name
from muster.text import did_you_mean, is_count, read_duration, read_step_range
from muster.torchx.errors import SubmissionRefused, UnknownOption

PREFIX = "muster.dev/"
_KUBERNETES_BACKEND, _LOCAL_BACKEND = "muster", "muster_local"


def parse_int(text: str) -> int:
    """An integer, possibly negative."""
    if not re.fullmatch(r"[+-]?\d{1,18}", text):
        raise ValueError("must be an integer such as 0 or 100")
    return int(text)


def parse_replica_count(text: str) -> int:
    """A positive integer."""
    if not is_count(text) or int(text) < 1:
        raise ValueError("must be a positive number of pods such as 2")
    return int(text)


def parse_step_count(text: str) -> int:
    """A positive number of steps."""
    if not is_count(text) or int(text) < 1:
        raise ValueError("must be a positive number of steps such as 500")
    return int(text)


def parse_factor(text: str) -> float:
    """A factor that a trace accepts."""
    try:
        factor = float(text)
    except ValueError:
        factor = math.nan
    if not 1.1 <= factor <= 100:
        raise ValueError("must be from 1.1 to 100, such as 1.5")
    return factor


def parse_bool(text: str) -> bool:
    """`true` or `false`, in any case."""
    if text.lower() not in ("true", "false"):
        raise ValueError("must be true or false")
    return text.lower() == "true"


def parse_list(text: str) -> list[str]:
    """`a,b` or `a;b`, or a JSON list of texts."""
    if text.lstrip().startswith("["):
        entries = parse_json_list(text)
        if not all(isinstance(entry, str) for entry in entries):
            raise ValueError("must contain only strings, such as h200,a100")
        return [str(entry) for entry in entries]
    return [entry.strip() for entry in re.split("[,;]", text) if entry.strip()]


def parse_pod_security(text: str) -> str:
    """`restricted` or `privileged`."""
    if text not in ("restricted", "privileged"):
        raise ValueError("must be restricted or privileged")
    return text


def parse_env_names(text: str) -> list[str]:
    """Names of environment variables, as `A;B`."""
    names = parse_list(text)
    for name in names:
        if not is_valid_name(name):
            raise ValueError("must be names of environment variables such as A;B; set values in the component's env")
    return names


def parse_json_list(text: str) -> list[object]:
    """A JSON list."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ValueError(f"must be a JSON list such as [] ({error})") from None
    if not isinstance(value, list):
        raise ValueError("must be a JSON list such as []")
    return value


def parse_topology(text: str) -> dict[str, str]:
    """`block` requires one domain of that level, `:rack` prefers one, `block:rack` does both."""
    required, _, preferred = (part.strip() for part in text.partition(":"))
    if ":" in preferred or not (required or preferred):
        raise ValueError("must be REQUIRED, :PREFERRED or REQUIRED:PREFERRED, such as block:rack")
    return {key: level for key, level in (("required", required), ("preferred", preferred)) if level}


def parse_ranks(text: str) -> list[int]:
    """`0,3`; empty means all."""
    parts = parse_list(text)
    if not all(is_count(part) for part in parts):
        raise ValueError("must be a list of ranks such as 0,3, or empty for all")
    return sorted({int(part) for part in parts})


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting. `parse` converts its text to the field's value; `option_type` is None if it is not a run option."""

    key: str
    field: str  # of TrainingJobSpec; ".x" is not a field of the spec
    parse: Callable[[str], Any]
    help: str
    option_type: Any = None
    backend: str | None = None  # the only scheduler with this option; None: both

    @property
    def metadata_key(self) -> str:
        """The key in AppDef metadata: `muster.dev/max-runtime`."""
        return PREFIX + self.key.replace("_", "-")


SETTINGS = (
    Setting("queue", "queue", str.strip, "queue that the job waits in (default: default)", str),
    Setting("priority", "priority", parse_int, "higher goes first within the queue (default: 0)", int),
    Setting(
        "max_runtime",
        "maxRuntimeSeconds",
        read_duration,
        "maximum run time from admission, such as 2h; enables backfill",
        str,
    ),
    Setting(
        "start_timeout", "startTimeoutSeconds", read_duration, "longest time until all pods are up (default: 10m)", str
    ),
    Setting(
        "stall_timeout",
        "stallTimeoutSeconds",
        read_duration,
        "time without a step, after the first one, that counts as a failure (default: none)",
        str,
    ),
    Setting(
        "first_step_timeout",
        "firstStepTimeoutSeconds",
        read_duration,
        "longest time from the start to the first step, with compilation (default: none)",
        str,
    ),
    Setting(
        "checkpoint_dir",
        "checkpointDir",
        str.strip,
        "folder in the pods with the job's own checkpoints, absolute or in the run folder (default: the run folder)",
        str,
    ),
    Setting("flavors", "flavors", parse_list, "flavors, tried in order (default: all of the queue)", List[str]),  # noqa: UP006
    Setting("topology", "topology", parse_topology, "REQUIRED[:PREFERRED] topology level, such as block:rack", str),
    Setting(
        "trace_steps",
        ".trace_window",
        read_step_range,
        "FIRST:END steps to profile, such as 20:25 (default: none)",
        str,
    ),
    Setting(
        "namespace",
        ".namespace",
        str.strip,
        "namespace of the job (default: default, in a cluster that of the context)",
        str,
    ),
    Setting(
        "min_replicas",
        ".min_replicas",
        parse_replica_count,
        "fewest pods of the role; makes it elastic (default: as -j)",
        int,
    ),
    Setting(
        "oversubscribe",
        ".oversubscribe",
        parse_bool,
        "allow more processes than a node has CPU cores or a pod GPUs (default: false)",
        bool,
    ),
    Setting(
        "env",
        ".env",
        parse_env_names,
        "additional variables of your environment for the pods, such as AWS_PROFILE;NETRC",
        List[str],  # noqa: UP006
        _LOCAL_BACKEND,
    ),
    Setting(
        "priority_class",
        ".priority_class",
        str.strip,
        "PriorityClass whose value is the priority",
        str,
        _KUBERNETES_BACKEND,
    ),
    Setting("service_account", ".service_account", str.strip, "service account of the pods", str, _KUBERNETES_BACKEND),
    Setting(
        "image_pull_secrets",
        ".image_pull_secrets",
        parse_list,
        "image pull secrets of the pods",
        List[str],  # noqa: UP006
        _KUBERNETES_BACKEND,
    ),
    Setting(
        "run_volume",
        ".run_volume",
        str.strip,
        "PersistentVolumeClaim for the run folder with its checkpoints (default: deleted with each pod)",
        str,
        _KUBERNETES_BACKEND,
    ),
    Setting(
        "pod_security",
        ".pod_security",
        parse_pod_security,
        "restricted: the pods pass this Pod Security Standard, as those of Muster's components do by default; "
        "privileged: for an image that runs as root (default)",
        str,
        _KUBERNETES_BACKEND,
    ),
    Setting(
        "host_users",
        ".host_users",
        parse_bool,
        "false: the pods have a user namespace of their own (hostUsers; default: true)",
        bool,
        _KUBERNETES_BACKEND,
    ),
    Setting(
        "workspace",
        ".workspace",
        str.strip,
        "folder whose files the pods get as their working directory, without an image build (default: none)",
        str,
        _KUBERNETES_BACKEND,
    ),
    Setting(
        "context",
        ".context",
        str.strip,
        "context of the kubeconfig (default: $MUSTER_CONTEXT)",
        str,
        _KUBERNETES_BACKEND,
    ),
    Setting("kubeconfig", ".kubeconfig", str.strip, "kubeconfig (default: $KUBECONFIG)", str, _KUBERNETES_BACKEND),
    Setting("trace_ranks", ".ranks", parse_ranks, "ranks to profile, such as 0,3; all when empty"),
    Setting(
        "trace_every", ".trace_every", parse_step_count, "profile as many steps again every N steps; once when empty"
    ),
    Setting(
        "trace_when_slower",
        ".trace_when_slower",
        parse_factor,
        "profile as many steps also after a step that takes so many times the median of the last 100, such as 1.5",
    ),
    Setting("grace", ".grace", read_duration, "time between SIGTERM and SIGKILL, such as 60s"),
    Setting("failure_rules", ".rules", parse_json_list, "failurePolicy.rules of the TrainingJob, as JSON"),
    Setting("ttl", "ttlSecondsAfterFinished", read_duration, "time after which a finished job is deleted"),
)

_COMPONENT_ARGUMENTS = frozenset({"queue", "priority", "max_runtime"})
"""Settings that Muster's components take as arguments, which they write into the metadata unchecked."""


def resolve_settings(cfg: Mapping[str, object], metadata: Mapping[str, object]) -> dict[str, Any]:
    """Values by field of TrainingJobSpec, from `cfg`, else from the app's metadata; an empty option unsets the
    metadata's value. Raises SubmissionRefused with the option, its text and the valid form."""
    _check_metadata_keys(metadata)
    found: dict[str, Any] = {}
    for setting in SETTINGS:
        for name, source in ((setting.key, cfg), (setting.metadata_key, metadata)):
            given = source.get(name)
            if given is not None:
                if given != "":
                    is_argument = source is metadata and setting.key in _COMPONENT_ARGUMENTS
                    shown = f"--{setting.key} or metadata {name}" if is_argument else name
                    found[setting.field] = _parse_setting(setting, shown, given)
                break
    return found


def _parse_setting(setting: Setting, name: str, given: object) -> Any:
    text = ",".join(map(str, given)) if isinstance(given, list | tuple) else str(given)
    try:
        return setting.parse(text)
    except ValueError as error:
        raise SubmissionRefused(f"{name}: {text!r} {error}") from error


def _check_metadata_keys(metadata: Mapping[str, object]) -> None:
    known = [setting.metadata_key for setting in SETTINGS]
    for key in metadata:
        if key.startswith(PREFIX) and key not in known:
            raise SubmissionRefused(f"metadata {key}: unknown key; {_suggestion(key, known)}")


def _suggestion(name: str, known: Iterable[str]) -> str:
    known = sorted(known)
    return did_you_mean(name, known, f"valid keys: {', '.join(known)}")


class StrictRunOptions(runopts):  # type: ignore[misc]  # TorchX is not typed
    """Refuses unknown options, which TorchX 0.7.0 drops silently.

    TorchX prints errors of `resolve`, but errors of `cfg_from_str` end in a traceback. So `cfg_from_str` keeps invalid
    options and `resolve` refuses them.
    """

    def __init__(self, scheduler: str) -> None:
        super().__init__()
        self._scheduler = scheduler

    def cfg_from_str(self, cfg_str: str) -> dict[str, CfgVal]:
        """The options of a `-cfg` text; values that cannot be parsed remain strings."""
        given: dict[str, CfgVal] = to_dict(cfg_str)
        if any(self.get(key) is None for key in given):
            return given
        try:
            read: dict[str, CfgVal] = super().cfg_from_str(cfg_str)
        except ValueError:
            return given
        return read

    def resolve(self, cfg: Mapping[str, CfgVal], **how: Any) -> dict[str, CfgVal]:
        """The options with defaults. Raises UnknownOption for an unknown option."""
        names = [name for name, _ in self]
        for key in cfg:
            if self.get(key) is None:
                hint = did_you_mean(key, names, f"valid options: {', '.join(names)}")
                raise UnknownOption(f"`{key}` is not an option of {self._scheduler}; {hint}", key, cfg)
        resolved: dict[str, CfgVal] = super().resolve(cfg, **how)
        return resolved


def run_options(scheduler: str) -> StrictRunOptions:
    """All options of a scheduler, from the one table of settings."""
    options = StrictRunOptions(scheduler)
    for setting in SETTINGS:
        if setting.option_type is None or (setting.backend is not None and setting.backend != scheduler):
            continue
        options.add(setting.key, type_=setting.option_type, default=None, help=setting.help)
    return options
