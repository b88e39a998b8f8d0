"""Layers in float8, emulated with float32 matrix products: which they are, losses, meshes and checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from muster_components.trainer.config import Float8Config
from muster_components.trainer.errors import EXIT_IMPORT, EXIT_OK, InputError
from muster_components.trainer.parallel.float8 import convert_to_float8

from .conftest import TINY, Starter, events, losses, metrics, write_text

pytestmark = pytest.mark.slow

EMULATED = Float8Config(recipe="tensorwise", emulate=True)
TENSORWISE = ("--float8", "tensorwise", "--float8_emulate")
ROWWISE = ("--float8", "rowwise", "--float8_emulate")


class Block(nn.Module):
    """Layers that can be converted, and layers that cannot."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(32, 64)
        self.odd = nn.Linear(64, 40, bias=False)
        self.attention = nn.MultiheadAttention(32, 2)  # uses the weight of its layer out_proj without a call of it
        self.tied = nn.Linear(32, 32, bias=False)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, 32)
        self.first, self.second = Block(), Block()
        self.head = nn.Linear(32, 256)
        for block in self.blocks:
            block.tied.weight = self.embed.weight

    @property
    def blocks(self) -> list[Block]:
        return [self.first, self.second]


def converted(module: nn.Module) -> set[str]:
    return {name for name, child in module.named_modules() if type(child).__name__ == "Float8Linear"}


def test_only_layers_with_multiples_of_16_and_a_weight_of_their_own_are_converted() -> None:
    module = Model()
    names = [name for name, _ in module.named_parameters()]
    weight = module.first.wide.weight
    assert convert_to_float8(module, module.blocks, EMULATED, gathers=False) == 2
    assert converted(module) == {"first.wide", "second.wide"}
    assert [name for name, _ in module.named_parameters()] == names
    assert module.first.wide.weight is weight


def test_with_tensor_parallelism_the_part_of_each_rank_must_be_a_multiple_of_16() -> None:
    module = Model()
    assert convert_to_float8(module, module.blocks, EMULATED, gathers=False, tp=2) == 2
    module = Model()
    with pytest.raises(InputError, match="dimensions are multiples of 64; remove --float8"):
        convert_to_float8(module, module.blocks, EMULATED, gathers=False, tp=4)


