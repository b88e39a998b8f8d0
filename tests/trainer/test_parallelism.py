"""Every mesh trains the same model: losses and gradient norms equal those of one process."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from muster_components.trainer.errors import EXIT_OK

from .conftest import TINY, Starter, events, latest, losses, metrics, write_text

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def one_process(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of six steps in one process; its text is beside it."""
    folder = tmp_path_factory.mktemp("one")
    starter = Starter(folder)
    ranks = starter(1, *run(write_text(folder)))
    assert ranks.end() == [EXIT_OK], ranks.log_text()
    starter.kill_all()
    return ranks.run_dir


def run(text: Path) -> tuple[str, ...]:
    return (*TINY, "--data", str(text), "--steps", "6", "--checkpoint_every", "3")


@pytest.mark.parametrize(
    ("world_size", "flags"),
    [
        (2, ("--micro_batch", "3", "--reshard", "always")),
        (2, ("--parallel", "ddp", "--micro_batch", "2")),
        (3, ("--parallel", "fsdp=3")),
        (4, ("--parallel", "hsdp=2x2", "--micro_batch", "1")),
        (4, ("--parallel", "ddp=4")),
        (2, ("--parallel", "tp=2", "--micro_batch", "4")),
        (4, ("--parallel", "tp=2,fsdp=2")),
        (4, ("--parallel", "tp=2,ddp=2", "--micro_batch", "2")),
        pytest.param(2, ("--parallel", "pp=2"), marks=pytest.mark.smoke),
        (2, ("--parallel", "pp=2", "--pipeline_schedule", "GPipe")),
        (2, ("--parallel", "pp=2", "--pipeline_schedule", "Interleaved1F1B")),
        (2, ("--parallel", "pp=2", "--pipeline_schedule", "InterleavedZeroBubble")),
        (2, ("--parallel", "pp=2", "--pipeline_schedule", "ZBVZeroBubble")),
        (2, ("--parallel", "pp=2", "--pipeline_schedule", "DualPipeV", "--activation_checkpointing", "full")),
        (4, ("--parallel", "pp=2,fsdp=2", "--micro_batch", "1")),
        (4, ("--parallel", "pp=2,ddp=2", "--micro_batch", "1")),
        (4, ("--parallel", "pp=2,tp=2", "--pipeline_schedule", "Interleaved1F1B")),
        (8, ("--parallel", "pp=2,tp=2,fsdp=2", "--micro_batch", "1")),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else f"{value} ranks",
)
def test_losses_and_gradient_norms_equal_those_of_one_process(
    start: Starter, one_process: Path, world_size: int, flags: tuple[str, ...]
) -> None:
    ranks = start(world_size, *run(one_process.parent / "text"), *flags)
    assert ranks.end() == [EXIT_OK] * world_size, ranks.log_text()
    for ours, theirs in zip(metrics(ranks.run_dir), metrics(one_process), strict=True):
        # Rounding differs with the order of sums; AdamW's first updates amplify it where second moments are small.
        assert ours["loss"] == pytest.approx(theirs["loss"], abs=1e-6 if ours["step"] == 1 else 1e-4)
        assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-5 if ours["step"] == 1 else 1e-3)


def test_a_step_of_one_rank_has_no_collective(start: Starter, text: Path, tmp_path: Path) -> None:
    calls = []
    for steps in (1, 4):
        run_dir = tmp_path / str(steps)
        flags = (*TINY, "--data", str(text), "--steps", str(steps), "--keep", "0", "--precision", "bf16")
        ranks = start(1, *flags, run_dir=run_dir)
        assert ranks.end() == [EXIT_OK], ranks.log_text()
        calls.append(json.loads((run_dir / "heartbeats" / "rank-0.json").read_text())["collectives"])
    assert calls[0] == calls[1]


def test_stages_gather_freed_weights_once_more_than_there_are_micro_batches(
    start: Starter, text: Path, tmp_path: Path
) -> None:
    """Kept ones are gathered once per step. The planner predicts communication by this."""
    mesh = ("--parallel", "pp=2,fsdp=2", "--micro_batch", "1", "--data", str(text), "--steps", "2")
    calls = {}
    for reshard in ("always", "never", "auto"):
        ranks = start(4, *TINY, *mesh, "--reshard", reshard, run_dir=tmp_path / reshard)
        assert ranks.end() == [EXIT_OK] * 4, ranks.log_text()
        calls[reshard] = json.loads((ranks.run_dir / "heartbeats" / "rank-0.json").read_text())["collectives"][
            "mesh_shard"
        ]
    blocks, steps, micro_batches = 2, 2, 4
    assert calls["always"] - calls["never"] == steps * blocks * micro_batches
    assert calls["auto"] == calls["never"]


