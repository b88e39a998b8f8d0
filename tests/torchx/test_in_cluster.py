"""`torchx run -s muster` up to the cluster: what a dry run makes of an app, without any cluster."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torchx.components import utils
from torchx.runner import Runner, get_runner
from torchx.specs import AppDef, BindMount, DeviceMount, InvalidRunConfigException, Resource, Role, VolumeMount, macros

from muster.api.pod_security import NO_VIOLATIONS, pod_security_violations
from muster.api.spec import TrainingJob
from muster.api.yaml_input import load_objects
from muster.torchx.appdef import NodeCapacity
from muster.torchx.errors import SubmissionRefused
from muster.torchx.kubernetes import KubernetesScheduler
from muster.torchx.settings import run_options
from muster_components.train import ddp

KUBECONFIG = """
current-context: test
contexts:
- {name: test, context: {cluster: here, user: me, namespace: team-a}}
- {name: other, context: {cluster: here, user: me}}
clusters: [{name: here, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: me, user: {}}]
"""


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Runner]:
    """One with a kubeconfig whose cluster never answers."""
    path = tmp_path / "config"
    path.write_text(KUBECONFIG)
    monkeypatch.setenv("KUBECONFIG", str(path))
    monkeypatch.delenv("MUSTER_CONTEXT", raising=False)
    with get_runner() as runner:
        yield runner


def app(**fields: object) -> AppDef:
    role = Role(name="main", image="registry/trainer:1", entrypoint="python", resource=Resource(cpu=2, gpu=1, memMB=64))
    for name, value in fields.items():
        setattr(role, name, value)
    return AppDef(name="app", roles=[role])


def dry_run(runner: Runner, app: AppDef, **cfg: object) -> TrainingJob:
    (job,) = load_objects(str(runner.dryrun(app, "muster", cfg)))
    assert isinstance(job, TrainingJob)
    return job


def test_a_dry_run_prints_a_training_job_for_the_namespace_of_the_context(runner: Runner) -> None:
    job = dry_run(runner, app(num_replicas=4), queue="research", max_runtime="2h")
    assert (job.metadata.namespace, job.spec.queue, job.spec.max_runtime_seconds) == ("team-a", "research", 7200)
    container = job.spec.roles[0].template.spec.containers[0]
    assert (job.spec.roles[0].replicas, container.image) == (4, "registry/trainer:1")
    assert dry_run(runner, app(), context="other").metadata.namespace == "default"
    assert dry_run(runner, app(), namespace="team-b").metadata.namespace == "team-b"
    chosen = app()
    chosen.metadata["muster.dev/context"] = "other"
    assert dry_run(runner, chosen).metadata.namespace == "default", "a component may choose the cluster too"


def test_a_dry_run_needs_no_kubeconfig(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with get_runner() as runner:
        assert dry_run(runner, app()).metadata.namespace == "default"


def test_a_context_that_is_not_there_is_refused_by_name(runner: Runner) -> None:
    with pytest.raises(SubmissionRefused, match=r"context 'prod' does not exist in .*; existing contexts: other, test"):
        dry_run(runner, app(), context="prod")


def test_data_loaders_get_shared_memory_unless_the_app_brings_its_own(runner: Runner) -> None:
    pod = dry_run(runner, app()).spec.roles[0].template.spec
    assert pod.volumes == [{"name": "dshm", "emptyDir": {"medium": "Memory"}}]
    own = app(mounts=[BindMount("/tmp/shm", "/dev/shm")])
    pod = dry_run(runner, own).spec.roles[0].template.spec
    assert [volume["name"] for volume in pod.volumes] == ["mount-0"]


def test_mounts_are_those_of_torchx(runner: Runner) -> None:
    mounts = [VolumeMount("data", "/data", read_only=True), DeviceMount("/dev/fuse", "/dev/fuse")]
    pod = dry_run(runner, app(mounts=mounts)).spec.roles[0].template.spec
    assert pod.volumes[:2] == [
        {"name": "mount-0", "persistentVolumeClaim": {"claimName": "data"}},
        {"name": "mount-1", "hostPath": {"path": "/dev/fuse"}},
    ]
    main = pod.containers[0]
    assert main.volume_mounts[0] == {"name": "mount-0", "mountPath": "/data", "readOnly": True}
    assert main.security_context == {"privileged": True}


def test_options_say_who_the_pods_are_and_what_they_may_pull(runner: Runner) -> None:
    options = {"service_account": "trainer", "image_pull_secrets": ["one", "two"], "priority_class": "urgent"}
    job = dry_run(runner, app(), **options)
    pod = job.spec.roles[0].template.spec
    assert pod.service_account_name == "trainer"
    assert (pod.model_extra or {})["imagePullSecrets"] == [{"name": "one"}, {"name": "two"}]
    assert job.spec.priority_class_name == "urgent"


def template_of(job: TrainingJob) -> dict[str, Any]:
    return job.spec.roles[0].template.model_dump(mode="json", by_alias=True, exclude_unset=True)


def test_pods_of_musters_components_pass_the_restricted_pod_security_standard(runner: Runner) -> None:
    component = ddp(model="gpt:10m", data="/data", gpu=0, cpu=1, image="registry/trainer:1")
    for options in ({}, {"run_volume": "runs", "workspace": "", "service_account": "trainer"}):
        template = template_of(dry_run(runner, component, **options))
        assert pod_security_violations(template) is NO_VIOLATIONS
    as_root = template_of(dry_run(runner, component, pod_security="privileged"))
    assert "securityContext" not in as_root["spec"]


def test_pods_of_other_components_are_restricted_only_if_the_option_says_so(runner: Runner) -> None:
    assert "securityContext" not in template_of(dry_run(runner, app()))["spec"]
    restricted = template_of(dry_run(runner, app(), pod_security="restricted"))
    assert pod_security_violations(restricted) is NO_VIOLATIONS
    folder = app(mounts=[BindMount("/data", "/data")])
    for unsafe in (folder, app(mounts=[DeviceMount("/dev/fuse", "/dev/fuse")])):
        with pytest.raises(
            SubmissionRefused, match=r"pod_security: 'restricted' forbids .* spec.volumes\[0\].hostPath"
        ):
            dry_run(runner, unsafe, pod_security="restricted")
    with pytest.raises(SubmissionRefused, match="pod_security: 'baseline' must be restricted or privileged"):
        dry_run(runner, app(), pod_security="baseline")


def test_pods_have_a_user_namespace_of_their_own_if_the_option_says_so(runner: Runner) -> None:
    assert template_of(dry_run(runner, app(), host_users=False))["spec"]["hostUsers"] is False
    assert "hostUsers" not in template_of(dry_run(runner, app()))["spec"]


def test_a_claim_keeps_the_run_folder_of_each_job_apart(runner: Runner) -> None:
    pod = dry_run(runner, app(), run_volume="runs").spec.roles[0].template.spec
    assert {"name": "muster-run", "persistentVolumeClaim": {"claimName": "runs"}} in pod.volumes
    mount = pod.containers[0].volume_mounts[-1]
    assert mount == {
        "name": "muster-run",
        "mountPath": "/muster/run",
        "subPathExpr": "$(MUSTER_NAMESPACE)/$(MUSTER_JOB)-$(MUSTER_JOB_UID)",
    }


def test_the_fewest_pods_are_of_the_only_role(runner: Runner) -> None:
    assert dry_run(runner, app(num_replicas=4), min_replicas=2).spec.roles[0].min_replicas == 2
    with pytest.raises(SubmissionRefused, match=r"-cfg min_replicas: must be at most replicas \(4\); got 5"):
        dry_run(runner, app(num_replicas=4), min_replicas=5)
    two = app()
    two.roles.append(Role(name="reader", image="i", entrypoint="x"))
    with pytest.raises(SubmissionRefused, match=r"several roles \(main, reader\)"):
        dry_run(runner, two, min_replicas=1)


def test_an_image_is_required_and_torchxs_default_is_a_warning(
    runner: Runner, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "muster.torchx")
    with pytest.raises(SubmissionRefused, match="role main: image: must not be empty in a cluster"):
        dry_run(runner, app(image=""))
    assert not caplog.messages
    dry_run(runner, utils.echo("hi"))
    assert any("no image is set" in message for message in caplog.messages)


def test_macros_become_what_a_kubelet_replaces(runner: Runner) -> None:
    args = [f"{macros.img_root}/train.py", macros.replica_id, macros.app_id, "$(HOME)"]
    job = dry_run(runner, app(args=args))
    container = job.spec.roles[0].template.spec.containers[0]
    assert container.args == ["/train.py", "$(MUSTER_REPLICA)", f"team-a:{job.metadata.name}", "$(HOME)"]


def test_where_nodes_cannot_be_read_each_process_gets_a_gpu(
    runner: Runner, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level(logging.WARNING, "muster.torchx")
    script = tmp_path / "train.py"
    script.touch()
    job = dry_run(runner, ddp(j="2x4", model="gpt:1m", data="/data/text", steps=1, image="i"))
    container = job.spec.roles[0].template.spec.containers[0]
    assert container.resources.limits == {"nvidia.com/gpu": "4"}
    assert container.resources.requests == {"nvidia.com/gpu": "4", "cpu": "4"}
    assert any("nodes cannot be read" in message for message in caplog.messages)


def test_more_processes_than_the_nodes_have_gpus_need_the_option_oversubscribe(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = NodeCapacity(cpu_milli=4_000, gpus=2)
    monkeypatch.setattr(KubernetesScheduler, "_node_capacities", lambda self, context: [node])

    def dry_run_of_eight(**cfg: object) -> TrainingJob:
        return dry_run(runner, ddp(j="1x8", model="gpt:1m", data="/data/text", steps=1, image="i"), **cfg)

    with pytest.raises(SubmissionRefused, match="8 processes"):
        dry_run_of_eight()
    container = dry_run_of_eight(oversubscribe=True).spec.roles[0].template.spec.containers[0]
    assert container.resources.requests["cpu"] == "4"


@pytest.mark.parametrize("scheduler", ["muster", "muster_local"])
def test_options_of_a_cluster_are_no_options_of_this_host(scheduler: str) -> None:
    names = {name for name, _ in run_options(scheduler)}
    of_a_cluster = {"service_account", "image_pull_secrets", "run_volume", "priority_class", "context", "kubeconfig"}
    assert (names >= of_a_cluster) == (scheduler == "muster")
    assert {"queue", "priority", "max_runtime", "namespace", "flavors", "topology", "min_replicas"} <= names
    with pytest.raises(InvalidRunConfigException, match=f"is not an option of {scheduler}"):
        run_options(scheduler).resolve({"no_such": 1})
