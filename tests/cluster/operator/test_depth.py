"""A job that is nested too deeply, which the API server accepts: it waits with a reason, and delays no other."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster.controlplane.plane import ControlPlane
from tests.cluster.operator.installing import CRDS, install
from tests.cluster.operator.pools import Pool
from tests.cluster.operator.process import Operator

TOO_DEEP = "spec.roles[0].template.spec.odd.x.x.x.x: must be nested at most 64 levels deep"
NAME = "deep"


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    """A cluster, and an operator that can be replaced."""
    with ControlPlane.start(tmp_path / "plane", crds=CRDS) as plane:
        install(plane)
        plane.api.create("/api/v1/namespaces", {"metadata": {"name": "deep"}})
        operators = [start(plane, tmp_path)]
        one = Pool(plane, "deep", lambda: operators[-1])
        one.set_up(nodes=2, gpus=4)

        def restart() -> None:
            operators[-1].kill()
            operators.append(start(plane, tmp_path))

        one.restart = restart  # type: ignore[attr-defined]
        try:
            yield one
            assert operators[-1].stop() == 0, operators[-1].tail()
            assert "Traceback" not in (tmp_path / "log").read_text()
        finally:
            operators[-1].kill()


def start(plane: ControlPlane, folder: Path) -> Operator:
    return Operator(plane.kubeconfig(), folder / "log", "--no-lease")


def apply(pool: Pool, levels: int) -> None:
    """What any user can do: `kubectl apply` of a job with an unknown field, nested so deeply."""
    document = pool.job(NAME, pods=1)
    if levels:
        document["spec"]["roles"][0]["template"]["spec"]["odd"] = "ODD"
    odd = '{"x":' * levels + "0" + "}" * levels
    pool.plane.kubectl("apply", "-f", "-", stdin=json.dumps(document).replace('"ODD"', odd))


def reads(pool: Pool, path: str) -> str:
    """A field of the job; what it holds besides, no client in Python could read."""
    return pool.plane.kubectl("get", "tj", NAME, "-n", pool.namespace, "-o", f"jsonpath={{{path}}}")


def reason(pool: Pool) -> tuple[str, str]:
    admitted = '.status.conditions[?(@.type=="Admitted")]'
    return reads(pool, f"{admitted}.reason"), reads(pool, f"{admitted}.message")


def delete(pool: Pool) -> None:
    pool.plane.kubectl("delete", "tj", NAME, "-n", pool.namespace)
    pool.wait("its pods go", lambda: pool.pods(NAME) == [])


def runs(pool: Pool, name: str) -> None:
    """A job of another user, submitted now, runs; then it is deleted."""
    pool.submit(name, pods=1)
    pool.wait_for_phase(name, "Running")
    pool.delete(name)


def test_a_job_nested_too_deeply_waits_alone_until_it_is_corrected_or_deleted(pool: Pool) -> None:
    pool.submit("before", pods=1)
    pool.wait_for_phase("before", "Running")
    apply(pool, 1500)
    pool.wait("it says why", lambda: reason(pool) == ("InvalidSpec", TOO_DEEP))
    pool.wait("an Event tells", lambda: "InvalidSpec" in pool.events(NAME))
    runs(pool, "beside")
    pool.restart()  # type: ignore[attr-defined]
    runs(pool, "after-a-restart")
    assert reason(pool) == ("InvalidSpec", TOO_DEEP)
    apply(pool, 0)
    pool.wait("it runs once it is mended", lambda: reads(pool, ".status.phase") == "Running")
    delete(pool)
    apply(pool, 9000)  # an API server goes down 10,000
    pool.wait("it says why again", lambda: reason(pool) == ("InvalidSpec", TOO_DEEP))
    delete(pool)
    runs(pool, "after-it-is-gone")
    assert (pool.phase("before"), pool.attempt("before")) == ("Running", 0)
