"""Weights in safetensors files: streamed into plain and sharded models, and saved so that Transformers opens them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.trainer.conftest import Starter

from muster_components.trainer.errors import InputError, TrainerError

if TYPE_CHECKING:
    import torch
    from torch import nn

pytestmark = pytest.mark.slow  # imports torch

SHARDED = """
import sys, torch
import torch.distributed as dist
from pathlib import Path
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import AutoConfig, AutoModelForCausalLM

from muster_components.trainer.models.module_tree import unique_tensors
from muster_components.trainer.models.safetensors_files import SafetensorsFolder, load_weights
from muster_components.trainer.models.safetensors_save import save_weights

source, target = sys.argv[1:]
dist.init_process_group("gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
mesh = init_device_mesh("cpu", (world_size,))
with torch.device("meta"):
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(source))
for block in model.model.layers:
    fully_shard(block, mesh=mesh)
fully_shard(model, mesh=mesh)
model.to_empty(device="cpu")

elements = 0
class Counted(SafetensorsFolder):
    def read(self, names):
        def counted(part):
            def read_part(index):
                global elements
                tensor = part(index)
                elements += tensor.numel()
                return tensor
            return read_part
        return ((name, counted(part)) for name, part in super().read(names))

load_weights(model, Counted(Path(source)))
stored = sum(tensor.to_local().numel() for _, tensor in unique_tensors(model))
assert elements == stored, (elements, stored)
save_weights(model, Path(target), max_file_bytes=20_000)
dist.destroy_process_group()
"""


def tiny_llama(**changes: Any) -> nn.Module:
    """Its 7 rows of a vocabulary do not divide by the number of ranks."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config: dict[str, Any] = {
        "vocab_size": 67,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**(config | changes)))  # type: ignore[no-any-return]


def on_meta(model: nn.Module) -> nn.Module:
    """An allocated model of the same config whose weights are not set."""
    import torch

    with torch.device("meta"):
        empty = type(model)(model.config)
    return empty.to_empty(device="cpu")


def saved(model: Any, folder: Path, **options: Any) -> Path:
    model.save_pretrained(folder, **options)
    return folder


def assert_equal(a: nn.Module, b: nn.Module) -> None:
    import torch

    ours, theirs = dict(a.named_parameters()), dict(b.named_parameters())
    assert ours.keys() == theirs.keys()
    for name, parameter in theirs.items():
        assert torch.equal(ours[name], parameter), name


@pytest.mark.parametrize("max_shard_size", ["1GB", "20KB"])
def test_the_weights_of_one_file_or_of_several_are_loaded(tmp_path: Path, max_shard_size: str) -> None:
    from muster_components.trainer.models.safetensors_files import SafetensorsFolder, load_weights

    model = tiny_llama()
    folder = saved(model, tmp_path / "model", max_shard_size=max_shard_size)
    empty = on_meta(model)
    load_weights(empty, SafetensorsFolder(folder))
    assert_equal(empty, model)
    assert (folder / "model.safetensors.index.json").exists() == (max_shard_size == "20KB")


def test_values_are_cast_to_the_type_of_the_parameter(tmp_path: Path) -> None:
    import torch

    from muster_components.trainer.models.safetensors_files import SafetensorsFolder, load_weights

    model = tiny_llama().bfloat16()
    folder = saved(model, tmp_path / "model")
    empty = on_meta(model).float()
    load_weights(empty, SafetensorsFolder(folder))
    assert {parameter.dtype for parameter in empty.parameters()} == {torch.float32}
    assert_equal(empty, model.float())


