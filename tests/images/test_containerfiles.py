"""The two Containerfiles say twice how our wheel is built: a Containerfile includes no other, and each builds by hand
with one command. So that they say the same is held here. The operator's leaves out the command `muster`, which imports
what the image does not hold."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def building(name: str) -> str:
    """From the sources to the last step of the stage `build`, without comments."""
    text = (ROOT / name / "Containerfile").read_text()
    found = re.search(r"^COPY pyproject\.toml .*?(?=^FROM )", text, re.MULTILINE | re.DOTALL)
    assert found is not None
    return "\n".join(line for line in found[0].splitlines() if line and not line.startswith("#"))


def test_both_images_build_our_wheel_in_the_same_way() -> None:
    steps = building("operators")
    assert "pip wheel" in steps
    assert "compileall" in steps
    assert steps == building("components") + "\nRUN rm /opt/muster/bin/muster"
