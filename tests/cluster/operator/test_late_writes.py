"""An operator that was frozen resumes after another one took over: by the API server's audit log it writes nothing.

Each of the two operators logs in as a user of its own, so that the log tells who wrote what.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.controlplane.plane import ControlPlane
from tests.cluster.operator.installing import CRDS, install
from tests.cluster.operator.pools import Pool
from tests.cluster.operator.process import QUICK, Operator

JOBS = 24


@dataclass(frozen=True, slots=True)
class Change:
    """One successful call that changed something. Times are RFC 3339, in one form, so they compare as texts."""

    user: str
    verb: str
    what: str
    began: str


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[ControlPlane]:
    """An audited control plane where alice and bob may do everything."""
    with ControlPlane.start(tmp_path / "plane", audited=True, crds=CRDS) as own:
        install(own)
        for user in ("alice", "bob"):
            own.kubectl("create", "clusterrolebinding", user, "--clusterrole=cluster-admin", f"--user={user}")
        own.api.create("/api/v1/namespaces", {"metadata": {"name": "late"}})
        yield own


@pytest.fixture
def pool(plane: ControlPlane) -> Pool:
    one = Pool(plane, "late", None)
    one.set_up(nodes=4, gpus=16)
    return one


def changes(plane: ControlPlane) -> list[Change]:
    return [
        Change(
            user=event["user"]["username"],
            verb=event["verb"],
            what=what(event),
            began=event["requestReceivedTimestamp"],
        )
        for event in plane.changes()
        if event["responseStatus"]["code"] < 300 and "dryRun=" not in event["requestURI"]
    ]


def what(event: dict[str, Any]) -> str:
    target = event.get("objectRef") or {}
    sub = f"/{target['subresource']}" if target.get("subresource") else ""
    return f"{target.get('resource', event['requestURI'])}{sub}"


def test_an_operator_that_resumes_after_another_took_over_writes_nothing_by_the_audit_log(
    plane: ControlPlane, pool: Pool, tmp_path: Path
) -> None:
    slow = ("--burst", "1", "--qps", "4")  # it needs long for what it has to write
    first = Operator(plane.kubeconfig("alice"), tmp_path / "first.log", "--identity", "first", *QUICK, *slow)
    operators = [first]
    try:
        first.wait("the first leads", lambda: first.leads)
        second = Operator(plane.kubeconfig("bob"), tmp_path / "second.log", "--identity", "second", *QUICK)
        operators.append(second)
        second.wait("the second is ready", lambda: second.get("/readyz")[0] == 200)
        for number in range(JOBS):
            pool.submit(f"j{number}", pods=2)
        pool.wait("the first is in the middle of its writes", lambda: len(pool.pods()) >= 3)
        first.freeze()
        names = [f"j{number}" for number in range(JOBS)]
        pool.wait("the second has done the rest", lambda: all(pool.phase(name) == "Running" for name in names))
        first.thaw()
        first.wait("the first knows", lambda: "leadership lost" in first.log.read_text())
        pool.submit("last", pods=2)
        pool.wait_for_phase("last", "Running")
        assert first.stop() == 0
        log = changes(plane)
        of_leases = [one for one in log if one.what == "leases" and one.user == "bob"]
        took_over = of_leases[0].began
        by_first = [one for one in log if one.user == "alice"]
        assert {one.what for one in by_first} >= {"leases", "pods", "trainingjobs/status"}, "it had begun to write"
        assert [one for one in by_first if one.began >= took_over] == []
        by_bob = sum(one.user == "bob" and one.what == "pods" and one.verb == "create" for one in log)
        assert by_bob > 2, "there was something left to write, beside the pods of the last job"
        assert sum(one.what == "pods" and one.verb == "create" for one in log) == 2 * (JOBS + 1), "no pod twice"
    finally:
        for operator in operators:
            if operator.running:
                operator.thaw()
                operator.kill()
