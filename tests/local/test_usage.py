"""Usage over time on one host: the record survives kill -9 of the daemon and the deletion of jobs."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tests.local.support import eventually, shell_job

from muster.api import spec
from muster.errors import DaemonError, NotFound
from muster.local.client import LocalClient
from muster.usage.totals import HOUR_MS
from muster.workload.conditions import find_condition, is_admitted

T = TypeVar("T")
GPU = "nvidia.com/gpu"
_KILLS = 20


def of_user(job: spec.TrainingJob, user: str) -> spec.TrainingJob:
    labels = {"muster.dev/user": user}
    return job.model_copy(update={"metadata": job.metadata.model_copy(update={"labels": labels})})


def gpu_hours(client: LocalClient, by: str = "user") -> dict[str, float]:
    found = client.usage({"by": by, "step": "hour"}).items
    return {item.metadata.name: item.hours for item in found if item.resource == GPU}


def ms(time_s: float) -> int:
    return round(time_s * 1000)


class KilledDaemon:
    """A daemon that is killed while it works. `call` repeats until an answer comes from a daemon that lives."""

    def __init__(self, home: Path, seed: int) -> None:
        self.client = LocalClient.up(home, nodes="1x8", idle_s=300)
        self.kills = 0
        self._lock = home / "daemon.lock"
        self._random = random.Random(seed)

    def kill(self) -> None:
        with suppress(OSError, ValueError):
            os.kill(int(self._lock.read_text()), signal.SIGKILL)
            self.kills += 1

    def call(self, request: Callable[[], T]) -> T:
        def answer() -> list[T]:
            with suppress(DaemonError):
                return [request()]
            return []

        found: list[T] = eventually(answer, 300)
        return found[0]

    def until(self, name: str, reached: Callable[[spec.TrainingJobStatus], bool]) -> spec.TrainingJobStatus:
        """The status of a job once it is reached; the daemon is killed now and then while it works on it."""

        def final_status() -> Any:
            status = self.call(lambda: self.client.job(name)).status
            if not reached(status) and self._random.random() < 0.3:
                self.kill()
            return status if reached(status) else None

        status: spec.TrainingJobStatus = eventually(final_status, 300)
        return status


@pytest.mark.slow
def test_after_20_times_kill_9_usage_is_exactly_the_time_between_admission_and_release(home: Path) -> None:
    seed = int(os.environ.get("MUSTER_TEST_SEED") or 0)
    daemon = KilledDaemon(home, seed)
    client = daemon.client
    gpus = {"one": 1, "two": 3}
    for name, count in gpus.items():
        job = of_user(shell_job(name, "sleep 900", gpus=count, grace=1, suspend=True), name)
        daemon.call(lambda job=job: client.submit(job))  # type: ignore[misc]
    expected = dict.fromkeys(gpus, 0)  # GPU-milliseconds
    while daemon.kills < _KILLS:
        for name, count in gpus.items():
            daemon.call(lambda name=name: client.resume(name))  # type: ignore[misc]
            daemon.kill()
            began = daemon.until(name, is_admitted).admitted_at
            daemon.call(lambda name=name: client.suspend(name))  # type: ignore[misc]
            daemon.kill()
            status = daemon.until(name, lambda one: one.phase == "Suspended")
            released = find_condition(status, "Admitted")
            assert began is not None
            assert released is not None
            expected[name] += count * (ms(released.last_transition_time) - ms(began))
        assert daemon.call(lambda: gpu_hours(client)) == {name: one / HOUR_MS for name, one in expected.items()}
    for name in gpus:
        daemon.call(lambda name=name: _delete(client, name))  # type: ignore[misc]
        daemon.kill()
        eventually(lambda name=name: name not in [job.metadata.name for job in daemon.call(client.jobs)])  # type: ignore[misc]
    daemon.kill()
    assert daemon.call(lambda: gpu_hours(client)) == {name: one / HOUR_MS for name, one in expected.items()}
    assert daemon.call(lambda: gpu_hours(client, "queue")) == {"default": sum(expected.values()) / HOUR_MS}
    client.down(force=True)


def _delete(client: LocalClient, name: str) -> None:
    with suppress(NotFound):  # the call before was executed
        client.delete_all([("TrainingJob", name, "default")])


@pytest.mark.slow
def test_a_job_deleted_while_it_runs_counts_until_its_pods_have_ended(home: Path) -> None:
    client = LocalClient.up(home, nodes="1x8", idle_s=120)
    client.submit(of_user(shell_job("job", "sleep 900", gpus=2, grace=1), "ann"))
    admitted_at = eventually(lambda: client.job("job").status.admitted_at)
    running = eventually(lambda: gpu_hours(client).get("ann"))
    client.delete_all([("TrainingJob", "job", "default")])
    eventually(lambda: client.jobs() == [])
    deleted = gpu_hours(client)["ann"]
    assert deleted >= running > 0
    assert gpu_hours(client)["ann"] == deleted
    now = client.usage({}).source.observed_at
    assert deleted * HOUR_MS <= 2 * (ms(now) - ms(admitted_at))
    client.down(force=True)
