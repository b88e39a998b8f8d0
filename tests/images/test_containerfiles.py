"""The two Containerfiles repeat how the wheel is built, since a Containerfile cannot include another and each can be
built with one command. These tests compare the two. The operator's omits the command `muster`, whose imports are not in
its image."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def building(name: str) -> str:
    """The stage `build` from the sources to its last step, without comments."""
    text = (ROOT / name / "Containerfile").read_text()
    found = re.search(r"^COPY pyproject\.toml .*?(?=^FROM )", text, re.MULTILINE | re.DOTALL)
    assert found is not None
    return "\n".join(line for line in found[0].splitlines() if line and not line.startswith("#"))


def test_both_images_build_our_wheel_in_the_same_way() -> None:
    steps = building("operators")
    assert "pip wheel" in steps
    assert "compileall" in steps
    assert steps == building("components") + "\nRUN rm /opt/muster/bin/muster"
