"""What a step records of a job that has ended, where metrics or report cannot be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from tests.local.support import shell_job

from muster.client import ClusterClient
from muster.kfp.results import collect_metrics, write_report


class Client:
    """A client of one job without a run folder, whose heartbeats or report fail with an error of no known kind."""

    def heartbeats(self, name: str, namespace: str) -> list[dict[str, Any]]:
        raise KeyError("rank")

    def run_dir(self, name: str, namespace: str) -> Path | None:
        return None


CLIENT = cast(ClusterClient, Client())


def test_metrics_that_cannot_be_read_are_printed_and_the_restarts_recorded(capsys: pytest.CaptureFixture[str]) -> None:
    assert collect_metrics(CLIENT, shell_job("fit", "true")) == {"restarts": 0.0}
    assert "the last metrics cannot be read: KeyError: 'rank'" in capsys.readouterr().out


def test_a_report_that_cannot_be_built_is_printed_and_replaced_by_a_page_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr("muster.kfp.results._report_page", fail)
    write_report(CLIENT, shell_job("fit", "true"), tmp_path / "report")
    assert "No report: ZeroDivisionError: division by zero." in (tmp_path / "report").read_text()
    assert "no report: ZeroDivisionError: division by zero" in capsys.readouterr().out
