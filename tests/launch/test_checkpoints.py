"""Checkpoints of programs that are not Muster's: written here by the libraries that are installed, or as they lay out
their files."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from muster_components.launch.checkpoints.formats import FoundCheckpoint, pickled_count, step_of
from muster_components.launch.checkpoints.search import MAX_NAMES, OWN_FOLDERS, CheckpointSearch
from muster_components.launch.checkpoints.watcher import MIN_INTERVAL_S, CheckpointWatcher, find_watcher
from muster_components.launch.rank_layout import RankLayout


def newest(root: Path, world_size: int = 1, *, ended: bool = False) -> FoundCheckpoint | None:
    return CheckpointSearch(root, world_size).run(ended=ended).newest


def write(path: Path, content: str | bytes = b"x", at: float = 1_000.0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    os.utime(path, (at, at))


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("step-100", 100),
        ("global_step12", 12),
        ("iter_0000010", 10),
        ("epoch=3-step=40.ckpt", 40),
        ("epoch=3-step=40-v1.ckpt", 40),
        ("checkpoint-7", 7),
        ("70", 70),
        ("latest", None),
        ("step-", None),
    ],
)
def test_a_name_has_the_step(name: str, step: int | None) -> None:
    assert step_of(name) == step


@pytest.mark.slow
def test_what_torch_saves_is_found_once_it_is_complete(tmp_path: Path) -> None:
    import torch
    import torch.distributed.checkpoint as dcp

    for step in (10, 20):  # as TorchTitan names them
        dcp.save(  # type: ignore[attr-defined]
            {"w": torch.ones(3)}, checkpoint_id=tmp_path / "outputs" / "checkpoint" / f"step-{step}", no_dist=True
        )
    found = newest(tmp_path)
    assert found is not None
    assert (found.format, found.step) == ("torch.distributed.checkpoint", 20)
    assert found.path == "outputs/checkpoint/step-20"
    (tmp_path / found.path / ".metadata").unlink()
    found = newest(tmp_path)
    assert found is not None
    assert found.step == 10

    state = {"epoch": 0, "global_step": 300, "state_dict": {"w": torch.ones(1000)}}
    torch.save(state, tmp_path / "last.ckpt")  # as Lightning does
    os.utime(tmp_path / "last.ckpt", (2e9, 2e9))
    found = newest(tmp_path)
    assert found is not None
    assert (found.format, found.step, found.path) == ("Lightning", 300, "last.ckpt")
    content = (tmp_path / "last.ckpt").read_bytes()
    write(tmp_path / "last.ckpt", content[:-100], at=2e9)
    found = newest(tmp_path)
    assert found is not None
    assert found.step == 10


def test_a_state_of_transformers_also_has_the_last_step_and_the_loss(tmp_path: Path) -> None:
    state = {"global_step": 50, "max_steps": 200, "log_history": [{"loss": 2.5, "step": 40}, {"eval_loss": 9.0}]}
    file = tmp_path / "checkpoint-50" / "trainer_state.json"
    write(file, json.dumps(state))
    assert newest(tmp_path) == FoundCheckpoint("Transformers", "checkpoint-50", 1000.0, 50, 200, 2.5)
    write(file, json.dumps(state)[:30])
    assert newest(tmp_path) is None
    write(file, json.dumps(state))
    write(tmp_path / "checkpoint-50" / "checkpoint-is-incomplete.txt")
    assert newest(tmp_path) is None


def test_a_part_of_a_checkpoint_of_transformers_is_none(tmp_path: Path) -> None:
    write(tmp_path / "checkpoint-50" / "pytorch_model_fsdp_0" / ".metadata")
    assert newest(tmp_path) is None


def test_files_that_name_the_last_checkpoint_count_if_it_is_there(tmp_path: Path) -> None:
    write(tmp_path / "ds" / "latest", "global_step30")
    write(tmp_path / "mega" / "latest_checkpointed_iteration.txt", "40\n", at=1_001.0)
    assert newest(tmp_path) is None
    (tmp_path / "ds" / "global_step30").mkdir()
    assert newest(tmp_path) == FoundCheckpoint("DeepSpeed", "ds/global_step30", 1000.0, 30)
    (tmp_path / "mega" / "iter_0000040").mkdir()
    assert newest(tmp_path) == FoundCheckpoint("Megatron", "mega/iter_0000040", 1001.0, 40)
    write(tmp_path / "mega" / "latest_checkpointed_iteration.txt", "release", at=1_002.0)
    write(tmp_path / "ds" / "latest", "../../etc", at=1_003.0)
    assert newest(tmp_path) is None


@pytest.mark.slow
def test_accelerate_has_no_mark_so_all_ranks_must_have_written_and_rest(tmp_path: Path) -> None:
    import torch

    folder = tmp_path / "checkpoints" / "checkpoint_0"
    folder.mkdir(parents=True)
    torch.save({"step": 0, "random_state": 1}, folder / "random_states_0.pkl")
    torch.save({"step": 60}, folder / "custom_checkpoint_0.pkl")
    search = CheckpointSearch(tmp_path, world_size=2)
    assert search.run(ended=True).newest is None
    torch.save({"step": 0}, folder / "random_states_1.pkl")
    assert search.run().newest is None
    found = search.run().newest
    assert found is not None
    assert (found.format, found.path, found.step) == ("Accelerate", "checkpoints/checkpoint_0", 60)
    content = (folder / "random_states_1.pkl").read_bytes()
    (folder / "random_states_1.pkl").write_bytes(content[:-9])
    assert search.run(ended=True).newest is None


def test_no_symbolic_link_is_followed_and_no_fifo_opened(tmp_path: Path) -> None:
    outside, root = tmp_path / "outside", tmp_path / "root"
    write(outside / "step-9" / ".metadata")
    root.mkdir()
    (root / "step-9").symlink_to(outside / "step-9")
    (root / "step-8").mkdir()
    (root / "step-8" / ".metadata").symlink_to(outside / "step-9" / ".metadata")
    (root / "step-7").mkdir()
    os.mkfifo(root / "step-7" / ".metadata")
    os.mkfifo(root / "latest")
    assert newest(root) is None


def test_opcodes_that_do_not_end_have_no_number() -> None:
    assert (
        pickled_count(b"PK\x03\x04" + b"\x00" * 22 + b"\x08\x00\x00\x00data.pkl" + b"\x80\x02}X\xff", frozenset("a"))
        is None
    )
    assert pickled_count(b"PK", frozenset("a")) is None


def test_a_folder_with_too_many_names_is_not_searched_to_its_end(tmp_path: Path) -> None:
    for number in range(MAX_NAMES + 10):
        (tmp_path / f"file-{number}").touch()
    result = CheckpointSearch(tmp_path, 1).run()
    assert not result.complete


def test_folders_of_muster_are_not_searched(tmp_path: Path) -> None:
    write(tmp_path / "traces" / "step-3" / ".metadata")
    write(tmp_path / "submission" / "code" / "outputs" / "checkpoint-500" / "trainer_state.json", b"{}")
    assert CheckpointSearch(tmp_path, 1, skip=OWN_FOLDERS).run().newest is None


def test_what_ranks_saved_last_is_recorded_after_they_ended(tmp_path: Path) -> None:
    watcher = CheckpointWatcher(tmp_path, tmp_path / "out", RankLayout(nproc=1, attempt=2), print)
    watcher.start()
    write(tmp_path / "out" / "step-5" / ".metadata")
    watcher.stop()
    record = json.loads((tmp_path / "checkpoint.json").read_text())
    expected = {"format": "torch.distributed.checkpoint", "path": str(tmp_path / "out" / "step-5"), "at": 1000.0,
                "step": 5, "steps": None, "loss": None, "attempt": 2}  # fmt: skip
    assert record == expected
    assert not list(tmp_path.glob(".checkpoint.json*"))


def test_the_first_pod_watches_unless_the_trainer_is_muster_s(tmp_path: Path) -> None:
    environ = {"MUSTER_RUN_DIR": str(tmp_path), "MUSTER_CHECKPOINT_DIR": "out"}
    first, second = RankLayout(nproc=1, replicas=2, replica=0), RankLayout(nproc=1, replicas=2, replica=1)
    assert find_watcher(first, ["python", "train.py"], environ, print) is not None
    assert find_watcher(second, ["python", "train.py"], environ, print) is None
    assert find_watcher(first, ["python", "-m", "muster_components.trainer", "--steps", "1"], environ, print) is None
    assert find_watcher(first, ["python", "train.py"], {}, print) is None


def test_a_search_is_repeated_so_seldom_that_it_takes_a_thousandth_of_a_core(tmp_path: Path) -> None:
    watcher = CheckpointWatcher(tmp_path, tmp_path, RankLayout(nproc=1), print)
    assert watcher._search_once() >= MIN_INTERVAL_S
