"""Another program takes the port of a gang between its choice and its use: nobody's failure but the port's."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.local.small import ended, shell_job

from muster.local.client import LocalClient

pytestmark = pytest.mark.slow

SQUATTER = """\
import os, pathlib, socket, time
port = int(os.environ["MUSTER_RANK0_PORT"])
with socket.create_server(("127.0.0.1", port)):
    pathlib.Path(os.environ["MUSTER_RUN_DIR"], "taken").write_text(str(port))
    time.sleep(600)
"""
LINE = """\
if [ $MUSTER_ATTEMPT -lt {attempts} ] && [ $MUSTER_REPLICA = 0 ]; then
  rm -f $MUSTER_RUN_DIR/taken
  {python} {squatter} &
  until [ -e $MUSTER_RUN_DIR/taken ]; do sleep 0.05; done
fi
exec {python} -m muster_components.launch --nproc 1 -- {script}
"""


@pytest.fixture
def client(home: Path, tmp_path: Path) -> LocalClient:
    (tmp_path / "squatter.py").write_text(SQUATTER)
    (tmp_path / "script.py").write_text("import os; print('met at', os.environ['MASTER_PORT'])")
    return LocalClient.up(home, nodes="2x8", idle_s=60)


def line(folder: Path, attempts: int) -> str:
    """What pods run; the port of the first `attempts` attempts is taken before the launcher comes."""
    return LINE.format(
        python=sys.executable, squatter=folder / "squatter.py", script=folder / "script.py", attempts=attempts
    )


@pytest.mark.parametrize("replicas", [1, 2])
def test_the_gang_meets_at_another_port_and_that_is_no_failure_of_the_job(
    client: LocalClient, tmp_path: Path, replicas: int
) -> None:
    client.submit(shell_job("meet", line(tmp_path, 1), replicas=replicas, failurePolicy={"maxRestarts": 0}))
    job = ended(client, "meet")
    assert (job.status.phase, job.status.restarts, job.status.attempt) == ("Succeeded", 0, 1)
    taken = (client.run_dir("meet") / "taken").read_text()
    (told,) = [event["message"] for event in client.events("meet") if event["reason"] == "PortInUse"]
    assert f"another program has port {taken}," in told
    (met,) = client.log_lines("meet", "default", "trainer", 0)
    assert met.startswith("met at ")
    assert met != f"met at {taken}"
