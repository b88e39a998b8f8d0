"""Every verb of the scheduler against a real daemon, through TorchX's own runner."""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.local.support import eventually
from tests.torchx.torchrun_components import TORCHRUN_COMPONENTS
from torchx.components import dist, utils
from torchx.runner import Runner, get_runner
from torchx.schedulers.api import Stream
from torchx.specs import NONE, AppDef, AppHandle, AppState, AppStatus, Resource, Role, RoleStatus, macros

from muster.api.spec import TrainingJob
from muster.api.yaml_input import load_objects
from muster.local.client import LocalClient
from muster.local.pod_folder import PodFolder
from muster.torchx.errors import SubmissionRefused
from muster_components.train import fsdp

SCHEDULER = "muster_local"


@pytest.fixture
def runner(home: Path) -> Iterator[Runner]:
    with get_runner(muster_home=str(home)) as runner:
        yield runner


def shell(text: str, *, replicas: int = 1, cpu: int = 1, **role: object) -> AppDef:
    """An app whose pods run a shell text."""
    resource = Resource(cpu=cpu, gpu=0, memMB=-1)
    fields = {"num_replicas": replicas, "resource": resource, "entrypoint": "sh", "args": ["-c", text], **role}
    return AppDef(name="shell", roles=[Role(name="main", image="", **fields)])


def run(runner: Runner, app: AppDef, **cfg: str | int) -> AppHandle:
    return str(runner.run(app, SCHEDULER, cfg))


def end(runner: Runner, handle: AppHandle) -> AppStatus:
    status = runner.wait(handle, wait_interval=0.1)
    assert status is not None
    return status


def log(runner: Runner, handle: AppHandle, replica: int = 0, **how: object) -> list[str]:
    return list(runner.log_lines(handle, "main", replica, **how))


def await_state(runner: Runner, handle: AppHandle, state: AppState) -> AppStatus:
    deadline = time.monotonic() + 600
    while (status := runner.status(handle)) is None or status.state != state:
        assert time.monotonic() < deadline, status
        time.sleep(0.05)
    return status


def test_an_app_runs_and_leaves_its_log(runner: Runner) -> None:
    handle = run(runner, utils.echo("hi"))
    assert re.fullmatch(r"muster_local://torchx/echo-[0-9a-f]{6}", handle)
    assert end(runner, handle).state == AppState.SUCCEEDED
    assert list(runner.log_lines(handle, "echo", 0)) == ["hi\n"]


@pytest.mark.parametrize("component", ["fsdp", *TORCHRUN_COMPONENTS])
def test_more_processes_than_cores_are_refused_before_anything_is_submitted_unless_allowed(
    runner: Runner, client: LocalClient, tmp_path: Path, component: str
) -> None:
    (tmp_path / "a.txt").write_text("some text")
    described = (
        fsdp(model="gpt:1m", data=str(tmp_path / "a.txt"), j="1x999", gpu=0, global_batch=999)
        if component == "fsdp"
        else getattr(dist, component)(script=__file__, j="1x999", cpu=1)
    )
    before = len(client.jobs())
    with pytest.raises(SubmissionRefused, match="999 processes"):
        runner.dryrun(described, SCHEDULER, {})
    info = runner.dryrun(described, SCHEDULER, {"oversubscribe": True})
    assert info.request.metadata.annotations["muster.dev/oversubscribe"] == "true"
    assert len(client.jobs()) == before


def test_too_many_processes_and_missing_data_are_in_one_refusal(runner: Runner) -> None:
    with pytest.raises(SubmissionRefused, match=r"999 processes.*; also: .*'/no/such/text' does not exist"):
        runner.dryrun(fsdp(model="gpt:1m", data="/no/such/text", j="1x999", gpu=0, global_batch=999), SCHEDULER, {})


def test_an_ignored_image_is_a_warning_only_if_one_is_set(runner: Runner, client: LocalClient) -> None:
    named = shell("true")
    named.roles[0].image = "mine:1"
    reasons = {}
    for app in (utils.echo("hi"), named):
        handle = run(runner, app)
        end(runner, handle)
        reasons[app.name] = [event["reason"] for event in client.events(handle.rpartition("/")[2])]
    assert ("FieldIgnored" in reasons["echo"], "FieldIgnored" in reasons["shell"]) == (False, True)


def test_text_that_is_not_there_is_refused_before_anything_is_submitted(runner: Runner, client: LocalClient) -> None:
    before = len(client.jobs())
    with pytest.raises(SubmissionRefused, match="--data '/no/such/text' does not exist"):
        run(runner, fsdp(model="gpt:10m", data="/no/such/text", steps=1, j="1x1"))
    assert len(client.jobs()) == before


