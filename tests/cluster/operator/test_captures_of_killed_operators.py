"""An operator that is killed during a capture (SIGKILL): the next one continues it, and the ranks record once."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.cluster.controlplane.plane import ControlPlane
from tests.cluster.operator.captures import StandInRank, create, running, status, wait_until_finished
from tests.cluster.operator.installing import CRDS, install
from tests.cluster.operator.pools import Json, Pool
from tests.cluster.operator.process import Operator
from tests.cluster.operator.sidecars import COLLECTORS
from tests.tracing.spool import TRACE

STAGES: dict[str, Callable[[Json], bool]] = {
    "proposed": lambda seen: bool(seen.get("proposal")),
    "agreed": lambda seen: seen.get("phase") in ("Agreed", "Recording", "Succeeded"),
    "recording": lambda seen: seen.get("phase") in ("Recording", "Succeeded"),
}


def test_a_capture_continues_after_its_operator_was_killed_at_each_stage(tmp_path: Path) -> None:
    with ControlPlane.start(tmp_path / "plane", crds=CRDS) as plane:
        install(plane)
        plane.api.create("/api/v1/namespaces", {"metadata": {"name": "old"}})

        def start(name: str) -> Operator:
            return Operator(plane.kubeconfig(), tmp_path / name, "--no-lease", *COLLECTORS)

        operators = [start("log")]
        pool = Pool(plane, "old", lambda: operators[-1])
        try:
            pool.set_up(nodes=1, gpus=8, cpu="8")
            with running(pool, "llama", tmp_path) as ranks:
                for stage in STAGES:
                    create(pool, stage, job="llama", steps=40)
                    wait_for_stage(pool, stage)
                    operators[-1].kill()
                    operators.append(start(f"log-{stage}"))
                    check_outcome(pool, stage, ranks, tmp_path / "llama")
        finally:
            operators[-1].kill()


def wait_for_stage(pool: Pool, stage: str) -> None:
    """Wait until the capture of this name is that far."""
    pool.wait(f"it is {stage}", lambda: STAGES[stage](status(pool, stage)))


def check_outcome(pool: Pool, stage: str, ranks: Sequence[StandInRank], folder: Path) -> None:
    """All ranks have recorded the agreed steps, once, and all files are whole. Until the steps are agreed, a capture
    may also fail because the next operator comes too late."""
    ended = wait_until_finished(pool, stage)
    wanted = (ended["startStep"], ended["endStep"])
    if stage != "proposed" or ended["reason"] != "NotAcknowledged":
        assert ended["phase"] == "Succeeded", (stage, ended)
        assert [rank.recorded.count(wanted) for rank in ranks] == [1] * len(ranks), stage
        for index, entry in enumerate(ended["ranks"]):
            assert (folder / str(index) / "traces" / entry["file"]).is_file()
    for file in folder.glob("*/traces/*.json.gz"):
        assert gzip.decompress(file.read_bytes()) == TRACE
