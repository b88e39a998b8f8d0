"""TraceCaptures of a test: a job of two pods whose collectors run, with ranks that need no torch."""

from __future__ import annotations

import json
import pickle
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.cluster.operator.pools import GROUP, Json, Pool
from tests.cluster.operator.sidecars import any_address, collecting, listens
from tests.tracing.flight_recorder import dump, entry
from tests.tracing.spool import TRACE

from muster_components.trainer.capture import CaptureInbox, ProfileRequest
from muster_components.trainer.context import RunContext
from muster_components.trainer.reporter import RankHeartbeat, Reporter

LATER = {"startStep": 10**9, "steps": 1}  # so that each pod has a collector
WORLD_SIZE = 2
GROUPS = {"1": ("mesh_fsdp", "[0, 1]")}


class StandInRank:
    """Makes steps, and answers and writes traces as the trainer does, without torch."""

    def __init__(self, run_dir: Path, rank: int) -> None:
        self.context = RunContext(
            rank=rank, world_size=WORLD_SIZE, local_rank=0, local_world_size=1, attempt=0, job="j", run_dir=run_dir
        )
        self.reporter = Reporter(self.context)
        self.inbox = CaptureInbox(self.context, self.reporter)
        self.recorded: list[tuple[int, int]] = []
        self.hangs = False
        self.answered = ""  # request for stacks
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        step, armed = 0, None
        while not self.stop.wait(0.02):
            self._answer_for_launcher()
            if self.hangs:
                continue
            request = self.inbox.poll()
            if request is not None:
                armed = self._answered(request, step + 1)
            if armed is not None and step + 1 == armed.start:
                self.inbox.answer(armed, "recording", step + 1)
            if armed is not None and step + 1 == armed.end:
                self._write(armed)
                armed = None
            step += 1
            heartbeat = RankHeartbeat(
                rank=self.context.rank, world_size=WORLD_SIZE, attempt=0, step=step, step_time_s=0.02
            )
            self.reporter.write_heartbeat(heartbeat)

    def _answer_for_launcher(self) -> None:
        """What the launcher of the pod does about a request for stacks."""
        folder = self.context.capture_dir
        if not (folder / "stacks-request.json").exists():
            return
        request = json.loads((folder / "stacks-request.json").read_text())
        if request["id"] == self.answered:
            return
        self.answered = request["id"]
        frames = ["sleep (/data.py:3)" if self.hangs else "wait (/train.py:7)"]
        recorder = f"flight-recorder/rank-{self.context.rank}.attempt-0.{request['id']}.pickle"
        collectives = dump(entry(7), *([] if self.hangs else [entry(8, state="started")]), groups=GROUPS)
        (self.context.run_dir / "flight-recorder").mkdir(exist_ok=True)
        (self.context.run_dir / recorder).write_bytes(pickle.dumps(collectives))
        answer = {**request, "rank": self.context.rank, "frames": frames, "reason": "", "file": "stacks/x.txt"}
        answer["recorder"] = recorder
        self.reporter.replace(folder / f"stacks-rank-{self.context.rank}.json", answer)

    def _answered(self, request: ProfileRequest, step: int) -> ProfileRequest | None:
        if request.cancelled or (request.ranks and self.context.rank not in request.ranks):
            return None
        if step > request.start:
            self.inbox.answer(request, "rejected", step, "past it")
            return None
        self.inbox.answer(request, "armed", step)
        return request

    def _write(self, request: ProfileRequest) -> None:
        path = self.context.trace_path(request.start, request.end)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".tmp").write_bytes(TRACE)
        path.with_suffix(".tmp").rename(path)
        self.recorded.append((request.start, request.end))
        self.inbox.answer(request, "written", request.end)


@contextmanager
def running(pool: Pool, name: str, folder: Path) -> Iterator[list[StandInRank]]:
    """A job of two pods, whose collectors run, with a rank each."""
    pool.submit(name, pods=WORLD_SIZE, trace=LATER, does={"ip": any_address()})
    pool.wait_for_phase(name, "Running")
    ranks: list[StandInRank] = []
    pods = pool.pods(name)
    with ExitStack() as stack:
        for pod in pods:
            index = int(pod["metadata"]["labels"]["muster.dev/index"])
            address = any_address()  # KWOK gives all pods of a role the same one
            pool.api.patch(
                f"/api/v1/namespaces/{pool.namespace}/pods/{pod['metadata']['name']}/status",
                {"status": {"podIP": address, "podIPs": [{"ip": address}]}},
            )
            run_dir = folder / name / str(index)
            run_dir.mkdir(parents=True)
            pod["status"]["podIP"] = address
            stack.enter_context(collecting(pool, pod, run_dir))
            ranks.append(StandInRank(run_dir, index))
        try:
            pool.wait("the collectors listen", lambda: all(map(listens, pods)))
            yield sorted(ranks, key=lambda one: one.context.rank)
        finally:
            for rank in ranks:
                rank.stop.set()
                rank.thread.join()


def path_of(pool: Pool, name: str = "") -> str:
    collection = f"{GROUP}/namespaces/{pool.namespace}/tracecaptures"
    return f"{collection}/{name}" if name else collection


def create(pool: Pool, name: str, **spec: Any) -> None:
    meta = {"name": name, "namespace": pool.namespace}
    document = {"apiVersion": "muster.dev/v1alpha1", "kind": "TraceCapture", "metadata": meta, "spec": spec}
    pool.api.create(path_of(pool), document)


def status(pool: Pool, name: str) -> Json:
    found: Json = pool.api.get(path_of(pool, name)).get("status") or {}
    return found


def wait_until_finished(pool: Pool, name: str) -> Json:
    pool.wait("the capture ends", lambda: status(pool, name).get("phase") in ("Succeeded", "Failed"))
    return status(pool, name)
