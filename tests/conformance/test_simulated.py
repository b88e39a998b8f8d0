"""The scenarios on the cluster in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.conformance.harness import FLAVOR, GPU, GPUS, NODES, Script, Start, queues
from tests.conformance.scenarios import SCENARIOS, Scenario, play
from tests.simulate.scenario_cluster import ScenarioCluster

from muster.api import spec
from muster.cluster import CreatePod, NodeView, Write
from muster.engine import Engine, run_cycle
from muster.model import Resources
from muster.simulate import JobBehavior
from muster.workload.observation import ACTIVE_POD_PHASES
from muster.workload.timeouts import Timeouts


class SimHarness:
    """Virtual time; pods take a moment to start and to stop."""

    cannot: frozenset[str] = frozenset()

    def __init__(self) -> None:
        amounts = Resources.of({GPU: GPUS, "cpu": 8000, "memory": 2**34, "pods": 16})
        nodes = [NodeView(f"n{i}", amounts) for i in range(NODES)]
        flavor = spec.Flavor.model_validate({"metadata": {"name": FLAVOR}})
        self.cluster = Recording(nodes, [flavor], queues())
        self.engine = Engine(timeouts=Timeouts(backoff_s=0.2))
        self.wake_at: float | None = 0.0

    def submit(self, job: spec.TrainingJob, script: Script) -> str:
        # A pod here keeps its work when it checkpoints; the script never does.
        exits, stuck = script.exits, frozenset(script.stuck)
        work = JobBehavior(
            script.seconds, 0.1, 0.1, exit_codes=exits, fails_after_s=script.seconds, stuck_attempts=stuck
        )
        work = replace(work, endless_roles=frozenset(script.endless))
        self.wake_at = self.cluster.now
        return self.cluster.submit(job, work)

    def edit(self, uid: str, **fields: Any) -> None:
        self.cluster.edit(uid, **fields)
        self.wake_at = self.cluster.now

    def delete(self, uid: str) -> None:
        self.cluster.delete(uid)
        self.wake_at = self.cluster.now

    def job(self, uid: str) -> spec.TrainingJob | None:
        return self.cluster.job(uid) if self.cluster.has_job(uid) else None

    def live_pods(self, uid: str) -> int:
        return sum(pod.phase in ACTIVE_POD_PHASES for pod in self.cluster.pods(uid))

    def starts(self, uid: str) -> list[Start]:
        return self.cluster.starts.get(uid, [])

    def lose_pod(self, uid: str, index: int) -> None:
        self.cluster.lose_pod(uid, index)
        self.wake_at = self.cluster.now

    def wait(self, holds: Callable[[], bool], seconds: float = 30.0) -> None:
        end = self.cluster.now + seconds
        while not holds():
            times = [at for at in (self.cluster.next_event_time(), self.wake_at) if at is not None]
            assert times, "nothing will happen any more"
            assert min(times) <= end, f"not within {seconds} s"
            self.cluster.advance(max(self.cluster.now, min(times)))
            self.wake_at = run_cycle(self.cluster, self.engine).wake_at


class Recording(ScenarioCluster):
    """Notes every pod that is created."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.starts: dict[str, list[Start]] = {}

    def apply_one(self, write: Write) -> None:
        if isinstance(write, CreatePod):
            start = Start(write.attempt, f"{write.role}-{write.index}")
            self.starts.setdefault(write.job_uid, []).append(start)
        super().apply_one(write)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_on_the_simulated_cluster(scenario: Scenario) -> None:
    play(scenario, SimHarness())
