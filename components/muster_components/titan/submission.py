"""What is checked of a job that runs TorchTitan before it is submitted."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from muster_components.titan.config import (
    TitanLayout,
    can_resume,
    check_config,
    installed_version,
    read_config,
    require_resume,
    require_version,
)
from muster_components.trainer.errors import InputError

RESTARTS = 3
"""After failures, of a job that goes on from its checkpoints."""


@dataclass(frozen=True, slots=True)
class CheckedTitan:
    """`name`: of the job. `restarts`: by default. `checkpoint_dir`: where its checkpoints are, empty if that is in the
    run folder, or not known."""

    name: str = "titan"
    restarts: int = 0
    checkpoint_dir: str = ""


def check_titan(arguments: Sequence[str], layout: TitanLayout, *, restarts: int, has_trace: bool) -> CheckedTitan:
    """Check the flags as the job will, with each size that it may have. Where torchtitan is not installed nothing is
    checked: the job does so when it starts. Raises TrainerError."""
    if installed_version() is None:
        if layout.is_elastic:
            raise InputError("an elastic job of TorchTitan can be submitted only where torchtitan is installed")
        return CheckedTitan()
    require_version()
    config = read_config(arguments)
    check_config(config, layout)
    if restarts > 0:
        require_resume(config, f"--max_restarts {restarts}")
    if has_trace and config.profiling.enable_profiling:
        raise InputError("--trace_steps needs no profiling.enable_profiling: a process has one profiler")
    folder = config.job.dump_folder
    return CheckedTitan(
        name=f"titan-{config.model.name}-{config.model.flavor}".lower(),
        restarts=RESTARTS if can_resume(config) else 0,
        checkpoint_dir=os.path.join(folder, config.checkpoint.folder) if os.path.isabs(folder) else "",
    )