@pytest.mark.parametrize("present", ["model.embed_tokens.weight", "lm_head.weight"])
def test_of_tied_weights_either_name_may_be_absent(tmp_path: Path, present: str) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    from muster_components.trainer.models.safetensors_files import SafetensorsFolder, load_weights

    model = tiny_llama(tie_word_embeddings=True)
    folder = saved(model, tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    tensors[present] = tensors.pop("model.embed_tokens.weight")
    save_file(tensors, folder / "model.safetensors")
    with torch.device("meta"):
        empty: Any = type(model)(model.config)
    empty.to_empty(device="cpu")
    empty.tie_weights()
    load_weights(empty, SafetensorsFolder(folder))
    assert_equal(empty, model)


def without(tensors: dict[str, torch.Tensor]) -> None:
    del tensors["model.norm.weight"]


def extra(tensors: dict[str, torch.Tensor]) -> None:
    for number in range(5):
        tensors[f"adapter.{number}"] = tensors["model.norm.weight"].clone()


def reshaped(tensors: dict[str, torch.Tensor]) -> None:
    tensors["lm_head.weight"] = tensors["lm_head.weight"][:9].clone()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without, "missing: model.norm.weight"),
        (extra, "not in the model: adapter.0, adapter.1, adapter.2 and 2 more"),
        (reshaped, r"of another shape: lm_head.weight (9, 32) instead of (67, 32)"),
    ],
)
def test_tensors_that_do_not_match_are_named_and_nothing_is_loaded(
    tmp_path: Path, change: Callable[[dict[str, torch.Tensor]], None], message: str
) -> None:
    from safetensors.torch import load_file, save_file

    from muster_components.trainer.models.safetensors_files import SafetensorsFolder, load_weights

    model = tiny_llama()
    folder = saved(model, tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    empty = on_meta(model)
    for parameter in empty.parameters():
        parameter.data.fill_(7)
    with pytest.raises(InputError, match=re.escape(message)):
        load_weights(empty, SafetensorsFolder(folder))
    assert all(bool((parameter == 7).all()) for parameter in empty.parameters())


def damage_header(folder: Path) -> str:
    (folder / "model-00001-of-00002.safetensors").write_bytes(b"\xff" * 64)
    return "model-00001-of-00002.safetensors cannot be read"


def remove_file(folder: Path) -> str:
    (folder / "model-00002-of-00002.safetensors").unlink()
    return "model-00002-of-00002.safetensors does not exist"


def list_another(folder: Path) -> str:
    edit_index(folder, "model.norm.weight", "model-00001-of-00002.safetensors")
    return "model-00001-of-00002.safetensors has no tensor 'model.norm.weight'"


def leave_the_folder(folder: Path) -> str:
    edit_index(folder, "model.norm.weight", "../model.safetensors")
    return "the name of a file in the same folder"


def damage_index(folder: Path) -> str:
    (folder / "model.safetensors.index.json").write_text("{")
    return "model.safetensors.index.json cannot be read"


def remove_all(folder: Path) -> str:
    (folder / "model.safetensors.index.json").unlink()
    return "model.safetensors does not exist"


def nest_deeply(folder: Path) -> str:
    (folder / "model.safetensors.index.json").write_text("[" * 100_000)
    return "nested too deeply"


def pipe_as_index(folder: Path) -> str:
    (folder / "model.safetensors.index.json").unlink()
    os.mkfifo(folder / "model.safetensors.index.json")
    return "model.safetensors.index.json cannot be read: OSError"


def endless_index(folder: Path) -> str:
    (folder / "model.safetensors.index.json").unlink()
    (folder / "model.safetensors.index.json").symlink_to("/dev/zero")
    return "must be a regular file"


def pipe_as_weights(folder: Path) -> str:
    remove_file(folder)
    os.mkfifo(folder / "model-00002-of-00002.safetensors")
    return "model-00002-of-00002.safetensors cannot be read"


def impossible_name(folder: Path) -> str:
    edit_index(folder, "model.norm.weight", "\ud800")
    return "cannot be read"


def edit_index(folder: Path, tensor: str, file: str) -> None:
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"][tensor] = file
    path.write_text(json.dumps(index))


@pytest.mark.parametrize(
    "damage",
    [
        damage_header,
        remove_file,
        list_another,
        leave_the_folder,
        damage_index,
        remove_all,
        nest_deeply,
        pipe_as_index,
        endless_index,
        pipe_as_weights,
        impossible_name,
    ],
)
def test_a_damaged_folder_is_rejected_with_the_file(tmp_path: Path, damage: Callable[[Path], str]) -> None:
    from muster_components.trainer.models.safetensors_files import SafetensorsFolder

    folder = saved(tiny_llama(), tmp_path / "model", max_shard_size="40KB")
    assert len(list(folder.glob("*.safetensors"))) == 2
    message = damage(folder)
    with pytest.raises(InputError, match=re.escape(message)):
        SafetensorsFolder(folder)


def test_tensors_of_the_model_are_computed_from_several_of_the_files(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    from muster_components.trainer.models.safetensors_files import Conversion, NamePlan, SafetensorsFolder, load_weights

    parts = {f"row.{number}": torch.full((3,), float(number)) for number in range(4)}
    save_file({**parts, "b": torch.ones(4)}, tmp_path / "model.safetensors")
    model = torch.nn.Linear(3, 4)
    stack = Conversion(tuple(parts), ("weight",), lambda read: {"weight": torch.stack([read[name] for name in parts])})
    load_weights(model, SafetensorsFolder(tmp_path), plan=NamePlan({"b": "bias"}, (stack,)))
    assert model.weight[:, 0].tolist() == [0, 1, 2, 3]
    assert model.bias.tolist() == [1, 1, 1, 1]


def test_a_part_of_a_model_loads_its_tensors_alone(tmp_path: Path) -> None:
    import torch

    from muster_components.trainer.models.safetensors_files import SafetensorsFolder, load_weights

    model: Any = tiny_llama(tie_word_embeddings=True)
    folder = saved(model, tmp_path / "model")
    with torch.device("meta"):
        whole: Any = type(model)(model.config)
    last: Any = on_meta(model)  # the last stage of a pipeline: the head is tied to an embedding of another stage
    del last.model.layers[0], last.model.embed_tokens
    last.model.layers = torch.nn.ModuleDict({"1": last.model.layers[0]})
    load_weights(last, SafetensorsFolder(folder), whole=whole)
    assert torch.equal(last.lm_head.weight, model.lm_head.weight)
    assert torch.equal(last.model.layers["1"].mlp.up_proj.weight, model.model.layers[1].mlp.up_proj.weight)


def test_each_of_three_ranks_reads_its_shards_and_together_they_save_what_transformers_opens(
    tmp_path: Path, start: Starter
) -> None:
    from safetensors import safe_open
    from transformers import AutoModelForCausalLM

    model = tiny_llama(tie_word_embeddings=True)
    folder = saved(model, tmp_path / "model", max_shard_size="20KB")
    (tmp_path / "sharded.py").write_text(SHARDED)
    ranks = start(3, str(folder), str(tmp_path / "saved"), module="sharded")
    assert ranks.end() == [0, 0, 0], "".join(ranks.log_text(rank) for rank in range(3))

    def names(folder: Path) -> set[str]:
        found: set[str] = set()
        for file in folder.glob("*.safetensors"):
            with safe_open(file, framework="pt") as tensors:
                found |= set(tensors.keys())
        return found

    assert names(tmp_path / "saved") == names(folder)
    assert len(list((tmp_path / "saved").glob("*.safetensors"))) > 3
    (tmp_path / "saved" / "config.json").write_bytes((folder / "config.json").read_bytes())
    assert_equal(AutoModelForCausalLM.from_pretrained(tmp_path / "saved"), model)


def test_a_model_replaces_one_saved_before_and_no_other_folder(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file

    from muster_components.trainer.models.safetensors_save import save_weights

    model = torch.nn.Linear(2, 2)
    for value in (1.0, 2.0):
        torch.nn.init.constant_(model.weight, value)
        save_weights(model, tmp_path / "model")
    assert load_file(tmp_path / "model" / "model.safetensors")["weight"].tolist() == [[2.0, 2.0]] * 2
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    with pytest.raises(TrainerError, match=f"cannot save the model to {tmp_path / 'mine'}"):
        save_weights(model, tmp_path / "mine")
    assert [file.name for file in sorted(tmp_path.iterdir())] == ["mine", "model"]
    assert (tmp_path / "mine" / "notes.txt").exists()


def test_a_folder_that_cannot_be_saved_to_is_named_before_training(tmp_path: Path) -> None:
    import torch

    from muster_components.trainer.models.safetensors_save import require_savable, save_weights

    (tmp_path / "notes").write_text("keep")
    (tmp_path / "empty").mkdir()
    save_weights(torch.nn.Linear(2, 2), tmp_path / "saved")
    before = sorted(tmp_path.rglob("*"))
    for folder in ("new", "empty", "saved", "a/b"):
        require_savable(tmp_path / folder)
    for folder, problem in {
        "notes": "it exists",
        "notes/model": "Not a directory",
        ".": "it exists",
        "/": "name",
    }.items():
        with pytest.raises(InputError, match=rf"--save_pretrained must be a folder .* got .*{problem}"):
            require_savable(tmp_path / folder)
    assert [path for path in sorted(tmp_path.rglob("*")) if path.name != "a"] == before