MESHES = {
    "one": (1, ()),
    "fsdp": (2, ()),
    "fsdp=3": (3, ()),
    "fsdp=4": (4, ()),
    "tp": (2, ("--parallel", "tp=2")),
    "pp": (2, ("--parallel", "pp=2", "--pipeline_schedule", "Interleaved1F1B")),
}


@pytest.mark.parametrize(
    "chain",
    [
        ("fsdp", "pp", "tp", "one"),
        ("one", "fsdp", "tp"),
        ("tp", "pp", "fsdp"),
        ("pp", "one", "pp"),
        ("one", "fsdp", "fsdp=3", "fsdp=4", "one"),
    ],
    ids=" to ".join,
)
def test_a_checkpoint_opens_on_another_mesh_with_the_same_next_losses(
    start: Starter, one_process: Path, chain: tuple[str, ...]
) -> None:
    """Equal losses show equal weights, optimizer state and samples."""
    steps = 3 * len(chain)
    flags = ("--steps", str(steps), "--checkpoint_every", "3", "--keep", "5", "--warmup", "1")
    expected: dict[int, float] = {}
    for attempt, name in enumerate(chain):
        world_size, mesh = MESHES[name]
        ranks = start(world_size, *run(one_process.parent / "text"), *flags, *mesh, attempt=attempt)
        assert ranks.end() == [EXIT_OK] * world_size, ranks.log_text()
        expected = expected or losses(ranks.run_dir)
        assert losses(ranks.run_dir) == pytest.approx(expected, abs=1e-4), name
        # The first step after the resume: no update with other rounding yet.
        assert losses(ranks.run_dir)[3 * attempt + 1] == pytest.approx(expected[3 * attempt + 1], abs=1e-5), name
        assert [event["step"] for event in events(ranks.run_dir, "resumed")] == [3, 6, 9, 12][:attempt]
        if attempt < len(chain) - 1:
            rewind(ranks.run_dir, to_step=3 * (attempt + 1))


_DECODER = "vocab_size=256,num_hidden_layers=4,num_attention_heads=4,max_position_embeddings=64"
TIED = {
    "gpt2": "n_layer=4,n_embd=32,n_head=4,n_positions=64,vocab_size=256,attn_pdrop=0,embd_pdrop=0,resid_pdrop=0",
    "t5": "num_layers=3,d_model=32,d_kv=8,d_ff=64,num_heads=4,vocab_size=260,dropout_rate=0",
    "gemma2": f"{_DECODER},hidden_size=32,intermediate_size=48,num_key_value_heads=2,head_dim=8,attention_dropout=0",
    "opt": f"{_DECODER},hidden_size=32,word_embed_proj_dim=16,ffn_dim=48,dropout=0,attention_dropout=0",
}


@pytest.mark.parametrize(
    ("family", "world_size", "mesh"),
    [
        ("gpt2", 2, ("--parallel", "pp=2")),
        ("gpt2", 4, ("--parallel", "pp=2,fsdp=2", "--pipeline_schedule", "Interleaved1F1B")),
        ("t5", 2, ("--parallel", "pp=2")),
        ("t5", 4, ("--parallel", "pp=4")),
        ("t5", 2, ("--parallel", "pp=2", "--pipeline_schedule", "ZBVZeroBubble")),
        ("gemma2", 2, ("--parallel", "pp=2")),
        ("opt", 2, ("--parallel", "pp=2")),
        ("opt", 2, ("--parallel", "pp=2", "--pipeline_schedule", "InterleavedZeroBubble")),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else str(value),
)
def test_a_pipeline_with_tied_embeddings_trains_and_saves_the_model_of_one_process(
    start: Starter, tmp_path: Path, family: str, world_size: int, mesh: tuple[str, ...]
) -> None:
    """GPT-2 uses its embedding in the first stage, and again as the head in the last; T5 also where its decoder begins,
    and every stage of the decoder needs the encoder's output."""
    model = ("--model", f"hf:{family}", "--model_args", TIED[family])
    flags = (*TINY, *model, "--data", str(write_text(tmp_path)), "--steps", "6")
    one, staged = tmp_path / "one", tmp_path / "staged"
    alone = start(1, *flags, "--save_pretrained", str(one / "model"), run_dir=one)
    assert alone.end() == [EXIT_OK], alone.log_text()
    ranks = start(world_size, *flags, *mesh, "--save_pretrained", str(staged / "model"), run_dir=staged)
    assert ranks.end() == [EXIT_OK] * world_size, ranks.log_text()
    for ours, theirs in zip(metrics(staged), metrics(one), strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], abs=1e-4)
        assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-3)
    assert_same_model(staged / "model", one / "model")
    # The checkpoint of the pipeline opens on one rank, and the other way round.
    again = (*flags, "--steps", "9", "--warmup", "1")
    assert start(1, *again, run_dir=staged, attempt=1).end() == [EXIT_OK]
    assert start(world_size, *again, *mesh, run_dir=one, attempt=1).end() == [EXIT_OK] * world_size
    assert losses(staged) == pytest.approx(losses(one), abs=1e-3)


