"""Logs of an index of an array: the attempt in which it ended is that of its pod."""

from __future__ import annotations

from typing import Any

from tests.cli.conftest import Muster
from tests.cluster_client.server import JOBS, Json, Server

from muster.kinds.trainingjob.pods import pod_name

PODS = "/api/v1/namespaces/default/pods"
ROLE = {"name": "worker", "template": {"spec": {"containers": [{"name": "main", "image": "x"}]}}}


def put_array(served: Server) -> None:
    """Indices 0 and 1 have ended, 1 in its third attempt."""
    spec = {"array": {"indices": "0-2"}, "roles": [ROLE]}
    status = {"array": {"succeeded": "0-1", "highestAttempt": 2}}
    document = {"metadata": {"name": "sweep", "namespace": "default"}, "spec": spec, "status": status}
    uid = served.put(f"{JOBS}/sweep", {"apiVersion": "muster.dev/v1alpha1", "kind": "TrainingJob", **document})[
        "metadata"
    ]["uid"]
    for index, attempt in ((0, 0), (1, 1), (1, 2)):
        put_pod(served, uid, index, attempt)


def put_pod(served: Server, uid: str, index: int, attempt: int) -> None:
    name = pod_name(f"sweep-{index}", f"{uid}/{index}", "worker", 0, attempt)
    labels: dict[str, Any] = {"muster.dev/job-uid": uid, "muster.dev/array-index": str(index)}
    labels |= {"muster.dev/role": "worker", "muster.dev/index": "0", "muster.dev/attempt": str(attempt)}
    item: Json = {"metadata": {"name": name, "namespace": "default", "labels": labels}}
    served.put(f"{PODS}/{name}", item | {"spec": {"containers": [{"name": "main"}]}, "status": {}})
    served.put(f"{PODS}/{name}/log", {"metadata": {}, "line": f"attempt {attempt} of index {index}"})


def test_the_log_of_an_ended_index_is_that_of_its_last_attempt(served: Server, muster: Muster) -> None:
    put_array(served)
    for index, attempt in ((0, 0), (1, 2)):
        ended = muster("logs", f"sweep-{index}", "--role", "worker", "--index", "0")
        assert ended.code == 0, ended.err
        assert f"attempt {attempt} of index {index}" in ended.out