def test_a_converted_layer_rounds_its_operands_to_float8() -> None:
    torch.manual_seed(0)
    module = Model()
    layer, x = module.first.wide, torch.randn(16, 32)
    exact = layer(x)
    convert_to_float8(module, module.blocks, EMULATED, gathers=False)
    rounded = module.first.wide(x)
    # e4m3 has three bits of mantissa: a relative error of at most 1/16 for each operand.
    assert 1e-3 < (rounded - exact).norm() / exact.norm() < 0.08


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of 20 steps of one process in float32; its text is beside it."""
    folder = tmp_path_factory.mktemp("plain")
    starter = Starter(folder)
    ranks = starter(1, *run(write_text(folder)))
    assert ranks.end() == [EXIT_OK], ranks.log_text()
    starter.kill_all()
    return ranks.run_dir


def run(text: Path) -> tuple[str, ...]:
    return (*TINY, "--data", str(text), "--steps", "20", "--checkpoint_every", "10")


@pytest.mark.parametrize(
    ("world_size", "flags"),
    [
        (1, TENSORWISE),
        (1, ROWWISE),
        (1, (*TENSORWISE, "--precision", "bf16")),
        (2, TENSORWISE),
        (2, ROWWISE),
        (2, (*TENSORWISE, "--precision", "bf16", "--micro_batch", "2", "--reshard", "always")),
        (2, (*TENSORWISE, "--parallel", "ddp")),
        (2, (*TENSORWISE, "--activation_checkpointing", "selective")),
        (2, (*TENSORWISE, "--parallel", "tp=2")),
        (2, (*ROWWISE, "--parallel", "tp=2")),
        (2, (*TENSORWISE, "--parallel", "pp=2")),
        (4, (*TENSORWISE, "--parallel", "hsdp=2x2")),
        (4, (*TENSORWISE, "--parallel", "tp=2,fsdp=2")),
        (4, (*TENSORWISE, "--parallel", "pp=2,fsdp=2", "--micro_batch", "1")),
    ],
    ids=lambda value: " ".join(value).replace("--", "") if isinstance(value, tuple) else f"{value} ranks",
)
def test_losses_are_close_to_those_of_float32_for_20_steps(
    start: Starter, plain: Path, world_size: int, flags: tuple[str, ...]
) -> None:
    """Within 0.15 of 5.6 to 1.9 in each step, where the learning rate is highest, and 0.05 on average."""
    ranks = start(world_size, *run(plain.parent / "text"), *flags)
    assert ranks.end() == [EXIT_OK] * world_size, ranks.log_text()
    assert f"float8 {flags[1]} in " in ranks.log_text()
    ours, exact = losses(ranks.run_dir), losses(plain)
    assert ours == pytest.approx(exact, abs=0.15)
    assert sum(abs(ours[step] - exact[step]) for step in exact) / len(exact) < 0.05
    assert ours != pytest.approx(exact, abs=1e-4)
    first, first_exact = metrics(ranks.run_dir)[0], metrics(plain)[0]
    assert first["grad_norm"] == pytest.approx(first_exact["grad_norm"], rel=0.05)


def test_a_checkpoint_opens_with_float8_and_without(start: Starter, plain: Path) -> None:
    """Each attempt resumes from the checkpoint of the one before."""
    modes = {
        "float8 on 2 ranks": (2, TENSORWISE),
        "float32": (1, ()),
        "float8 as a pipeline": (2, (*TENSORWISE, "--parallel", "pp=2")),
    }
    run_dir = plain.parent / "chain"
    for attempt, (name, (world_size, flags)) in enumerate(modes.items()):
        steps = ("--steps", str(10 + 2 * attempt), "--warmup", "1")
        ranks = start(world_size, *run(plain.parent / "text"), *steps, *flags, run_dir=run_dir, attempt=attempt)
        assert ranks.end() == [EXIT_OK] * world_size, ranks.log_text()
        assert [event["step"] for event in events(run_dir, "resumed")] == [10, 12][:attempt], name
    found = losses(run_dir)
    assert sorted(found) == list(range(1, 15))
    assert max(found[step] for step in (11, 12, 13, 14)) < found[9]


STATES = """
import os
import torch
import torch.distributed as dist
from muster_components.trainer.checkpoint import Checkpointer
from muster_components.trainer.checkpoint_store import CheckpointStore
from muster_components.trainer.context import run_context
from muster_components.trainer.flags import parse_train_config
from muster_components.trainer.models.transformer import RecipeModel
from muster_components.trainer.parallel.float8 import without_float8
from muster_components.trainer.parallel.mesh import build_mesh
from muster_components.trainer.parallel.sharding import parallelize
from muster_components.trainer.plan import HostCapabilities, resolve_plan
from muster_components.trainer.reporter import Reporter
from muster_components.trainer.train_step import adamw

dist.init_process_group("gloo")
context = run_context(os.environ, None)
host = HostCapabilities(device="cpu", world_size=2, has_compiler=False, has_bf16=True)
store = CheckpointStore(context.checkpoints_dir, 0, 2)

def part_of(seed, *flags):
    base = ["--model", "gpt:1m", "--data", "x", "--seq_len", "32", "--seed", str(seed), *flags]
    plan = resolve_plan(parse_train_config(base, {}), host)
    model = RecipeModel(plan.config.model, plan.seq_len)
    (part,) = parallelize(model, plan, torch.device("cpu"), build_mesh(plan.mesh, "cpu")).parts
    optimizer = adamw(part.model, plan)
    return part, optimizer, Checkpointer(store, [(part.model, optimizer)], Reporter(context), {})

def step(part, optimizer):
    part.publish_weights()
    tokens = torch.arange(64).reshape(2, 32)
    part.module(tokens, tokens).backward()
    part.collect_gradients()
    optimizer.step()
    optimizer.zero_grad()

def values(part):
    return {n: without_float8(v).full_tensor() for n, v in part.model.state_dict().items()}

