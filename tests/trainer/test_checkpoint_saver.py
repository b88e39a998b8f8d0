"""Saves go to host memory first: training waits neither for the files, nor for the save before."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from muster_components.trainer.config import parse_checkpoint_memory
from muster_components.trainer.errors import EXIT_BAD_INPUT, EXIT_OK, InputError

from .conftest import TINY, Starter, events, latest, write_files_after

ONE_COPY = "64MiB"
"""For the state of two ranks, of 12 MB and 16 MiB in reserve each, once."""


def test_a_save_while_the_one_before_is_written_goes_to_memory_and_the_last_one_is_written(
    start: Starter, text: Path, tmp_path: Path
) -> None:
    (tmp_path / "held_write.py").write_text(write_files_after("checkpoint_in_memory"))
    run = (*TINY, "--data", str(text), "--steps", "6", "--keep", "6")
    ranks = start(2, *run, "--checkpoint_every", "2", "--checkpoint_memory", "1GiB", module="held_write")
    assert ranks.end() == [EXIT_OK] * 2, ranks.log_text()
    in_memory = [event["step"] for event in events(ranks.run_dir, "checkpoint_in_memory")]
    assert in_memory[0] == 4, "step 2 was being written until then"
    saved = latest(ranks.run_dir)
    assert saved is not None
    assert saved["step"] == 6


def test_with_one_copy_a_save_that_would_wait_is_postponed(start: Starter, text: Path, tmp_path: Path) -> None:
    (tmp_path / "held_write.py").write_text(write_files_after("checkpoint_postponed"))
    run = (*TINY, "--data", str(text), "--steps", "6", "--keep", "6")
    ranks = start(2, *run, "--checkpoint_every", "2", "--checkpoint_memory", ONE_COPY, module="held_write")
    assert ranks.end() == [EXIT_OK] * 2, ranks.log_text()
    (memory,) = events(ranks.run_dir, "checkpoint_memory")
    assert memory["message"].startswith("checkpoints use 1 x ")
    (postponed, *_) = events(ranks.run_dir, "checkpoint_postponed")
    assert postponed["step"] == 4, "step 2 was being written until then"
    saved = latest(ranks.run_dir)
    assert saved is not None
    assert saved["step"] == 6


def test_auto_saves_after_ten_steps_and_says_how_often_from_then_on(start: Starter, text: Path) -> None:
    ranks = start(2, *TINY, "--data", str(text), "--steps", "12", "--checkpoint_every", "auto")
    assert ranks.end() == [EXIT_OK] * 2, ranks.log_text()
    assert [event["step"] for event in events(ranks.run_dir, "checkpoint_saved")] == [10, 12]
    (interval,) = events(ranks.run_dir, "checkpoint_interval")
    assert re.search(r"a checkpoint every [\d,]+ steps \(.* \(2 ranks, 0 failures so far\)", interval["message"])


def test_too_little_memory_is_refused_with_the_numbers(start: Starter, text: Path) -> None:
    ranks = start(2, *TINY, "--data", str(text), "--steps", "2", "--checkpoint_memory", "1MiB")
    assert ranks.end() == [EXIT_BAD_INPUT] * 2, ranks.log_text()
    message = r"--checkpoint_memory must be at least 0\.\d+ GB, for the state of the 2 ranks of a pod; got 0\.00 GB"
    assert re.search(message, ranks.log_text())


def test_memory_is_auto_none_or_a_size() -> None:
    assert [parse_checkpoint_memory(text) for text in ("auto", "none", "1.5GiB")] == [None, 0, 3 << 29]
    for text in ("", "0GiB", "64", "64GB", "-1GiB", "nanGiB"):
        with pytest.raises(InputError, match="--checkpoint_memory must be auto, none or a size such as 64GiB; got"):
            parse_checkpoint_memory(text)
