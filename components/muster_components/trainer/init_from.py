"""`--init_from`: the first weights of a run are those of another run, or of a safetensors folder.

They are read when the run begins; an attempt that resumes goes on from its own checkpoint. Optimizer, step and order of
samples begin anew.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from muster_components.trainer.checkpoint import Checkpointer
from muster_components.trainer.checkpoint_store import DESCRIPTION, CheckpointCandidate, CheckpointStore
from muster_components.trainer.errors import InputError
from muster_components.trainer.models.interface import TrainModel
from muster_components.trainer.models.recipes import ModelConfig
from muster_components.trainer.models.safetensors_files import INDEX, WEIGHTS, SafetensorsFolder, load_weights
from muster_components.trainer.parallel.sharding import ParallelModel
from muster_components.trainer.rank_failures import on_all_ranks


def find_checkpoints(source: Path) -> list[CheckpointCandidate]:
    """The checkpoints of a run folder, of its folder of checkpoints, or the one that `source` is; newest first. Raises
    InputError."""
    if (source / DESCRIPTION).is_file():
        return [CheckpointCandidate(step=0, path=source)]
    for folder in (source / "checkpoints", source):
        try:
            found = CheckpointStore(folder, attempt=0, keep=1).candidates()
        except ValueError as error:
            raise InputError(str(error)) from error
        if found:
            return found
    return []


def is_safetensors_folder(source: Path) -> bool:
    """Whether it has a model in Hugging Face's layout."""
    return any((source / name).is_file() for name in (WEIGHTS, INDEX))


def load_initial_weights(source: Path, model: TrainModel, parallel: ParallelModel, checkpointer: Checkpointer) -> None:
    """Set the weights of all parts. Every rank calls it. Raises InputError on all ranks if names or shapes differ from
    the model's, TrainerError if nothing can be read."""
    with torch.device("meta"):
        whole = model.build()
    if not is_safetensors_folder(source):
        checkpoints = on_all_ranks(lambda: _require_checkpoints(source))
        checkpointer.load_weights(checkpoints, whole, model.architecture() if is_recipe(model) else None)
        return
    on_all_ranks(lambda: _load_folder(source, model, parallel, whole))


def is_recipe(model: TrainModel) -> bool:
    """Whether its architecture says all that its weights depend on, and nothing else."""
    return isinstance(getattr(model, "config", None), ModelConfig)


def _require_checkpoints(source: Path) -> list[CheckpointCandidate]:
    if found := find_checkpoints(source):
        return found
    problem = "there is no such folder" if not source.is_dir() else f"it has neither checkpoints nor {WEIGHTS}"
    raise InputError(
        f"--init_from must be a run folder, a checkpoint or a folder of safetensors; got {source}: {problem}"
    )


def _load_folder(source: Path, model: TrainModel, parallel: ParallelModel, whole: nn.Module) -> None:
    folder = SafetensorsFolder(source)
    plan = None
    config = getattr(model, "config", None)
    if isinstance(config, ModelConfig):
        from muster_components.trainer.models.recipe_huggingface import recipe_plan

        plan = recipe_plan(config, whole, folder)
    elif config is not None:  # of Transformers
        from muster_components.trainer.models.huggingface_weights import name_plan

        plan = name_plan(whole, folder)
    for part in parallel.parts:
        load_weights(part.model, folder, plan=plan, whole=whole)