SHARED = """
import torch
from torch import nn

class Data:
    def __len__(self):
        return 40
    def __getitem__(self, i):
        return {"x": [float(i % (k + 2)) for k in range(8)], "y": [float(i % 5)]}

class Block(nn.Module):
    def __init__(self, shared):
        super().__init__()
        self.own, self.shared = nn.Linear(8, 8), shared
    def forward(self, x):
        return x + self.shared(torch.tanh(self.shared(self.own(x))))

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        shared = nn.Linear(8, 8)
        self.blocks, self.head = nn.ModuleList(Block(shared) for _ in range(4)), nn.Linear(8, 1)
    def forward(self, x, y):
        for block in self.blocks:
            x = block(x)
        return (self.head(x) - y).square().mean()
"""


@pytest.mark.parametrize(
    ("world_size", "mesh"),
    [
        (2, ("--parallel", "pp=2", "--pipeline_schedule", "1F1B")),
        (2, ("--parallel", "pp=2", "--pipeline_schedule", "InterleavedZeroBubble")),
        (2, ("--parallel", "pp=2", "--pipeline_schedule", "DualPipeV")),
        (4, ("--parallel", "pp=2,fsdp=2", "--pipeline_schedule", "ZBVZeroBubble", "--micro_batch", "1")),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else str(value),
)
def test_a_parameter_that_a_stage_uses_in_several_places_has_the_gradient_of_one_process(
    start: Starter, tmp_path: Path, world_size: int, mesh: tuple[str, ...]
) -> None:
    """torch's own split of the backward pass would add some of its gradients twice, or fail."""
    (tmp_path / "shared_user.py").write_text(SHARED)
    model = ("--model", "shared_user:Model", "--data", "shared_user:Data")
    flags = (*model, "--global_batch", "8", "--micro_batch", "2", "--steps", "4", "--no_compile")
    assert start(1, *flags, run_dir=tmp_path / "one").end() == [EXIT_OK]
    ranks = start(world_size, *flags, *mesh, run_dir=tmp_path / "staged")
    assert ranks.end() == [EXIT_OK] * world_size, ranks.log_text()
    for ours, theirs in zip(metrics(tmp_path / "staged"), metrics(tmp_path / "one"), strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], abs=1e-4)
        assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-3)


def assert_same_model(ours: Path, theirs: Path) -> None:
    """Transformers opens both, and the files have the same tensors: tied ones once."""
    import transformers
    from safetensors.torch import load_file

    found, expected = (load_file(folder / "model.safetensors") for folder in (ours, theirs))
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        # Weights have changed by up to 1e-3. Rounding differs, which AdamW amplifies where second moments are small.
        assert (found[name] - tensor).abs().mean().item() < 2e-5, name
    kind = transformers.AutoConfig.from_pretrained(ours).architectures[0]
    _, info = getattr(transformers, kind).from_pretrained(ours, output_loading_info=True)
    assert not any(info[problem] for problem in ("missing_keys", "unexpected_keys", "mismatched_keys")), info


def rewind(run_dir: Path, *, to_step: int) -> None:
    """Remove the newer checkpoints."""
    for folder in (run_dir / "checkpoints").glob("step-*"):
        if int(folder.name.removeprefix("step-")[:8]) > to_step:
            shutil.rmtree(folder)
    (run_dir / "checkpoints" / "latest").unlink()


def test_bf16_on_one_rank_has_the_losses_of_fsdp_and_saves_float32_weights(
    start: Starter, one_process: Path, tmp_path: Path
) -> None:
    flags = (*run(one_process.parent / "text"), "--precision", "bf16", "--micro_batch", "4")
    assert start(1, *flags, run_dir=tmp_path / "plain").end() == [EXIT_OK]
    assert start(2, *flags, run_dir=tmp_path / "fsdp").end() == [EXIT_OK] * 2
    assert losses(tmp_path / "plain") == pytest.approx(losses(tmp_path / "fsdp"), abs=2e-3)
    # The float32 run is close, but not equal: the plain one did compute in bf16.
    assert losses(tmp_path / "plain") == pytest.approx(losses(one_process), abs=5e-2)
    assert losses(tmp_path / "plain") != pytest.approx(losses(one_process), abs=1e-6)

    saved = latest(tmp_path / "plain")
    assert saved is not None
    assert saved["step"] == 6
    again = (*flags, "--steps", "9", "--warmup", "1")
    assert start(2, *again, run_dir=tmp_path / "plain", attempt=1).end() == [EXIT_OK] * 2
    assert start(1, *again, run_dir=tmp_path / "fsdp", attempt=1).end() == [EXIT_OK]
    assert losses(tmp_path / "plain") == pytest.approx(losses(tmp_path / "fsdp"), abs=5e-3)
