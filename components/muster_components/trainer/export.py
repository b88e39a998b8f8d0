"""`muster export RUN -o FOLDER`: the newest checkpoint of a recipe as a folder that `from_pretrained` opens.

One tensor at a time is read from the checkpoint, so at most a file of the folder is in memory. Runs on a host without a
GPU.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.state_dict_loader import load

from muster_components.trainer.checkpoint_files import CheckedPlanner, CheckedReader, read_metadata
from muster_components.trainer.checkpoint_manifest import read_digests, verify_files
from muster_components.trainer.checkpoint_store import CheckpointCandidate, read_description
from muster_components.trainer.errors import InputError, TrainerError
from muster_components.trainer.init_from import find_checkpoints
from muster_components.trainer.models.module_tree import unique_tensors
from muster_components.trainer.models.recipes import ModelConfig
from muster_components.trainer.models.safetensors_save import FolderWriter
from muster_components.trainer.models.transformer import RecipeModel


def export(source: Path, target: Path) -> tuple[Path, int]:
    """Write the newest checkpoint of `source` that can be read to `target`; returns which, and the number of its
    parameters. Raises InputError, TrainerError."""
    candidates = find_checkpoints(source)
    if not candidates:
        raise InputError(f"{source} has no checkpoints of Muster's trainer")
    if not FolderWriter.may_replace(target):
        raise InputError(f"{target} exists and is not a model that was saved there")
    problems = []
    for candidate in candidates:
        try:
            return candidate.path, _export(candidate, target)
        except (OSError, ValueError) as error:  # damaged
            problems.append(f"{candidate.path}: {error}")
    raise TrainerError(f"no checkpoint can be read: {'; '.join(problems)}")


def recipe_of(described: dict[str, object]) -> tuple[ModelConfig, int]:
    """The recipe of a checkpoint, and its sequence length. Raises InputError for one of another model."""
    architecture: Any = described.get("model")
    if not isinstance(architecture, dict) or "qkv_rows" not in architecture:
        raise InputError("only recipes are exported; an hf: model is saved by --save_pretrained of the run")
    names = {field.name for field in dataclasses.fields(ModelConfig)}
    fields: Any = {name: value for name, value in architecture.items() if name in names}
    return ModelConfig(name="the recipe", **fields), int(str(described["seq_len"]))


def _export(candidate: CheckpointCandidate, target: Path) -> int:
    described = read_description(candidate.path)
    config, seq_len = recipe_of(described)
    files = read_digests(described)
    if files is not None:
        verify_files(candidate.path, files)
    metadata = read_metadata(candidate.path, None if files is None else {file.name for file in files})
    model = RecipeModel(config, seq_len)
    with torch.device("meta"):
        whole = model.build()
    shapes = dict(unique_tensors(whole))

    def gather(name: str) -> Tensor:
        state = {"model": {name: torch.empty(shapes[name].shape, dtype=shapes[name].dtype)}}
        load(state, storage_reader=CheckedReader(candidate.path, metadata), planner=CheckedPlanner(), no_dist=True)
        return state["model"][name]

    model.save(whole, target, gather=gather)
    return sum(parameter.numel() for parameter in whole.parameters())
