"""Which rank of which pod failed first decides, though its pod is not the first to end."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.local.small import ended, shell_job

from muster.local.client import LocalClient

_SCRIPT = """
import os, pathlib, signal, sys, time
folder, rank = pathlib.Path(os.environ["MUSTER_RUN_DIR"]), int(os.environ["RANK"])
noted = pathlib.Path(os.environ["MUSTER_FAILURE_FILE"].replace("trainer-0", "trainer-1"))  # of the second pod
signal.signal(signal.SIGTERM, signal.SIG_IGN if rank == 2 else signal.SIG_DFL)
(folder / f"up-{rank}").touch()
while len(list(folder.glob("up-*"))) < 4:
    time.sleep(0.02)
if rank == 3:
    print("the reason", flush=True)
    os._exit(42)
while rank == 2 or not noted.exists():  # a lost peer is noticed later than its end
    time.sleep(0.02)
sys.exit(1)
"""


@pytest.mark.slow
def test_a_rule_sees_the_code_of_the_rank_that_failed_first_and_not_of_the_pod_that_ended_first(
    home: Path, tmp_path: Path
) -> None:
    (tmp_path / "ranks.py").write_text(_SCRIPT)
    client = LocalClient.up(home, nodes="2x8", idle_s=60)
    line = f"exec {sys.executable} -m muster_components.launch --nproc 2 -- {tmp_path}/ranks.py"
    rules = [{"onExitCodes": [42], "action": "FailJob"}]
    policy = {"maxRestarts": 3, "rules": rules}
    client.submit(shell_job("first", line, replicas=2, gpus=8, failurePolicy=policy))
    job = ended(client, "first")
    failure = job.status.last_failure
    assert failure is not None
    assert (failure.exit_code, "trainer-1" in failure.pod, "the reason" in failure.log_tail) == (42, True, True)
    assert (job.status.phase, job.status.restarts) == ("Failed", 0)
    client.down(force=True)
