"""Every mesh trains the same model: losses and gradient norms equal those of one process."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from muster_components.trainer.errors import EXIT_OK

from .conftest import TINY, Starter, events, latest, losses, metrics, write_text

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


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
        (2, ("--parallel", "pp=2")),
        (2, ("--parallel", "pp=2", "--pipeline_schedule", "Interleaved1F1B")),
        (2, ("--parallel", "pp=2", "--pipeline_schedule", "ZBVZeroBubble")),
        (4, ("--parallel", "pp=2,fsdp=2", "--micro_batch", "1")),
        (4, ("--parallel", "pp=2,tp=2", "--pipeline_schedule", "Interleaved1F1B")),
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


MESHES = {
    "one": (1, ()),
    "fsdp": (2, ()),
    "tp": (2, ("--parallel", "tp=2")),
    "pp": (2, ("--parallel", "pp=2", "--pipeline_schedule", "Interleaved1F1B")),
}


@pytest.mark.parametrize(
    "chain", [("fsdp", "tp", "one"), ("one", "fsdp", "tp"), ("tp", "pp", "fsdp"), ("pp", "one", "pp")], ids=" to ".join
)
def test_a_checkpoint_opens_on_another_mesh_with_the_same_next_losses(
    start: Starter, one_process: Path, chain: tuple[str, ...]
) -> None:
    """Equal losses show equal weights, optimizer state and samples."""
    flags = ("--steps", "9", "--checkpoint_every", "3", "--keep", "3", "--warmup", "1")
    expected: dict[int, float] = {}
    for attempt, name in enumerate(chain):
        world_size, mesh = MESHES[name]
        ranks = start(world_size, *run(one_process.parent / "text"), *flags, *mesh, attempt=attempt)
        assert ranks.end() == [EXIT_OK] * world_size, ranks.log_text()
        expected = expected or losses(ranks.run_dir)
        assert losses(ranks.run_dir) == pytest.approx(expected, abs=1e-4), name
        # The first step after the resume: no update with other rounding yet.
        assert losses(ranks.run_dir)[3 * attempt + 1] == pytest.approx(expected[3 * attempt + 1], abs=1e-5), name
        assert [event["step"] for event in events(ranks.run_dir, "resumed")] == [3, 6][:attempt]
        if attempt < 2:
            rewind(ranks.run_dir, to_step=3 * (attempt + 1))


def test_tied_embeddings_on_two_stages_stay_equal_and_are_saved_once(start: Starter, tmp_path: Path) -> None:
    """GPT-2 uses its embedding in the first stage, and again as the head in the last."""
    shape = "n_layer=4,n_embd=32,n_head=4,n_positions=64,vocab_size=256,attn_pdrop=0,embd_pdrop=0,resid_pdrop=0"
    flags = (*TINY, "--model", "hf:gpt2", "--model_args", shape, "--data", str(write_text(tmp_path)), "--steps", "6")
    alone = start(1, *flags, run_dir=tmp_path / "one")
    assert alone.end() == [EXIT_OK], alone.log_text()
    staged = start(2, *flags, "--parallel", "pp=2", run_dir=tmp_path / "staged")
    assert staged.end() == [EXIT_OK] * 2, staged.log_text()
    for ours, theirs in zip(metrics(tmp_path / "staged"), metrics(tmp_path / "one"), strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], abs=1e-4)
        assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-3)
    # The checkpoint of the pipeline opens on one rank, and the other way round.
    again = (*flags, "--steps", "9", "--warmup", "1")
    assert start(1, *again, run_dir=tmp_path / "staged", attempt=1).end() == [EXIT_OK]
    assert start(2, *again, "--parallel", "pp=2", run_dir=tmp_path / "one", attempt=1).end() == [EXIT_OK] * 2
    assert losses(tmp_path / "staged") == pytest.approx(losses(tmp_path / "one"), abs=1e-3)


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
