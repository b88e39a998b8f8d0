"""Runs `muster` in this process against a cluster in memory."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.cli.memory import MemoryClient


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one command ended and what it said."""

    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[Any]:
        """Its JSON."""
        rows = json.loads(self.out)
        assert isinstance(rows, list)
        return rows

    @property
    def error(self) -> dict[str, str]:
        """The reason, field and message of its error, with --json."""
        error: dict[str, str] = json.loads(self.err.splitlines()[-1])["error"]
        return error

    @property
    def words(self) -> list[str]:
        """The words of its output and its notes, without punctuation at their ends."""
        return [word.strip(",;:.()'") for word in (self.out + self.err).split()]


Muster = Callable[..., Outcome]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MemoryClient:
    import muster.cli.options

    client = MemoryClient(tmp_path / "runs")
    monkeypatch.setattr(muster.cli.options, "_connect_local", lambda start: client)
    return client


@pytest.fixture
def muster(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Muster:
    """`muster("jobs", "--json")`, without colours and 120 columns wide."""
    from muster.cli.app import main

    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")

    def run(*words: str) -> Outcome:
        with pytest.raises(SystemExit) as ended:
            main(words)
        captured = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return Outcome(ended.value.code, captured.out, captured.err)

    return run
