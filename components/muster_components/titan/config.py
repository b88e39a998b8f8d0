"""The configuration of TorchTitan, read by TorchTitan itself, and what Muster requires of it. Checked when a job is
submitted, where torchtitan is installed, and again when it starts."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from muster_components.trainer.errors import InputError, MissingTorchError

VERSION: Final = "0.2.2"
"""The TorchTitan that this works with: it has no stable interface."""
_ANSI: Final = re.compile(r"\x1b\[[0-9;]*m")
_FRAME: Final = " │╭╮╰╯─\t"


@dataclass(frozen=True, slots=True)
class TitanLayout:
    """`min_pods` (of an elastic job) to `pods` pods with so many processes each."""

    min_pods: int
    pods: int
    processes: int

    @property
    def is_elastic(self) -> bool:
        """Whether the number of ranks may change between attempts."""
        return self.min_pods < self.pods


def installed_version() -> str | None:
    """That of torchtitan; None if it is not installed."""
    try:
        return version("torchtitan")
    except PackageNotFoundError:
        return None


def require_version() -> None:
    """Raises MissingTorchError without torchtitan, InputError for another version."""
    found = installed_version()
    if found is None:
        raise MissingTorchError(f"TorchTitan is not installed: pip install torchtitan=={VERSION}")
    if found != VERSION:
        raise InputError(f"TorchTitan must be version {VERSION}; got {found}: pip install torchtitan=={VERSION}")


def read_config(arguments: Sequence[str]) -> Any:
    """TorchTitan's JobConfig from its flags, and the TOML file that they name. Raises InputError."""
    from torchtitan.config import ConfigManager

    output = io.StringIO()
    try:
        with contextlib.redirect_stderr(output), contextlib.redirect_stdout(output):
            return ConfigManager().parse_args(list(arguments))
    except SystemExit as ended:
        if not ended.code:
            raise InputError(f"--help: run python -m torchtitan.config.manager --help\n{output.getvalue()}") from None
        raise InputError(f"TorchTitan rejects its flags: {_plain(output.getvalue())}") from None
    except Exception as error:  # of TOML, of a value, or of the user's own module
        raise InputError(
            f"TorchTitan rejects its configuration: {_plain(str(error)) or type(error).__name__}"
        ) from error


def check_config(config: Any, layout: TitanLayout) -> None:
    """Raises InputError for what TorchTitan, or Muster with it, cannot run."""
    checkpoint = config.checkpoint
    if config.comm.mode != "default":
        raise InputError(f"comm.mode must be default: the others train nothing; got {config.comm.mode!r}")
    if config.fault_tolerance.enable:
        raise InputError("fault_tolerance.enable must be false: TorchFT's replicas are not supported")
    if checkpoint.enable and checkpoint.keep_latest_k == 1:
        raise InputError("checkpoint.keep_latest_k must be 0 or at least 2; got 1")
    if checkpoint.load_step != -1:
        raise InputError(
            "checkpoint.load_step must be -1: each attempt goes on from the newest checkpoint. To begin with another "
            "one, give checkpoint.initial_load_path, checkpoint.no_initial_load_model_only and another job.dump_folder"
        )
    _check_model(config)
    for pods in range(layout.min_pods, layout.pods + 1):
        _check_degrees(config.parallelism, pods * layout.processes)
    if layout.is_elastic:
        require_resume(config, "an elastic job (-j MIN:MAXxN)")
        if "dataloader" not in checkpoint.exclude_from_loading:
            raise InputError(
                "checkpoint.exclude_from_loading must contain dataloader in an elastic job: TorchTitan cannot divide "
                "the position in the data among another number of ranks. Without it each attempt reads the data from "
                "the beginning"
            )


def require_resume(config: Any, what: str) -> None:
    """Raises InputError if an attempt would not go on from the checkpoint of the one before."""
    for problem, needs in (
        (not config.checkpoint.enable, "checkpoint.enable"),
        (config.checkpoint.load_only, "no checkpoint.load_only"),
    ):
        if problem:
            raise InputError(f"{what} needs {needs}: it goes on from the newest checkpoint")


def can_resume(config: Any) -> bool:
    """Whether an attempt goes on from the newest checkpoint of the one before."""
    return bool(config.checkpoint.enable and not config.checkpoint.load_only)


def _check_model(config: Any) -> None:
    if config.experimental.custom_import:
        return  # it may register models
    from torchtitan.experiments import _supported_experiments
    from torchtitan.models import _supported_models

    known = sorted({*_supported_models, *_supported_experiments})
    if config.model.name not in known:
        raise InputError(f"model.name must be one of {', '.join(known)}; got {config.model.name!r}")
    if config.model.name == "flux":
        raise InputError("model.name must not be flux: it has a trainer of its own")


def _check_degrees(degrees: Any, world_size: int) -> None:
    names = (
        ("data_parallel_replicate_degree", degrees.data_parallel_replicate_degree),
        ("data_parallel_shard_degree", degrees.data_parallel_shard_degree),
        ("context_parallel_degree", degrees.context_parallel_degree),
        ("tensor_parallel_degree", degrees.tensor_parallel_degree),
        ("pipeline_parallel_degree", degrees.pipeline_parallel_degree),
    )
    shown = ", ".join(f"{name}={value}" for name, value in names if value != 1)
    product = 1
    for name, value in names:
        if value < 1 and (name, value) != ("data_parallel_shard_degree", -1):
            raise InputError(f"parallelism.{name} must be at least 1; got {value}")
        product *= max(value, 1)
    if degrees.data_parallel_shard_degree == -1:
        if world_size % product:
            raise InputError(f"the parallelism degrees must divide the number of ranks, {world_size}; got {shown}")
    elif product != world_size:
        raise InputError(
            f"the parallelism degrees must multiply to the number of ranks, {world_size}; got {shown or 'all 1'}; "
            "data_parallel_shard_degree=-1 takes what is left"
        )


def _plain(text: str) -> str:
    """Text of a terminal, without colors and frames, in one line."""
    lines = (line.strip(_FRAME) for line in _ANSI.sub("", text).splitlines())
    return " ".join(" ".join(line for line in lines if line).split())