FLOAT8 = ("--float8", "tensorwise", "--float8_emulate")
for saving, loading in ((FLOAT8, ()), ((), FLOAT8), (FLOAT8, FLOAT8)):
    saved, saved_optimizer, checkpointer = part_of(0, *saving)
    assert saved.gathers_float8 == bool(saving)
    gathered = []
    layer = saved.module.blocks[0].attention.qkv
    handle = layer.register_forward_pre_hook(lambda layer, _: gathered.append(type(layer.weight).__name__))
    step(saved, saved_optimizer)
    assert gathered == ["Float8TrainingTensor" if saving else "Parameter"], gathered
    checkpointer.saver.save(1)
    checkpointer.saver.wait()
    dist.barrier()
    loaded, loaded_optimizer, checkpointer = part_of(1, *loading)
    step(loaded, loaded_optimizer)
    assert checkpointer.restore(anew=False) == 1
    dist.barrier()
    ours, theirs = values(loaded), values(saved)
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        assert torch.equal(ours[name], value), name
    for ours, theirs in zip(loaded.model.parameters(), saved.model.parameters(), strict=True):
        for kind in ("exp_avg", "exp_avg_sq"):
            ours_kind, theirs_kind = loaded_optimizer.state[ours][kind], saved_optimizer.state[theirs][kind]
            assert torch.equal(ours_kind.full_tensor(), theirs_kind.full_tensor()), kind
    loaded.publish_weights()
    if loading:
        weight = loaded.module.blocks[0].attention.qkv.weight
        scale = weight._local_tensor._precomputed_scale  # a view of it has none
        largest = without_float8(weight).full_tensor().abs().max()
        torch.testing.assert_close(scale, torch.finfo(torch.float8_e4m3fn).max / largest)
dist.destroy_process_group()
"""


def test_weights_and_optimizer_state_are_equal_after_loading_and_are_gathered_in_float8(
    start: Starter, tmp_path: Path
) -> None:
    (tmp_path / "states.py").write_text(STATES)
    ranks = start(2, module="states")
    assert ranks.end() == [0, 0], ranks.log_text()


def test_without_torchao_the_run_ends_with_what_to_install(start: Starter, plain: Path, tmp_path: Path) -> None:
    (tmp_path / "without.py").write_text(
        "import sys\nsys.modules['torchao'] = None\nfrom muster_components.trainer.__main__ import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    ranks = start(1, *run(plain.parent / "text"), *TENSORWISE, module="without")
    assert ranks.end() == [EXIT_IMPORT]
    assert (
        "trainer: --float8 tensorwise needs the package torchao; install the extra float8 of Muster: "
        "pip install '/path/to/muster[float8]'"
    ) in ranks.log_text()


def test_a_model_without_such_layers_is_refused(start: Starter, plain: Path) -> None:
    """GPT-2 of Transformers has layers of a class of its own."""
    shape = "n_layer=2,n_embd=32,n_head=4,n_positions=64,vocab_size=256"
    flags = ("--model", "hf:gpt2", "--model_args", shape, *TENSORWISE)
    ranks = start(1, *run(plain.parent / "text"), *flags)
    assert ranks.end() == [2]
    assert "no block with linear layers whose dimensions are multiples of 16; remove --float8" in ranks.log_text()


def test_a_model_of_transformers_trains_and_is_saved_in_float32(start: Starter, plain: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    shape = "hidden_size=64,intermediate_size=128,num_hidden_layers=2,num_attention_heads=4,vocab_size=256"
    flags = ("--model", "hf:llama", "--model_args", shape, "--steps", "3", "--warmup", "1", *TENSORWISE)
    ranks = start(2, *run(plain.parent / "text"), *flags, "--save_pretrained", str(tmp_path / "saved"))
    assert ranks.end() == [EXIT_OK] * 2, ranks.log_text()
    assert "float8 tensorwise in 14 linear layers" in ranks.log_text()
    saved = load_file(tmp_path / "saved" / "model.safetensors")
    weight = saved["model.layers.0.mlp.up_proj.weight"]
    assert weight.dtype == torch.float32
    assert weight.shape == (128, 64)
    assert weight.abs().max() > 0
