"""Jobs and statuses for the tests of the verbs."""

from __future__ import annotations

from typing import Any

from tests.cli.memory import NOW

from muster.api.spec import TERMINAL_PHASES, Queue, TrainingJob, TrainingJobStatus

JOB_YAML = """\
apiVersion: muster.dev/v1alpha1
kind: TrainingJob
metadata: {name: llama}
spec:
  queue: research
  roles:
  - name: trainer
    replicas: 2
    template: {spec: {containers: [{command: [python, train.py], resources: {limits: {nvidia.com/gpu: 8}}}]}}
"""
QUEUE_YAML = """\
apiVersion: muster.dev/v1alpha1
kind: Queue
metadata: {name: research}
"""
FAILURE = {"pod": "llama-trainer-1", "exitCode": 3, "logTail": "step 1\nValueError: [red]bad[/red] loss\x1b[0m\n\n"}


def job(name: str = "llama", status: TrainingJobStatus | None = None, **spec: Any) -> TrainingJob:
    roles = [{"name": "trainer", "replicas": 2, "template": {"spec": {"containers": [{"command": ["python"]}]}}}]
    made = TrainingJob.model_validate(
        {"metadata": {"name": name}, "spec": {"queue": "research", "roles": roles, **spec}}
    )
    return made.model_copy(update={"status": status or TrainingJobStatus(submitted_at=NOW)})


def status(phase: str, reason: str = "", message: str = "", **fields: Any) -> TrainingJobStatus:
    kind = {"Succeeded": "Complete", "Failed": "Failed", "Suspended": "Suspended", "Running": "PodsReady"}
    kind |= {"Cancelled": "Cancelled", "Terminating": "Cancelled"}
    if phase in TERMINAL_PHASES:
        fields = {"finishedAt": NOW, **fields}
    condition = {
        "type": kind.get(phase, "Admitted"),
        "status": "False" if phase == "Pending" else "True",
        "reason": reason or phase,
        "message": message,
        "lastTransitionTime": NOW,
    }
    return TrainingJobStatus.model_validate({"phase": phase, "conditions": [condition], "submittedAt": NOW, **fields})


def placement(*nodes: str) -> list[dict[str, Any]]:
    shares = [{"node": node, "indexes": str(index)} for index, node in enumerate(nodes)]
    return [{"role": "trainer", "flavor": "h200", "nodes": shares}]


def queue(name: str, parent: str | None = None) -> Queue:
    return Queue.model_validate({"metadata": {"name": name}, "spec": {"parent": parent, "namespaceSelector": {}}})
