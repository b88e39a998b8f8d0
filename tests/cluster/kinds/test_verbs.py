"""The verbs of `muster` for objects of other kinds, as a user calls them, with the real API server and controllers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cluster.kinds import objects
from tests.cluster.operator import queued
from tests.cluster.operator.pools import Pool

from muster.cli.app import main

Json = dict[str, Any]


class Muster:
    """Calls commands in the namespace of a pool; what each printed."""

    def __init__(self, pool: Pool, capsys: pytest.CaptureFixture[str]) -> None:
        self._pool, self._capsys = pool, capsys

    def __call__(self, verb: str, *words: str) -> str:
        self._capsys.readouterr()
        where = ("--kubeconfig", str(self._pool.plane.kubeconfig()))
        with pytest.raises(SystemExit) as ended:
            main((*where, verb, *words, "--namespace", self._pool.namespace))
        printed = self._capsys.readouterr()
        assert ended.value.code == 0, printed.out + printed.err
        return printed.out


def written(folder: Path, *documents: Json) -> str:
    """A file with these documents."""
    file = folder / "objects.yaml"
    file.write_text(yaml.safe_dump_all(documents))
    return str(file)


@pytest.mark.usefixtures("job_set_controller")
def test_jobs_and_job_sets_are_submitted_described_suspended_resumed_followed_and_cancelled(
    two: Pool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pool, muster = two, Muster(two, capsys)
    template = {"metadata": {"annotations": queued.does(run_seconds=600)}, "spec": queued.pod(2)}
    job: Json = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "one"}}
    job["spec"] = {"parallelism": 1, "backoffLimit": 0, "template": template}
    sets: Json = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": "set"}}
    sets["spec"] = {"replicatedJobs": [objects.replicated_job("worker", 2, 2)]}
    printed = muster("submit", written(tmp_path, job, sets), "--queue", pool.queue("blue"))
    assert printed.splitlines() == [
        f"{kind} {pool.namespace}/{name} submitted to queue {pool.queue('blue')}"
        for kind, name in (("job", "one"), ("jobset", "set"))
    ]
    for name, kind, pods in (("one", "Job", 1), ("set", "JobSet", 2)):
        queued.wait_for_phase(pool, name, "Running")
        pool.plane.write_log(f"line of {name}\n")
        assert f"line of {name}" in muster("logs", name)
        described = muster("describe", name)
        assert kind in described
        assert "Running" in described
        muster("suspend", name)
        queued.wait_for_phase(pool, name, "Suspended")
        assert "Suspended" in muster("describe", name)
        muster("resume", name)
        queued.wait_for_phase(pool, name, "Running")
        assert queued.workload(pool, name)["status"]["podsWanted"] == pods
    objects.annotate(pool, pool.pods(), run_seconds=0, exit_code=0)
    watched = muster("watch", "one")
    assert "Succeeded" in watched
    assert "Succeeded" in muster("watch", "set")
    last = {**job, "metadata": {"name": "last"}}
    muster("submit", written(tmp_path, last), "--queue", pool.queue("blue"))
    queued.wait_for_phase(pool, "last", "Running")
    muster("cancel", "last")
    queued.wait_for_phase(pool, "last", "Cancelled")
    pool.wait("its pods stop", lambda: queued.workload(pool, "last")["status"].get("finishedAt") is not None)
    assert pool.api.get(f"{queued.jobs_path(pool)}/last")["spec"]["suspend"] is True
    assert "Cancelled" in muster("describe", "last")