def test_a_dry_run_prints_what_muster_submit_takes_and_submits_nothing(runner: Runner, client: LocalClient) -> None:
    before = len(client.jobs())
    info = runner.dryrun(shell("true", replicas=2), SCHEDULER, {"queue": "research", "max_runtime": "2h"})
    (job,) = load_objects(str(info))
    assert isinstance(job, TrainingJob)
    assert (job.spec.queue, job.spec.max_runtime_seconds, job.spec.roles[0].replicas) == ("research", 7200, 2)
    assert len(client.jobs()) == before


def test_a_dry_run_shows_no_secrets_and_the_job_gets_them(runner: Runner) -> None:
    app = shell('echo "$A_TOKEN"')
    app.roles[0].env = {"A_TOKEN": "do-not-tell", "PLAIN": "shown"}
    info = runner.dryrun(app, SCHEDULER, {})
    assert "do-not-tell" not in str(info)
    assert "shown" in str(info)
    handle = runner.schedule(info)
    end(runner, handle)
    assert log(runner, handle) == ["do-not-tell\n"]


def test_replicas_know_their_index(runner: Runner) -> None:
    app = shell("echo $0", replicas=2)
    app.roles[0].args = ["-c", "echo I am $0", macros.replica_id]
    handle = run(runner, app)
    assert end(runner, handle).state == AppState.SUCCEEDED
    assert [log(runner, handle, replica) for replica in (0, 1)] == [["I am 0\n"], ["I am 1\n"]]


def test_a_failed_app_describes_the_failed_replica(runner: Runner) -> None:
    handle = run(runner, shell("test $MUSTER_REPLICA = 0 && sleep 600; echo no luck; exit 7", replicas=2))
    status = end(runner, handle)
    assert status.state == AppState.FAILED
    assert "exited with code 7" in status.msg
    error = json.loads(status.structured_error_msg)["message"]
    assert (error["message"], error["errorCode"]) == ("no luck", 7)
    failed = {replica.id: replica.structured_error_msg != NONE for role in status.roles for replica in role.replicas}
    assert failed == {0: False, 1: True}
    assert "no luck" in status.format()
    assert "no luck" in repr(status)


@pytest.mark.slow
def test_an_app_is_started_again_as_often_as_it_may(runner: Runner) -> None:
    app = shell("echo attempt $MUSTER_ATTEMPT; exit $((1 - MUSTER_ATTEMPT))", max_retries=1)
    handle = run(runner, app)
    lines = log(runner, handle, should_tail=True)
    assert [line for line in lines if line.startswith("attempt")] == ["attempt 0\n", "attempt 1\n"]
    status = end(runner, handle)
    assert (status.state, status.num_restarts) == (AppState.SUCCEEDED, 1)


def test_cancelling_ends_an_app_and_again_changes_nothing(runner: Runner) -> None:
    handle = run(runner, shell("sleep 600"))
    await_state(runner, handle, AppState.RUNNING)
    runner.cancel(handle)
    assert end(runner, handle).state == AppState.CANCELLED
    runner.cancel(handle)
    assert end(runner, handle).state == AppState.CANCELLED


def test_deleting_forgets_an_app(runner: Runner, home: Path) -> None:
    from muster.torchx import create_local_scheduler

    handle = run(runner, utils.echo("x"))
    end(runner, handle)
    scheduler = create_local_scheduler("session", muster_home=str(home))
    app_id = handle.rpartition("/")[2]
    assert scheduler.exists(app_id)
    scheduler._delete_existing(app_id)
    eventually(lambda: not scheduler.exists(app_id))
    assert runner.status(handle) is None


def test_the_list_names_every_app_with_its_state(runner: Runner) -> None:
    good, bad = run(runner, utils.echo("x")), run(runner, shell("exit 1"))
    end(runner, good), end(runner, bad)
    states = {app.app_handle: app.state for app in runner.list(SCHEDULER)}
    assert (states[good], states[bad]) == (AppState.SUCCEEDED, AppState.FAILED)


def test_an_app_can_be_described_by_another_session(runner: Runner, home: Path) -> None:
    app = shell("echo $$", replicas=2, env={"A": "1"}, max_retries=4)
    handle = run(runner, app)
    end(runner, handle)
    with get_runner(muster_home=str(home)) as other:
        described = other.describe(handle)
    assert described is not None
    role = described.roles[0]
    assert (role.name, role.entrypoint, role.num_replicas, role.max_retries) == ("main", "sh", 2, 4)
    assert (role.resource.cpu, role.resource.gpu, role.env["A"]) == (1, 0, "1")
    assert role.resource.memMB == app.roles[0].resource.memMB == -1, "not said"
    assert runner.describe(f"{SCHEDULER}://torchx/no-such-app") is None


