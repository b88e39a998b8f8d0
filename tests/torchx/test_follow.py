"""The last line of a log that is followed, of a job in a cluster: what reports on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.api.spec import TrainingJob
from muster.client import DEFAULT_LOG_OPTIONS, LogOptions
from muster.follow import FollowedPod, StatusReporter, follow

POD = FollowedPod("llama", "team", "trainer", 0, is_primary=True)


class Cluster:
    """A cluster far away, with one job that has ended."""

    context_name = "prod"

    def __init__(self, traces: dict[str, Any] | None) -> None:
        document = {
            "metadata": {"name": "llama", "namespace": "team"},
            "spec": {"roles": [{"name": "trainer", "template": {"spec": {"containers": [{"image": "x"}]}}}]},
            "status": {"phase": "Succeeded", "traces": traces},
        }
        self._job = TrainingJob.model_validate(document)

    def job(self, name: str, namespace: str = "default") -> TrainingJob:
        return self._job

    def watch(self, name: str, namespace: str = "default") -> Iterator[TrainingJob]:
        yield self._job

    def run_dir(self, name: str, namespace: str = "default") -> Path | None:
        return None

    def log_lines(
        self, name: str, namespace: str, role: str, index: int, options: LogOptions = DEFAULT_LOG_OPTIONS
    ) -> Iterator[str]:
        yield "step 1"


@pytest.mark.parametrize(
    ("traces", "last"),
    [
        ({"location": "s3://b/team/llama-1"}, "muster: to build the report: muster report team/llama --context prod"),
        ({"location": "pvc://runs/team/llama-1"}, "muster: succeeded: succeeded"),
        (None, "muster: succeeded: succeeded"),
    ],
)
def test_it_names_the_command_for_the_report_where_a_store_has_the_run(
    traces: dict[str, Any] | None, last: str
) -> None:
    cluster: Any = Cluster(traces)
    lines = list(follow(cluster, POD, None, "llama", StatusReporter()))
    assert lines[0] == "step 1"
    assert lines[-1] == last
