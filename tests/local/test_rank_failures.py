"""The rank that fails first decides, and a taken rendezvous port is no failure of the job."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.local.support import ended, eventually, shell_job

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
while rank == 2 or not noted.exists():  # the loss of a peer is noticed after its end
    time.sleep(0.02)
sys.exit(1)
"""


@pytest.mark.slow
@pytest.mark.smoke
def test_a_failure_rule_gets_the_exit_code_of_the_first_failed_rank_not_of_the_first_ended_pod(
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


pytestmark = pytest.mark.slow

OTHER_PROGRAM = """\
import os, pathlib, socket, time
port = int(os.environ["MUSTER_RANK0_PORT"])
with socket.create_server(("127.0.0.1", port)):
    pathlib.Path(os.environ["MUSTER_RUN_DIR"], "taken").write_text(str(port))
    time.sleep(600)
"""

LINE = """\
if [ $MUSTER_ATTEMPT -lt {attempts} ] && [ $MUSTER_REPLICA = 0 ]; then
  rm -f $MUSTER_RUN_DIR/taken
  {python} {other_program} &
  until [ -e $MUSTER_RUN_DIR/taken ]; do sleep 0.05; done
fi
exec {python} -m muster_components.launch --nproc 1 -- {script}
"""


@pytest.fixture
def client(home: Path, tmp_path: Path) -> LocalClient:
    (tmp_path / "other_program.py").write_text(OTHER_PROGRAM)
    (tmp_path / "script.py").write_text("import os; print('met at', os.environ['MASTER_PORT'])")
    return LocalClient.up(home, nodes="2x8", idle_s=60)


def line(folder: Path, attempts: int) -> str:
    """The command of the pods; in the first `attempts` attempts the port is taken before the launcher starts."""
    return LINE.format(
        python=sys.executable, other_program=folder / "other_program.py", script=folder / "script.py", attempts=attempts
    )


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_gang_whose_port_is_taken_restarts_with_another_port_without_a_failure(
    client: LocalClient, tmp_path: Path, replicas: int
) -> None:
    client.submit(shell_job("meet", line(tmp_path, 1), replicas=replicas, failurePolicy={"maxRestarts": 0}))
    job = ended(client, "meet")
    assert (job.status.phase, job.status.restarts, job.status.attempt) == ("Succeeded", 0, 1)
    taken = (client.run_dir("meet") / "taken").read_text()
    (message,) = [event["message"] for event in client.events("meet") if event["reason"] == "PortInUse"]
    assert f"port {taken} " in message
    (met,) = client.log_lines("meet", "default", "trainer", 0)
    assert met.startswith("met at ")
    assert met != f"met at {taken}"


HANGS = """\
import pathlib, signal, time

signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path("{folder}", "hangs").touch()

def stand_still():
    while True:
        time.sleep(1000)

stand_still()
"""


ENDS_WITH_ITS_LAST_STEP = """\
import json, os, pathlib, signal, sys, time

heartbeat = pathlib.Path(os.environ["MUSTER_RUN_DIR"], "heartbeats", "rank-0.json")
heartbeat.parent.mkdir(parents=True, exist_ok=True)

def write(step, phase):
    fields = {{"rank": 0, "world_size": 1, "attempt": 0, "step": step, "steps": 60, "phase": phase, "at": time.time()}}
    heartbeat.write_text(json.dumps(fields))

def stop(*_):
    write({last}, "done")
    sys.exit(0)

signal.signal(signal.SIGTERM, stop)
write(59, "train")
pathlib.Path("{folder}", "runs").touch()
time.sleep(1000)
"""


@pytest.mark.parametrize(("last", "phase"), [(60, "Succeeded"), (59, "Pending")])
def test_a_job_that_does_its_last_step_in_its_grace_period_has_completed(
    home: Path, tmp_path: Path, last: int, phase: str
) -> None:
    (tmp_path / "train.py").write_text(ENDS_WITH_ITS_LAST_STEP.format(folder=tmp_path, last=last))
    client = LocalClient.up(home, nodes="1x8", idle_s=60)
    line = f"exec {sys.executable} -m muster_components.launch --nproc 1 -- {tmp_path}/train.py"
    client.submit(shell_job("last", line, gpus=8, grace=600))
    eventually((tmp_path / "runs").exists)
    client.submit(shell_job("urgent", "exec sleep 1000", gpus=8, priority=9))
    eventually(lambda: client.job("last").status.phase == phase)
    client.down(force=True)


def test_where_ranks_were_that_did_not_stop_is_an_event_of_the_job(home: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(HANGS.format(folder=tmp_path))
    client = LocalClient.up(home, nodes="1x8", idle_s=60)
    launch = f"{sys.executable} -m muster_components.launch --nproc 1 --"
    line = f"exec {launch} -m muster_components.trainer.instrument {tmp_path}/train.py"
    client.submit(shell_job("hung", line, grace=12))
    eventually((tmp_path / "hangs").exists)
    client.suspend("hung")
    reasons = eventually(lambda: [event for event in client.events("hung") if event["reason"] == "RanksDidNotStop"])
    (event,) = reasons
    assert "ranks of attempt 0 did not stop: rank 0 is in stand_still (" in event["message"]
    client.down(force=True)


SAVES_NOTHING = """import pathlib, time

def train_batch():
    pathlib.Path("{folder}", "trains").touch()
    time.sleep(1000)

train_batch()
"""


def test_of_a_preempted_job_that_saved_nothing_it_is_said_how_much_was_lost_and_where_its_ranks_were(
    home: Path, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(SAVES_NOTHING.format(folder=tmp_path))
    client = LocalClient.up(home, nodes="1x8", idle_s=60)
    launch = f"{sys.executable} -m muster_components.launch --nproc 1 --"
    line = f"exec {launch} -m muster_components.trainer.instrument {tmp_path}/train.py"
    client.submit(shell_job("lost", line, gpus=8, grace=60))
    eventually((tmp_path / "trains").exists)
    client.submit(shell_job("urgent", "exec sleep 1000", gpus=8, priority=9))
    (event,) = eventually(lambda: [one for one in client.events("lost") if one["reason"] == "CheckpointNotSaved"])
    assert "attempt 0 was stopped (Preempted): no checkpoint was saved, " in event["message"]
    assert "when it was stopped, rank 0 is in train_batch (" in event["message"]
    stop = client.job("lost").status.last_stop
    assert stop is not None
    assert (stop.attempt, stop.reason, stop.saved) == (0, "Preempted", False)
    assert "train_batch" in stop.ranks
    client.down(force=True)