def test_an_app_in_a_namespace_keeps_it_in_its_handle(runner: Runner) -> None:
    handle = run(runner, utils.echo("x"), namespace="team-a")
    assert "/team-a:echo-" in handle
    assert end(runner, handle).state == AppState.SUCCEEDED


@pytest.mark.slow
def test_a_log_can_be_searched_and_cut_by_time(runner: Runner, home: Path, client: LocalClient, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    handle = run(runner, shell(f"echo early; echo other; while ! test -e {gate}; do sleep 0.1; done; echo late"))
    name = handle.rpartition("/")[2]
    await_state(runner, handle, AppState.RUNNING)
    folder = PodFolder(home / "pods" / client.job(name).metadata.uid / "main-0.attempt-0")
    eventually(lambda: folder.log_sizes() and folder.log_sizes()[-1].size == len("early\nother\n"))
    noted = datetime.now(UTC)
    gate.touch()
    end(runner, handle)
    assert log(runner, handle, regex="^e") == ["early\n"]
    assert log(runner, handle, until=datetime.now(UTC) + timedelta(hours=1)) == ["early\n", "other\n", "late\n"]
    assert log(runner, handle, since=noted) == ["late\n"]
    with pytest.raises(ValueError, match="streams: must be omitted or combined"):
        log(runner, handle, streams=Stream.STDERR)


def test_a_followed_log_shows_the_wait_reason_and_the_result(runner: Runner, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    first = run(runner, shell(f"while ! test -e {gate}; do sleep 0.1; done", cpu=2), queue="research", max_runtime="1h")
    await_state(runner, first, AppState.RUNNING)
    second = run(runner, shell("echo at last", cpu=2), queue="research")
    waiting = await_state(runner, second, AppState.PENDING)
    assert "waits in queue research" in waiting.msg
    lines: list[str] = []
    follower = threading.Thread(target=lambda: lines.extend(log(runner, second, should_tail=True)), daemon=True)
    follower.start()
    eventually(lambda: (runner.status(second) or waiting).msg.startswith("waits in queue research, position 1: "))
    gate.touch()
    follower.join(600)
    assert not follower.is_alive()
    assert end(runner, second).state == AppState.SUCCEEDED
    assert end(runner, first).state == AppState.SUCCEEDED
    assert "at last\n" in lines
    assert lines[-2] == "muster: succeeded: the pod exited with code 0\n"
    assert lines[-1].startswith("muster: run folder /")


def test_a_wait_prints_each_change_once(runner: Runner, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "muster.torchx")
    first = run(runner, shell("sleep 600", cpu=2), queue="research")
    await_state(runner, first, AppState.RUNNING)
    second = run(runner, shell("true", cpu=2), queue="research")

    def waits() -> list[str]:
        return [one.message for one in caplog.records if one.message.startswith("waits in queue research")]

    eventually(lambda: runner.status(second) and any("needs 2 cores" in text for text in waits()))
    for _ in range(20):
        runner.status(second)
        time.sleep(0.05)
    runner.cancel(first)
    end(runner, second)
    assert len(waits()) == len(set(waits())) >= 1
    assert "needs 2 cores" in waits()[-1]


@pytest.mark.parametrize(
    ("app", "cfg", "expected"),
    [
        (utils.echo("x"), {"queue": "reserch"}, "--queue or -cfg queue: queue reserch does not exist; "),
        (shell("true", entrypoint="no-such-program"), {}, "program 'no-such-program' not found"),
    ],
)
def test_what_can_never_start_is_refused_at_once(
    runner: Runner, app: AppDef, cfg: dict[str, str | int], expected: str
) -> None:
    with pytest.raises(SubmissionRefused, match=re.escape(expected)):
        run(runner, app, **cfg)


def test_replica_states_follow_the_placement(runner: Runner) -> None:
    handle = run(runner, shell("sleep 600", replicas=2, cpu=2))
    status = await_state(runner, handle, AppState.RUNNING)
    assert [_places(role) for role in status.roles] == [[(0, "node-0", "RUNNING"), (1, "node-1", "RUNNING")]]
    runner.cancel(handle)
    end(runner, handle)


def _places(role: RoleStatus) -> list[tuple[int, str, str]]:
    return sorted((replica.id, replica.hostname, str(replica.state)) for replica in role.replicas)
