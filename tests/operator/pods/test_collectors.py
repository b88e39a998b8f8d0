"""Which pods have a collector, its container, and its restrictions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.operator.objects import create, job, job_seen, pod_seen, template
from tests.operator.run_folders import elsewhere, kept

from muster.errors import InvalidSpec
from muster_operator.cache.cached_job import DryRunResult
from muster_operator.cache.cached_pod import cached_pod
from muster_operator.cache.jobs import JobCache
from muster_operator.cache.specs import CachedTemplate, SpecCache
from muster_operator.pod_builder.collector import (
    COLLECTOR_PORT,
    CollectorSidecarConfig,
    collector_port,
    has_collector,
    lead_role,
    secret_manifest,
    secret_name,
)
from muster_operator.pod_builder.pods import PodConfig, pod_manifest
from muster_operator.pod_builder.run_folder import JOB_FOLDER
from muster_operator.settings import parse_flags

IMAGE = CollectorSidecarConfig(image="registry.example.com/trainer:1")
STORE = CollectorSidecarConfig(image="x", store="s3://traces/muster/", store_secret="keys")
TRACE = {"startStep": 2, "steps": 3}


def manifest(
    wanted: dict[str, Any] | None = None, choices: CollectorSidecarConfig = IMAGE, index: int = 0, **fields: Any
) -> dict[str, Any]:
    wanted = wanted or template()
    roles = [{"name": "trainer", "replicas": 2, "template": wanted}]
    made = pod_manifest(job(roles=roles, **fields), wanted, create(index=index), (), PodConfig(collector=choices))
    spec: dict[str, Any] = made["spec"]
    return spec


def sidecar(pod: dict[str, Any]) -> dict[str, Any]:
    (found,) = (one for one in pod.get("initContainers", ()) if one["name"] == "muster-collector")
    container: dict[str, Any] = found
    return container


def run_mounts(container: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for one in container["volumeMounts"] if not one["name"].startswith("muster-collector-")]


def with_sidecar(
    choices: CollectorSidecarConfig = IMAGE, wanted: dict[str, Any] | None = None, **fields: Any
) -> list[int]:
    role = {"name": "trainer", "replicas": 2, "template": wanted or template()}
    one = job(roles=[role], **fields)
    return [index for index in range(2) if has_collector(one.spec, "trainer", index, choices)]


# ---- which pods have one


def test_with_all_jobs_every_pod_has_a_collector_with_the_store_unless_its_credentials_could_be_read() -> None:
    every = replace(STORE, all_jobs=True)
    assert (with_sidecar(STORE), with_sidecar(every)) == ([], [0, 1])
    assert any(argument.startswith("--store=") for argument in sidecar(manifest(choices=every))["args"])
    shared = template()
    shared["spec"]["shareProcessNamespace"] = True
    arguments = sidecar(manifest(shared, every))["args"]
    assert not any(argument.startswith("--store") for argument in arguments)


def test_a_template_that_conflicts_with_a_collector_of_all_jobs_runs_without_one() -> None:
    every = replace(IMAGE, all_jobs=True)
    own = template()
    own["spec"]["containers"].append({"name": "muster-collector", "image": "x"})
    assert "initContainers" not in manifest(own, every)
    with pytest.raises(InvalidSpec, match="reserved"):
        manifest(own, every, trace=TRACE)


def test_every_pod_of_a_traced_job_has_a_collector_and_otherwise_the_lead_pod() -> None:
    assert with_sidecar(trace=TRACE) == [0, 1]
    assert with_sidecar(stallTimeoutSeconds=60) == [0]
    assert with_sidecar(wanted=kept()) == [0]
    assert with_sidecar() == []


def test_without_an_image_no_pod_has_a_collector() -> None:
    assert with_sidecar(CollectorSidecarConfig(), trace=TRACE, stallTimeoutSeconds=60) == []


def test_pod_0_of_the_first_essential_role_is_the_lead_pod() -> None:
    roles = [
        {"name": "reader", "essential": False, "template": template()},
        {"name": "trainer", "template": template()},
        {"name": "reviewer", "template": template()},
    ]
    one = job(roles=roles, stallTimeoutSeconds=60)
    assert lead_role(one.spec).name == "trainer"
    assert [role.name for role in one.spec.roles if has_collector(one.spec, role.name, 0, IMAGE)] == ["trainer"]


# ---- the container


def test_the_collector_is_a_native_sidecar_after_the_users_own_which_stay_unchanged() -> None:
    own = {"name": "set-up", "image": "x"}
    wanted = template(initContainers=[own])
    without = manifest(wanted, CollectorSidecarConfig(), trace=TRACE)
    pod = manifest(wanted, trace=TRACE)
    assert [one["name"] for one in pod["initContainers"]] == ["set-up", "muster-collector"]
    added = {"initContainers": pod["initContainers"][:-1], "volumes": pod["volumes"][:-1]}
    assert pod | added == without
    assert sidecar(pod)["restartPolicy"] == "Always"


def test_it_mounts_the_trainers_run_folder_and_listens_at_the_pods_address_only() -> None:
    pod = manifest(trace=TRACE, index=1)
    container = sidecar(pod)
    assert run_mounts(container) == [{"name": "muster-run", "mountPath": "/muster/run"}]
    assert container["args"] == [
        "--run-dir=$(MUSTER_RUN_DIR)",
        "--mount=/muster/run",
        "--role=$(MUSTER_ROLE)",
        "--index=$(MUSTER_REPLICA)",
        "--address=$(MUSTER_POD_IP)",
        f"--port={COLLECTOR_PORT}",
        "--token-file=/var/run/secrets/muster.dev/muster-collector-token/token",
        "--termination-message-path=/dev/termination-log",
        "--open-spool",
    ]
    variables = {one["name"]: one.get("value", one.get("valueFrom")) for one in container["env"]}
    assert (variables["MUSTER_RUN_DIR"], variables["MUSTER_REPLICA"]) == ("/muster/run", "1")
    assert variables["MUSTER_POD"] == "llama-trainer-1-abcde"
    assert variables["MUSTER_POD_IP"] == {"fieldRef": {"fieldPath": "status.podIP"}}
    assert not any("secretKeyRef" in (value or ()) for value in variables.values())


def test_its_secrets_are_files_mounted_in_its_container_only() -> None:
    pod = manifest(choices=STORE, trace=TRACE)
    name = secret_name("llama", "uid-llama")
    assert [one for one in pod["volumes"] if "secret" in one] == [
        {"name": "muster-collector-token", "secret": {"secretName": name, "defaultMode": 0o444}},
        {"name": "muster-collector-store", "secret": {"secretName": "keys", "defaultMode": 0o444, "optional": True}},
    ]
    container = sidecar(pod)
    mounts = [one for one in container["volumeMounts"] if one not in run_mounts(container)]
    assert [one for one in mounts if one["name"] != "muster-collector-state"] == [
        {"name": one, "mountPath": f"/var/run/secrets/muster.dev/{one}", "readOnly": True}
        for one in ("muster-collector-token", "muster-collector-store")
    ]
    assert "envFrom" not in container
    assert "muster-collector-" not in str(pod["containers"])


def test_with_a_store_what_it_has_uploaded_is_recorded_in_a_volume_of_its_own() -> None:
    pod = manifest(choices=STORE, trace=TRACE)
    assert "--state-dir=/var/run/muster.dev/state" in sidecar(pod)["args"]
    assert {"name": "muster-collector-state", "mountPath": "/var/run/muster.dev/state"} in sidecar(pod)["volumeMounts"]
    assert {"name": "muster-collector-state", "emptyDir": {"sizeLimit": "16Mi"}} in pod["volumes"]
    assert "muster-collector-state" not in str(pod["containers"])
    assert "muster-collector-state" not in str(manifest(trace=TRACE))
    mounts = [{"name": "muster-collector-state", "mountPath": "/x"}]
    mounted = template(containers=[{"name": "main", "image": "i", "volumeMounts": mounts}])
    assert "must not mount 'muster-collector-state'" in clash(mounted)


@pytest.mark.parametrize("shared", ["shareProcessNamespace", "hostPID"])
def test_with_a_shared_process_namespace_it_gets_no_credentials_of_a_store(shared: str) -> None:
    with pytest.raises(InvalidSpec) as refusal:
        manifest(template(**{shared: True}), STORE, trace=TRACE)
    assert refusal.value.field == shared
    assert sidecar(manifest(template(**{shared: True}), IMAGE, trace=TRACE))
    assert sidecar(manifest(template(**{shared: True}), STORE, stallTimeoutSeconds=60))


def test_it_has_no_privileges_and_keeps_a_guaranteed_pod_guaranteed() -> None:
    container = sidecar(manifest(trace=TRACE))
    assert container["securityContext"] == {
        "runAsNonRoot": True,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert container["resources"]["requests"] == container["resources"]["limits"]


@pytest.mark.parametrize(
    ("of_pod", "of_main", "user", "non_root"),
    [
        ({}, {"runAsUser": 7}, 7, True),
        ({"runAsUser": 0}, {}, None, False),
        ({"runAsUser": 0}, {"runAsUser": 7}, 7, True),
    ],
)
def test_it_runs_as_the_trainers_user_where_the_template_sets_one(
    of_pod: Any, of_main: Any, user: int | None, non_root: bool
) -> None:
    wanted = template(securityContext=of_pod)
    wanted["spec"]["containers"][0]["securityContext"] = of_main
    security = sidecar(manifest(wanted, trace=TRACE))["securityContext"]
    assert (security.get("runAsUser"), security["runAsNonRoot"]) == (user, non_root)


def test_traces_go_to_a_folder_of_the_job_in_the_store_with_credentials_of_the_collector_only() -> None:
    pod = manifest(choices=STORE, trace=TRACE)
    container = sidecar(pod)
    assert f"--store=s3://traces/muster/{JOB_FOLDER}" in container["args"]
    assert "--store-credentials=/var/run/secrets/muster.dev/muster-collector-store" in container["args"]
    untraced = manifest(choices=STORE, stallTimeoutSeconds=60)
    assert "keys" not in str(untraced)
    assert not any(one.startswith("--store") for one in sidecar(untraced)["args"])


def test_in_a_shared_volume_every_job_has_its_own_folder() -> None:
    pod = manifest(kept(), trace=TRACE)
    mount = {"name": "muster-run", "mountPath": "/muster/run", "subPathExpr": JOB_FOLDER}
    assert pod["containers"][0]["volumeMounts"] == [mount]
    container = sidecar(pod)
    assert run_mounts(container) == [mount]
    assert "--open-spool" not in container["args"]
    names = [one["name"] for one in container["env"]]
    assert {"MUSTER_NAMESPACE", "MUSTER_JOB", "MUSTER_JOB_UID"} <= set(names)


def test_a_mount_of_the_template_determines_the_run_folder() -> None:
    wanted = kept()
    own = {"name": "muster-run", "mountPath": "/data", "subPath": "mine"}
    wanted["spec"]["containers"][0]["volumeMounts"] = [own]
    pod = manifest(wanted, trace=TRACE)
    assert pod["containers"][0]["volumeMounts"] == [own]
    assert {"name": "MUSTER_RUN_DIR", "value": "/data"} in pod["containers"][0]["env"]
    container = sidecar(pod)
    assert run_mounts(container) == [own]
    assert {"name": "MUSTER_RUN_DIR", "value": "/data"} in container["env"]


def test_a_custom_run_folder_is_found_through_its_mount() -> None:
    disk = {"name": "disk", "mountPath": "/data/runs", "readOnly": False}
    wanted = elsewhere("/data/runs/$(MUSTER_JOB)", {"name": "root", "mountPath": "/data"}, disk)
    container = sidecar(manifest(wanted, trace=TRACE))
    assert run_mounts(container) == [{"name": "disk", "mountPath": "/data/runs"}]
    assert "--mount=/data/runs" in container["args"]
    assert {"name": "MUSTER_RUN_DIR", "value": "/data/runs/$(MUSTER_JOB)"} in container["env"]


def test_on_the_host_network_its_port_is_derived_from_the_pod() -> None:
    container = sidecar(manifest(template(hostNetwork=True), trace=TRACE))
    port = collector_port("uid-llama", "trainer", 0, on_host_network=True)
    assert f"--port={port}" in container["args"]
    assert "ports" not in container
    ports = {collector_port("u", "r", index, on_host_network=True) for index in range(16)}
    assert len(ports) > 12
    assert all(19_000 <= one < 20_000 for one in ports)


# ---- conflicts


def clash(wanted: dict[str, Any]) -> str:
    with pytest.raises(InvalidSpec) as refusal:
        manifest(wanted, trace=TRACE)
    return str(refusal.value)


def test_reserved_names_and_ports_are_rejected_by_name() -> None:
    own = {"name": "muster-collector", "image": "x"}
    assert "initContainers: 'muster-collector' is reserved for the sidecar" in clash(template(initContainers=[own]))
    wanted = template()
    wanted["spec"]["containers"][0]["ports"] = [{"containerPort": COLLECTOR_PORT}]
    assert f"containers: 'main' has port {COLLECTOR_PORT}" in clash(wanted)
    assert (
        manifest(template(initContainers=[own]))["initContainers"][0]["name"] == "muster-collector"
    )  # it has no collector


def test_volumes_of_its_secrets_cannot_be_mounted_elsewhere() -> None:
    mine = {"name": "muster-collector-token", "emptyDir": {}}
    assert "volumes: 'muster-collector-token' is reserved for a volume" in clash(template(volumes=[mine]))
    wanted = template()
    wanted["spec"]["containers"][0]["volumeMounts"] = [{"name": "muster-collector-store", "mountPath": "/x"}]
    assert "containers: 'main' must not mount 'muster-collector-store'" in clash(wanted)
    above = elsewhere("/var/runs", {"name": "x", "mountPath": "/var"})
    assert "must not be mounted at '/var'" in clash(above)


def test_a_run_folder_that_it_cannot_read_is_rejected() -> None:
    assert "must be a path without '..'" in clash(elsewhere("/x/../y", {"name": "x", "mountPath": "/x"}))
    assert "'/tmp/run' of container 'main' is not in a volume" in clash(elsewhere("/tmp/run"))
    assert "must have a literal value" in clash(elsewhere({"valueFrom": {}}, {"name": "x", "mountPath": "/x"}))
    mine = elsewhere("/x/$(MINE)", {"name": "x", "mountPath": "/x"})
    assert "refers to $(MINE)" in clash(mine)


# ---- effects on other parts


def test_the_secret_is_owned_by_its_job_and_immutable() -> None:
    secret = secret_manifest(job(), "word")
    assert secret["metadata"]["name"] == secret_name("llama", "uid-llama")
    assert secret["metadata"]["ownerReferences"][0]["uid"] == "uid-llama"
    assert (secret["stringData"], secret["immutable"]) == ({"token": "word"}, True)


class RequestRecorder:
    """Records dry-run requests."""

    def __init__(self) -> None:
        self.digests: list[str] = []

    def result(self, namespace: str, template: CachedTemplate) -> DryRunResult | None:
        self.digests.append(template.digest)
        return None

    def is_fresh(self, namespace: str, template: CachedTemplate) -> bool:
        return False

    def request(self, job: Any, on_result: Any) -> None:
        pass


@pytest.mark.parametrize(("choices", "seconds", "kinds"), [(IMAGE, 60, 2), (CollectorSidecarConfig(), None, 1)])
def test_pods_with_a_collector_have_their_own_dry_run_and_stalls_count_only_with_heartbeats(
    choices: CollectorSidecarConfig, seconds: int | None, kinds: int
) -> None:
    recorder = RequestRecorder()
    jobs = JobCache(recorder, lambda uid, shown: None, lambda: None, SpecCache(choices))
    jobs.on_upsert(job_seen("plain", 1))
    jobs.on_upsert(job_seen("watched", 2, stallTimeoutSeconds=60))
    assert len(set(recorder.digests)) == kinds
    known = jobs.get("uid-watched")
    assert known is not None
    assert known.job.spec.stall_timeout_seconds == seconds


def test_a_pods_address_and_collector_are_cached() -> None:
    cache = pod_seen(owner="uid-llama", podIP="10.1.2.3")
    assert (cached_pod(cache, None, None).ip, cached_pod(cache, None, None).has_collector) == ("10.1.2.3", False)
    cache.spec.init_containers = [type(cache.spec.containers[0])(name="muster-collector")]
    assert cached_pod(cache, None, None).has_collector


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["--collector-resources", "{"], "must be the resources of a container"),
        (["--collector-resources", '{"requests": {"cpu": "lots"}}'], "must be the resources of a container"),
        (["--collector-store", "bucket"], "must be a URL such as s3://bucket/folder"),
        (["--collector-store", "https://me:word@example.com/x"], "must not contain credentials"),
        (["--heartbeat-interval-seconds", "0"], "must be a number above 0"),
    ],
)
def test_invalid_collector_flags_are_rejected(flags: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_flags(flags)
    output = capsys.readouterr().err
    assert why in output
    assert "word" not in output
