"""Rounds of the daemon's loop, one by one, and what is applied between them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.local.small import eventually, shell_job

from muster import spec
from muster.local import shim
from muster.local.boot import Parts, assemble
from muster.local.daemon import Daemon
from muster.local.home import Home, open_home


@pytest.fixture
def opened(home: Path) -> Home:
    return open_home(home)


@pytest.fixture
def parts(opened: Home) -> Iterator[Parts]:
    parts = assemble(opened, "1x8", None)
    yield parts
    parts.store.close()


@pytest.fixture
def daemon(opened: Home, parts: Parts) -> Iterator[Daemon]:
    lock = os.open(opened.lock, os.O_RDWR | os.O_CREAT)
    yield Daemon(opened, parts, 60.0, lock)
    os.close(lock)


def test_an_end_found_while_writes_are_carried_out_brings_the_next_round_at_once(parts: Parts, daemon: Daemon) -> None:
    uid = parts.service.submit([shell_job("short", "sleep 0.5")], dry_run=False)[0].metadata.uid

    def phase() -> str:
        return next((pod.phase for pod in parts.store.pods.get(uid, {}).values()), "")

    def phase_after(act: Callable[[], None]) -> str:
        act()
        return phase()

    eventually(lambda: phase_after(daemon._round) == "Running")
    daemon._round()
    (folder,) = parts.store.pods[uid].values()
    end = daemon._home.pod(uid, folder.role, folder.index, folder.attempt) / shim.EXIT

    def step() -> SimpleNamespace:
        """Looks at the world before the replica ends, and has its writes carried out after that."""
        eventually(lambda: end.exists() and phase_after(lambda: parts.cluster.apply(())) == "Succeeded")
        return SimpleNamespace(writes=(), waits={}, wake_at=None)

    daemon._engine = SimpleNamespace(step=step, snapshot=parts.news.snapshot)  # type: ignore[assignment]
    daemon._round()
    assert daemon._next_round is not None
    assert daemon._next_round <= time.time()


def test_jobs_of_one_name_in_two_namespaces_each_hear_what_of_them_is_ignored(parts: Parts) -> None:
    jobs = []
    for namespace, image in (("red", "torch:2"), ("blue", "")):
        body = shell_job("twin", "true").model_dump(mode="json", by_alias=True, exclude_none=True)
        body["metadata"]["namespace"] = namespace
        body["spec"]["roles"][0]["template"]["spec"]["containers"][0]["image"] = image
        jobs.append(spec.TrainingJob.model_validate(body))
    parts.service.apply(jobs)
    told = {
        str(job.metadata.namespace): [event.reason for event in parts.store.events(uid)]
        for uid, job in parts.store.jobs.items()
    }
    assert told == {"red": ["Ignored"], "blue": []}
