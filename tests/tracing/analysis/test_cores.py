"""How many processes read traces."""

from __future__ import annotations

import os

import pytest

from muster.tracing.analysis.cores import usable_cores


def test_without_a_cpu_affinity_all_cores_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert usable_cores() == len(os.sched_getaffinity(0))
    monkeypatch.delattr(os, "sched_getaffinity")
    assert usable_cores() == os.cpu_count()
