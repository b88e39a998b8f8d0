"""A violation is reported when a gang is placed where its pods are rejected or evicted, and only then."""

from __future__ import annotations

from copy import deepcopy

import pytest
from tests.chaos_checker.history import History

RETURNS = "no job returns to a node that rejected its pods"
BLAMED = "no job is placed on a node that two jobs blame"
EVICTS = "no job is placed on a node that evicts its pods"


def reject(history: History, key: str) -> None:
    """A kubelet rejects a pod."""
    status = {"phase": "Failed", "reason": "OutOfcpu", "message": "Pod was rejected"}
    history._change(key, lambda body: body.update(status=status))


def blame(history: History, name: str, node: str, reason: str = "PodRejected") -> None:
    """A job waits, and blames a node for an hour from now on."""
    history.job(name)
    entry = {"node": node, "at": history.time(), "until": history.time(3600), "reason": reason}
    history.status(name, blamedNodes=[entry])


@pytest.mark.parametrize(("times", "rules"), [(2, []), (3, [RETURNS])])
def test_a_job_that_returns_to_a_node_that_rejects_its_pods(times: int, rules: list[str]) -> None:
    history = History()
    history.job("a")
    for attempt in range(times):
        history.admit("a", "n0", attempt=attempt)
        key = history.pod("a", 0, "n0", attempt=attempt)
        history.bind(key, "n0")
        reject(history, key)
        history.status("a", "Admitted", "Evicted", attempt=attempt, placement=["n0"])
        history.remove("Pod", key)
        history.status("a", attempt=attempt + 1)
    assert history.rules == rules


@pytest.mark.parametrize(
    ("wait_s", "started", "nodes", "rules"),
    [
        (15, False, 2, [BLAMED]),
        (5, False, 2, []),  # the operator need not know yet
        (15, True, 2, []),
        (15, False, 1, []),  # more than half of all nodes
        (3700, False, 2, []),
    ],
)
def test_a_node_that_two_jobs_blame(wait_s: int, nodes: int, rules: list[str], *, started: bool) -> None:
    history = History(nodes)
    for name in ("a", "b"):
        blame(history, name, "n0")
    if started:
        history.wait(1)
        history.running("early", "n0")
    history.wait(wait_s)
    history.running("late", "n0")
    assert history.rules == rules


def test_a_node_that_jobs_blame_for_exit_codes_keeps_no_other_away() -> None:
    history = History()
    for name in ("a", "b"):
        blame(history, name, "n0", "RestartElsewhere")
    history.wait(15)
    history.running("late", "n0")
    assert history.rules == []


def test_one_job_that_blames_a_node_keeps_no_other_away() -> None:
    history = History()
    blame(history, "a", "n0")
    history.wait(15)
    history.running("b", "n0")
    assert history.rules == []


@pytest.mark.parametrize(
    ("toleration", "rules"),
    [
        ({"tolerationSeconds": 1}, [EVICTS]),
        ({}, []),
        ({"key": "other"}, [EVICTS]),
    ],
)
@pytest.mark.parametrize("wait_s", [15, 5])
def test_a_node_with_a_taint_that_evicts_the_pods_in_the_end(
    toleration: dict[str, object], wait_s: int, rules: list[str]
) -> None:
    history = History()
    node = deepcopy(history._last["Node", "n0"])
    node["spec"] = {"taints": [{"key": "brief", "effect": "NoExecute"}]}
    history.put("Node", "n0", node)
    history.job("a")
    job = deepcopy(history._last["TrainingJob", "ns/a"])
    wanted = {"key": "brief", "operator": "Exists", "effect": "NoExecute", **toleration}
    job["spec"]["roles"][0]["template"]["spec"]["tolerations"] = [wanted]
    history.put("TrainingJob", "ns/a", job)
    history.wait(wait_s)
    history.admit("a", "n0")
    assert history.rules == (rules if wait_s > 10 else [])
