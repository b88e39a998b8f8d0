"""Two runs of one commit test the same examples, whatever else was imported before."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st


@pytest.mark.skipif(not settings.default or not settings.default.derandomize, reason="other examples in every run")
def test_examples_do_not_depend_on_imported_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def drawn() -> list[int]:
        seen: list[int] = []

        @settings(max_examples=200)
        @given(st.integers(0, 10**9))
        def draw(number: int) -> None:
            seen.append(number)

        draw()
        return seen

    before = drawn()
    source = tmp_path / "numbers_of_others.py"
    source.write_text("\n".join(f"N{n} = {7919 * n}" for n in range(1, 500)))
    found = importlib.util.spec_from_file_location("numbers_of_others", source)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    monkeypatch.setitem(sys.modules, "numbers_of_others", module)
    assert drawn() == before
