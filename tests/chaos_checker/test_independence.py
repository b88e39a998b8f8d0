"""The checker shares no code with Muster."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOADED = "import sys, tests.cluster.chaos.observer; print(*sorted({name.split('.')[0] for name in sys.modules}))"


def test_the_observer_loads_nothing_of_muster() -> None:
    done = subprocess.run([sys.executable, "-c", LOADED], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert "tests" in loaded
    assert not {"muster", "muster_operator", "muster_components", "msgspec", "pydantic"} & set(loaded)
