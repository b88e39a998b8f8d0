"""`torchx run -s muster` with every verb, as a user types it."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("torchx")

from tests.cluster.operator.pools import Pool
from tests.cluster.users.conftest import kubeconfig
from torchx.runner import Runner, get_runner
from torchx.specs import AppDef, AppHandle, AppState, Resource, Role

from muster.torchx.errors import SubmissionRefused

TorchX = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def runner(pool: Pool) -> Iterator[Runner]:
    with get_runner(muster_kubeconfig=kubeconfig(pool)) as runner:
        yield runner


def app(name: str, replicas: int = 2, gpus: int = 1, retries: int = 0) -> AppDef:
    role = Role(name="worker", image="none", entrypoint="train", num_replicas=replicas, max_retries=retries)
    role.resource = Resource(cpu=1, gpu=gpus, memMB=64)
    return AppDef(name=name, roles=[role])


def end_all(pool: Pool, job: str, exit_code: int = 0) -> None:
    for index in range(len(pool.pods(job))):
        pool.annotate(job, index, run_seconds=0, exit_code=exit_code)


def name_of(handle: AppHandle) -> str:
    return str(handle).rpartition(":")[2]


def test_the_verbs_of_the_command_line(pool: Pool, torchx: TorchX) -> None:
    pool.set_up()
    queue = pool.queue("red")
    shown = torchx("run", "-s", "muster", "--dryrun", "-cfg", f"queue={queue}", "utils.echo", "--msg", "hi")
    assert shown.returncode == 0, shown.stderr
    assert "kind: TrainingJob" in shown.stdout
    assert pool.api.items(pool._jobs()) == []
    ran = torchx("run", "-s", "muster", "-cfg", f"queue={queue},max_runtime=1h", "utils.echo", "--msg", "hi")
    assert ran.returncode == 0, ran.stderr
    handle = ran.stdout.strip().splitlines()[-1]
    assert handle.startswith(f"muster://torchx/{pool.namespace}:echo-")
    pool.wait_for_phase(name_of(handle), "Running")
    assert "RUNNING" in torchx("status", handle).stdout
    assert handle in torchx("list", "-s", "muster").stdout
    assert "echo" in torchx("describe", handle).stdout
    pool.plane.write_log("hi\nthere")
    assert "hi" in torchx("log", f"{handle}/echo/0").stdout
    assert "hi" not in torchx("log", "--regex", "^t", f"{handle}/echo/0").stdout
    assert torchx("cancel", handle).returncode == 0
    pool.wait_for_phase(name_of(handle), "Cancelled")
    assert "CANCELLED" in torchx("status", handle).stdout
    missing = torchx("status", f"{handle}-not")
    assert missing.returncode == 1
    assert f"job '{name_of(handle)}-not' does not exist in namespace '{pool.namespace}' of context" in missing.stderr
    assert "set MUSTER_CONTEXT to use another one" in missing.stderr
    options = torchx("runopts", "muster").stdout
    assert all(option in options for option in ("queue", "max_runtime", "image_pull_secrets", "run_volume", "context"))


def test_run_with_wait_and_log_prints_progress_and_logs(pool: Pool, torchx: TorchX) -> None:
    pool.set_up()
    pool.plane.write_log("hello from the pod")
    done: list[subprocess.CompletedProcess[str]] = []
    words = ("run", "-s", "muster", "--wait", "--log", "-cfg", f"queue={pool.queue('red')}", "utils.echo")
    thread = threading.Thread(target=lambda: done.append(torchx(*words)), daemon=True)
    thread.start()
    pool.wait("its pod runs", lambda: [pod["status"]["phase"] for pod in pool.pods()] == ["Running"])
    (job,) = pool.api.items(pool._jobs())
    end_all(pool, job["metadata"]["name"])
    thread.join(600)
    (ran,) = done
    assert ran.returncode == 0, ran.stderr
    lines = [line for line in ran.stderr.splitlines() if "echo/0" in line]
    assert any(line.endswith("hello from the pod") for line in lines), ran.stderr
    assert lines[-1].endswith("muster: succeeded: the pod exited with code 0")


@pytest.mark.smoke
def test_an_app_succeeds_and_its_replicas_have_nodes(pool: Pool, runner: Runner) -> None:
    pool.set_up()
    handle = str(runner.run(app("good"), "muster", {"queue": pool.queue("red"), "min_replicas": 1}))
    pool.wait_for_phase(name_of(handle), "Running")
    status = runner.status(handle)
    assert status is not None
    assert status.state == AppState.RUNNING
    places = {replica.hostname for role in status.roles for replica in role.replicas}
    assert places <= {pool.node(0), pool.node(1)}
    described = runner.describe(handle)
    assert described is not None
    role = described.roles[0]
    assert (role.name, role.num_replicas, role.resource.gpu) == ("worker", 2, 1)
    assert (pool.get(name_of(handle)) or {})["spec"]["roles"][0]["minReplicas"] == 1
    end_all(pool, name_of(handle))
    ended = runner.wait(handle, wait_interval=0.2)
    assert ended is not None
    assert ended.state == AppState.SUCCEEDED
    assert status.msg.endswith("; context muster-tests")
    with get_runner(muster_kubeconfig=kubeconfig(pool)) as later:
        found = later.describe(handle)
        assert found is not None
        assert found.roles[0].metadata == {"context": "muster-tests"}
    assert runner.describe(f"muster://torchx/{pool.namespace}:no-such-app") is None


def test_a_failed_app_names_the_replica_that_failed_and_one_in_another_context_its_location(
    pool: Pool, runner: Runner, caplog: pytest.LogCaptureFixture
) -> None:
    pool.set_up()
    with caplog.at_level("INFO"):
        handle = str(runner.run(app("bad"), "muster", {"queue": pool.queue("red"), "context": "muster-tests"}))
    export_command = f"in other shells: export KUBECONFIG={kubeconfig(pool)} MUSTER_CONTEXT=muster-tests"
    assert f"{handle.rpartition('/')[2]} is in context muster-tests; {export_command}" in caplog.messages
    pool.wait_for_phase(name_of(handle), "Running")
    pool.annotate(name_of(handle), 1, run_seconds=0, exit_code=7)
    status = runner.wait(handle, wait_interval=0.2)
    assert status is not None
    assert status.state == AppState.FAILED
    assert "exited with code 7" in status.msg


def test_a_claim_for_the_run_folder_replaces_the_empty_dir(pool: Pool, runner: Runner) -> None:
    pool.set_up()
    cfg = {"queue": pool.queue("red"), "run_volume": "runs", "image_pull_secrets": ["registry"]}
    job = name_of(runner.run(app("keeps", replicas=1), "muster", cfg))
    pool.wait("its pod is there", lambda: len(pool.pods(job)) == 1)
    (pod,) = pool.pods(job)
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    assert volumes["muster-run"]["persistentVolumeClaim"] == {"claimName": "runs"}
    assert volumes["dshm"]["emptyDir"] == {"medium": "Memory"}
    mounts = {mount["name"]: mount for mount in pod["spec"]["containers"][0]["volumeMounts"]}
    assert mounts["muster-run"]["subPathExpr"] == "$(MUSTER_NAMESPACE)/$(MUSTER_JOB)-$(MUSTER_JOB_UID)"
    assert pod["spec"]["imagePullSecrets"] == [{"name": "registry"}]
    variables = [variable["name"] for variable in pod["spec"]["containers"][0]["env"]]
    assert {"MUSTER_NAMESPACE", "MUSTER_JOB", "MUSTER_JOB_UID", "MUSTER_RUN_DIR"} <= set(variables)


def test_an_app_is_deleted(pool: Pool, runner: Runner) -> None:
    from muster.kube.config import KubeContext
    from muster.torchx.kubernetes import KubernetesScheduler

    pool.set_up()
    handle = str(runner.run(app("gone"), "muster", {"queue": pool.queue("red")}))
    scheduler = KubernetesScheduler("session", KubeContext(kubeconfig(pool)))
    scheduler._delete_existing(handle.rpartition("/")[2])
    pool.wait("it is gone", lambda: pool.get(name_of(handle)) is None)
    assert runner.status(handle) is None


def test_an_app_that_can_never_start_is_refused_at_once(pool: Pool, runner: Runner) -> None:
    pool.set_up()
    for requested, cfg, message in (
        (app("a"), {"queue": pool.queue("rde")}, f"did you mean '{pool.queue('red')}'"),
        (app("a", replicas=9), {"queue": pool.queue("red")}, "the largest that fits is 8 pods"),
        (app("a"), {"queue": pool.queue("red"), "topology": "rak"}, "did you mean 'rack'?"),
    ):
        with pytest.raises(SubmissionRefused) as refused:
            runner.run(requested, "muster", cfg)
        assert message in str(refused.value)
    assert pool.api.items(pool._jobs()) == []


def test_components_without_a_number_of_gpus_get_all_of_a_node(pool: Pool, runner: Runner) -> None:
    from muster.api.spec import TrainingJob
    from muster.api.yaml_input import load_objects
    from muster_components.train import fsdp

    pool.set_up(nodes=1, gpus=4)
    component = fsdp(model="gpt:1m", data="/data", steps=1, j="2x4", image="none")
    (job,) = load_objects(str(runner.dryrun(component, "muster", {"queue": pool.queue("red")})))
    assert isinstance(job, TrainingJob)
    resources = job.spec.roles[0].template.spec.containers[0].resources
    assert resources.limits == {"nvidia.com/gpu": "4"}
    assert resources.requests["cpu"] == "86"  # of 96: DaemonSets and the collector need some


def test_code_of_a_folder_reaches_the_pods_and_is_deleted_with_the_job(
    pool: Pool, torchx: TorchX, tmp_path: Path
) -> None:
    pool.set_up()
    pool.wait_until_seen()
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("print('trained')\n")
    (tmp_path / "code" / "vocabulary.bin").write_bytes(os.urandom(990_000))  # close to the limit
    cfg = f"queue={pool.queue('red')},workspace={tmp_path / 'code'}"
    ran = torchx("run", "-s", "muster", "-cfg", cfg, "utils.python", "--script", "train.py")
    assert ran.returncode == 0, ran.stderr
    name = name_of(AppHandle(ran.stdout.strip().splitlines()[-1]))
    path = f"/api/v1/namespaces/{pool.namespace}/configmaps/{name}-workspace"
    config_map = pool.api.get(path)
    assert config_map["immutable"] is True
    assert list(config_map["binaryData"]) == ["workspace.tar.gz"]
    pool.wait_for_phase(name, "Running")
    (pod,) = pool.pods(name)
    assert {"name": f"{name}-workspace"} in [
        {"name": volume["configMap"]["name"]} for volume in pod["spec"]["volumes"] if "configMap" in volume
    ]
    pool.delete(name)
    pool.wait("the archive is gone", lambda: pool.api.gone(path))
