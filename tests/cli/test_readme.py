"""What the README says can be pasted is pasted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from muster.local.client import LocalClient

README = Path(__file__).resolve().parents[2] / "README.md"


@pytest.mark.slow
@pytest.mark.smoke
def test_the_commands_run_as_pasted_into_an_empty_folder(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    text = "".join(block.partition("```")[0] for block in README.read_text().split("```sh\n")[1:])
    home = tmp_path_factory.mktemp("home")
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(home),
        "MUSTER_HOME": str(home / "muster"), "NO_COLOR": "1",
    }  # fmt: skip
    try:
        ran = subprocess.run(
            ["bash", "-eu"], input=text, cwd=tmp_path, env=environment, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
    finally:
        LocalClient.connect(home / "muster").down(force=True)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "default/llama-8b Succeeded" in ran.stdout
    assert [f"rank {rank} of 4" in ran.stdout for rank in range(4)] == [True] * 4
    for result in ("suspended", "resumed", "is being cancelled"):
        assert f"trainingjob default/llama-70b {result}" in ran.stdout
