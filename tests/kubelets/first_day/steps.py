"""The steps in their order. Each returns its observations and waits for the condition of the next one."""

from __future__ import annotations

import json
import sysconfig
import time
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tests.cluster.controlplane.api import Json
from tests.cluster.controlplane.nodes import GPU
from tests.kubelets.archives import TRAINER
from tests.kubelets.first_day.demo_cluster import DemoCluster

# One process on each of two nodes, with all GPUs of both. It computes on the CPU, of which the control plane takes its
# part first (`host_setup.lower_cpu_weight`). The text exists on every machine.
DATA = f"{sysconfig.get_path('stdlib')}/json"
TRAINING = (
    "run", "-s", "muster", "-cfg", "queue=research,run_volume=runs", "muster.train.fsdp", "-j", "2x1", "--gpu", "2",
    "--cpu", "1", "--model", "gpt:1m", "--data", DATA, "--image", TRAINER,
)  # fmt: skip
QUEUES = ("research", "production")


def share_out(demo: DemoCluster) -> None:
    """Create two queues with a node each; each may borrow the other's."""
    whole = [{"flavor": "default", "guaranteed": {GPU: 4}, "limit": {GPU: 4}}]
    demo.kubectl("apply", "-f", "-", stdin=_document("Queue", "company", {"resources": whole}))
    for name in QUEUES:
        resources = [{"flavor": "default", "guaranteed": {GPU: 2}, "limit": {GPU: 4}}]
        spec: Json = {"parent": "company", "namespaceSelector": {}, "resources": resources}
        demo.kubectl("apply", "-f", "-", stdin=_document("Queue", name, spec))


def train(demo: DemoCluster, name: str, steps: int, *more: str) -> str:
    """Submit compiled FSDP with TorchX; returns the job's name."""
    output = demo.torchx(*TRAINING, "--name", name, "--steps", str(steps), *more)
    handle = next(text for line in output.splitlines() for text in line.split() if text.startswith("muster://"))
    return handle.rpartition("/")[2]


def train_to_the_end(demo: DemoCluster) -> str:
    """Train until the job has succeeded, with a trace of steps 10 to 14; returns its name."""
    job = train(demo, "first", 30, "--trace_steps", "10:15")
    demo.wait("its two pods run", lambda: demo.phase(job) in ("Running", "Succeeded", "Failed"))
    demo.must_succeed(job)
    return job


def reclaim(demo: DemoCluster) -> tuple[str, int]:
    """Reclaim a borrowed node with a job of the other queue; returns the preempted job and its last step before the
    preemption. Returns once it trains again."""
    job = train(demo, "long", 100_000, "--checkpoint_every", "20", "--compile", "False")
    demo.wait("it has trained some steps", lambda: steps_done(demo, job) > 5)
    demo.kubectl("apply", "-f", "-", stdin=_claim())
    demo.wait("the other queue's job runs", lambda: demo.phase("claim") in ("Running", "Succeeded"))
    demo.wait("the borrower was preempted", lambda: demo.job(job)["status"].get("attempt", 0) > 0)
    before = steps_done(demo, job, attempt=0)
    demo.wait("the other queue's job is done", lambda: demo.phase("claim") == "Succeeded")
    demo.wait("the borrower trains again", lambda: steps_done(demo, job) > before + 5)
    return job, before


@dataclass(frozen=True, slots=True)
class Capture:
    """A trace on demand: seconds from the start of the command until it said that the steps are agreed, and until its
    end; seconds from the first proposal of steps to the last acknowledgement; the finished TraceCapture."""

    agreed_s: float
    done_s: float
    acknowledged_s: float
    object: Json


def trace_on_demand(demo: DemoCluster, job: str) -> Capture:
    """Profile three steps of a running job on all ranks with `muster trace`."""
    before = {one["metadata"]["name"] for one in demo.captures()}
    began, agreed = time.monotonic(), None
    for line in demo.muster_lines("trace", job, "--steps", "3"):
        if agreed is None and line.startswith(("agreed: ", "recording: ")):
            agreed = time.monotonic() - began
    done = time.monotonic() - began
    (mine,) = [one for one in demo.captures() if one["metadata"]["name"] not in before]
    assert agreed is not None, mine["status"]
    requested_at, agreed_at = (datetime.fromisoformat(mine["status"][name]) for name in ("requestedAt", "agreedAt"))
    return Capture(agreed, done, (agreed_at - requested_at).total_seconds(), mine)


def lose_a_node(demo: DemoCluster, job: str) -> int:
    """Kill a node and start it again; returns the attempt in which the job trains afterwards."""
    attempt = int(demo.metrics(job)[-1]["attempt"])
    node = demo.cluster.nodes[1]
    demo.log(f"kill all processes of {node.name}")
    demo.cluster.kill(node)
    time.sleep(1)
    demo.log(f"start {node.name} again")
    demo.cluster.boot(node)
    demo.cluster.wait_until_ready(node)
    demo.wait("a whole new attempt trains", lambda: int(demo.metrics(job)[-1]["attempt"]) > attempt)
    return int(demo.metrics(job)[-1]["attempt"])


def steps_done(demo: DemoCluster, job: str, attempt: int | None = None) -> int:
    """The last step that rank 0 has recorded, in any attempt or in this one."""
    steps = [int(line["step"]) for line in demo.metrics(job) if attempt in (None, line["attempt"])]
    return steps[-1] if steps else -1


def uninstall(demo: DemoCluster) -> str:
    """Uninstall the chart; returns Helm's output."""
    demo.log("helm uninstall muster -n muster-system")
    return demo.cluster.plane.helm("uninstall", "muster", "-n", "muster-system", "--wait")


def logs(demo: DemoCluster, job: str) -> dict[str, str]:
    """Log of each pod's trainer, by index."""
    names = {pod["metadata"]["labels"]["muster.dev/index"]: pod["metadata"]["name"] for pod in demo.pods(job)}
    return {index: demo.kubectl("logs", name, "-c", "trainer") for index, name in sorted(names.items())}


def _claim() -> str:
    """A single-pod job that needs a whole node for a few seconds."""
    main: dict[str, Any] = {
        "name": "main",
        "image": TRAINER,
        "command": ["sleep", "5"],
        "resources": {"limits": {GPU: 2}},
    }
    role = {"name": "main", "replicas": 1, "template": {"spec": {"containers": [main]}}}
    return _document("TrainingJob", "claim", {"queue": "production", "roles": [role]}, namespace="default")


def _document(kind: str, name: str, spec: Json, namespace: str = "") -> str:
    metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
    return json.dumps({"apiVersion": "muster.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec})
