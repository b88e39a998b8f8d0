"""The conformance scenarios of all clusters, with real processes on this host."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.harness import FLAVOR, GPUS, NODES, Script, Start, queues
from tests.conformance.scenarios import SCENARIOS, Scenario, play

from muster.api import spec
from muster.engine import Engine, run_cycle
from muster.local.cluster import LocalCluster
from muster.local.environment import JobEnvironmentStore
from muster.local.home import open_home
from muster.local.launcher import LaunchContext
from muster.local.nodes import parse_shape, virtual_nodes
from muster.local.objects import ObjectRegistry
from muster.local.pod_folder import PodFolder, ShimRunning
from muster.local.pod_supervisor import PodSupervisor
from muster.local.store import open_store
from muster.workload.observation import ACTIVE_POD_PHASES
from muster.workload.timeouts import Timeouts

ENVIRONMENT = {"PATH": os.environ["PATH"]}
PATIENCE = 10  # multiplies the timeouts of a scenario: real processes on a busy machine


class LocalHarness:
    """The parts of the daemon without its loop: cycles run while a scenario waits."""

    # A replica on this host is ready as soon as it runs.
    cannot = frozenset({"a_gang_that_is_not_ready_in_time_is_torn_down_and_queued_again"})

    def __init__(self, path: Path) -> None:
        self.path = path
        self.home = open_home(path / "home")
        self.store = open_store(self.home.database)
        nodes = virtual_nodes(parse_shape(f"{NODES}x{GPUS}"))
        host = LaunchContext(self.home, "boot", ENVIRONMENT, 0o022, ("/bin/true",))
        gpus = tuple(str(number) for number in range(GPUS))
        self.replicas = PodSupervisor(host, self.store, {node.name: gpus for node in nodes})
        self.cluster = LocalCluster(self.home, self.store, self.replicas, nodes)
        self.objects = ObjectRegistry(self.store, nodes, ENVIRONMENT, JobEnvironmentStore(self.home), time.time)
        self.engine = Engine(timeouts=Timeouts(backoff_s=0.2))
        flavor = spec.Flavor.model_validate({"metadata": {"name": FLAVOR}})
        self.objects.apply([flavor, *queues()])

    def submit(self, job: spec.TrainingJob, script: Script) -> str:
        body = job.model_dump(mode="json", by_alias=True, exclude_none=True)
        for role in body["spec"]["roles"]:
            container = role["template"]["spec"]["containers"][0]
            container["command"] = script.command()
            container["env"] = [{"name": "CONFORMANCE_LOG", "value": str(self._notes(job.metadata.name))}]
        return self.objects.submit([spec.TrainingJob.model_validate(body)], dry_run=False)[0].metadata.uid

    def edit(self, uid: str, **fields: Any) -> None:
        self.objects.patch("default", self.store.jobs[uid].metadata.name, fields)

    def delete(self, uid: str) -> None:
        self.objects.delete_all([("TrainingJob", self.store.jobs[uid].metadata.name, "default")])

    def job(self, uid: str) -> spec.TrainingJob | None:
        return self.store.jobs.get(uid)

    def live_pods(self, uid: str) -> int:
        return sum(pod.phase in ACTIVE_POD_PHASES for pod in self.store.pods.get(uid, {}).values())

    def starts(self, uid: str) -> list[Start]:
        notes = self._notes(self.store.jobs[uid].metadata.name)
        events = [line.split() for line in notes.read_text().splitlines()] if notes.exists() else []
        return [Start(int(event[2]), event[1]) for event in events if event[0] == "start"]

    def _notes(self, job: str) -> Path:
        """The file in which the replicas of one job record what they do."""
        return self.path / f"notes-{job}"

    def lose_pod(self, uid: str, index: int) -> None:
        pod = next(pod for pod in self.store.pods[uid].values() if pod.index == index)
        state = PodFolder(self.home.pod_dir(uid, pod.role, pod.index, pod.attempt)).state()
        assert isinstance(state, ShimRunning)
        assert state.pid is not None
        os.kill(state.pid, signal.SIGKILL)

    def wait(self, holds: Callable[[], bool], seconds: float = 30.0) -> None:
        end = time.monotonic() + PATIENCE * seconds
        while True:
            self.replicas.sync()
            run_cycle(self.cluster, self.engine)
            if holds():
                return
            assert time.monotonic() < end, f"not within {PATIENCE * seconds} s"
            time.sleep(0.02)


@pytest.fixture
def harness(home: Path) -> Iterator[LocalHarness]:
    harness = LocalHarness(home.parent)
    yield harness
    harness.store.close()


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_on_this_host(scenario: Scenario, harness: LocalHarness) -> None:
    play(scenario, harness)
