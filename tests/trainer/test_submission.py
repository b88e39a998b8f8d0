"""What is checked before a job is submitted, where torch cannot be imported: the memory check is left to the ranks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from muster_components.trainer.submission import rejection

PROGRAM = """
from muster_components.trainer.submission import rejection
flags = ["--model", "gpt:1m", "--data", "text", "--device", "h100"]
print(rejection(flags, 1, 1, 2, on_gpus=True))
"""


@pytest.mark.parametrize("processes", [1, None])
def test_an_elastic_job_that_would_save_no_checkpoint_is_refused(processes: int | None) -> None:
    flags = ["--model", "gpt:1m", "--data", "text", "--keep", "0"]
    assert rejection(flags, 1, 2, processes, on_gpus=False) == (
        "--keep must be at least 1 in an elastic job, which continues from a checkpoint when its size changes; got 0"
    )
    assert rejection(flags, 2, 2, processes, on_gpus=False) is None


def test_reshard_is_accepted_if_one_size_of_an_elastic_job_gathers_weights() -> None:
    flags = ["--model", "gpt:1m", "--data", "text", "--parallel", "pp=2", "--reshard", "never"]
    assert rejection(flags, 1, 2, 2, on_gpus=True) is None


@pytest.mark.parametrize("processes", [1, None])
def test_steps_to_trace_may_be_in_the_environment_of_the_pods(processes: int | None) -> None:
    flags = ["--model", "gpt:1m", "--data", "text", "--trace_ranks", "0", "--trace_every", "100"]
    assert rejection(flags, 1, 1, processes, on_gpus=False) is None


@pytest.mark.parametrize("processes", [1, None])
@pytest.mark.parametrize("flag", ["--trace_ranks 0", "--trace_every 100"])
def test_which_ranks_to_trace_without_steps_to_trace_is_refused(flag: str, processes: int | None) -> None:
    flags = ["--model", "gpt:1m", "--data", "text", *flag.split()]
    message = rejection(flags, 1, 1, processes, on_gpus=False, has_trace_variable=False)
    assert message == f"{flag} requires --trace_steps"


def test_reshard_with_ddp_is_refused_for_any_number_of_processes() -> None:
    flags = ["--model", "gpt:1m", "--data", "text", "--parallel", "ddp", "--reshard", "never"]
    assert rejection(flags, 1, 1, None, on_gpus=True) == (
        "--reshard is for fsdp and hsdp, which gather weights; got --parallel ddp"
    )


@pytest.mark.parametrize("error", ["ImportError", "OSError"])
def test_flags_are_accepted_where_torch_cannot_be_imported(tmp_path: Path, error: str) -> None:
    (tmp_path / "torch.py").write_text(f"raise {error}('libcudart.so.13: cannot open shared object file')")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout.strip(), done.returncode) == ("None", 0), done.stderr
