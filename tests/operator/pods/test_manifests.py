"""Manifests of pods, Services and Events, and status patches."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.operator.objects import create, job, template

from muster.api import spec
from muster.cluster import RecordEvent
from muster_operator.cache.status_patch import status_patch, status_replacement
from muster_operator.events import event_manifest
from muster_operator.pod_builder.job_objects import (
    host_name,
    needs_service,
    rendezvous_port,
    service_manifest,
    service_name,
)
from muster_operator.pod_builder.pods import PodConfig, pin_to_node, pod_manifest

PIN = {"key": "metadata.name", "operator": "In", "values": ["n7"]}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def manifest(wanted: dict[str, Any] | None = None, tolerations: Any = (), **fields: Any) -> dict[str, Any]:
    return pod_manifest(job(**fields), wanted or template(), create(), tolerations, PodConfig("muster"))


def environment(pod: dict[str, Any], container: int = 0, kind: str = "containers") -> dict[str, str]:
    return {one["name"]: one.get("value", "") for one in pod["spec"][kind][container]["env"]}


# ---- pods


def test_a_pod_names_its_job() -> None:
    meta = manifest()["metadata"]
    assert meta["name"] == "llama-trainer-1-abcde"
    assert meta["labels"] == {
        "muster.dev/job": "llama",
        "muster.dev/job-uid": "uid-llama",
        "muster.dev/role": "trainer",
        "muster.dev/index": "1",
        "muster.dev/attempt": "3",
    }
    (owner,) = meta["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("TrainingJob", "uid-llama", True)


def test_a_pod_is_pinned_to_its_node_by_affinity_and_bound_by_the_scheduler() -> None:
    pod = manifest()
    assert pod["spec"]["affinity"]["nodeAffinity"][REQUIRED] == {"nodeSelectorTerms": [{"matchFields": [PIN]}]}
    assert "nodeName" not in pod["spec"]


def test_the_pin_is_in_every_term_and_keeps_the_rest_of_the_affinity() -> None:
    zone = {"key": "zone", "operator": "In", "values": ["z"]}
    affinity = {
        "podAffinity": {"x": 1},
        "nodeAffinity": {
            REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [zone]}, {"matchFields": [zone]}, {}]},
            "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}],
        },
    }
    result = pin_to_node(affinity, "n7")
    assert result["podAffinity"] == {"x": 1}
    assert result["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"] == [{"weight": 1}]
    assert result["nodeAffinity"][REQUIRED]["nodeSelectorTerms"] == [
        {"matchExpressions": [zone], "matchFields": [PIN]},
        {"matchFields": [PIN, zone]},
    ]
    assert affinity["nodeAffinity"][REQUIRED] == {  # type: ignore[index]
        "nodeSelectorTerms": [{"matchExpressions": [zone]}, {"matchFields": [zone]}, {}]
    }


def test_an_empty_overhead_is_omitted() -> None:
    assert "overhead" not in manifest(template(overhead={}))["spec"]
    assert manifest(template(overhead={"cpu": "1"}))["spec"]["overhead"] == {"cpu": "1"}


def test_the_template_is_unchanged() -> None:
    wanted = template(
        imagePullSecrets=[{"name": "s"}],
        tolerations=[{"key": "a", "operator": "Exists"}],
        volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "c"}}],
        initContainers=[{"name": "side", "restartPolicy": "Always", "image": "i"}],
        somethingNew={"deep": [1]},
    )
    wanted["metadata"] = {"labels": {"team": "x"}, "annotations": {"note": "y"}}
    pod = manifest(wanted)
    assert pod["spec"]["imagePullSecrets"] == [{"name": "s"}]
    assert pod["spec"]["somethingNew"] == {"deep": [1]}
    assert pod["spec"]["tolerations"] == [{"key": "a", "operator": "Exists"}]
    assert pod["spec"]["volumes"][0]["name"] == "data"
    assert pod["spec"]["initContainers"][0]["restartPolicy"] == "Always"
    assert pod["metadata"]["labels"]["team"] == "x"
    assert pod["metadata"]["annotations"] == {"note": "y", "muster.dev/queue": "research"}
    assert wanted["spec"]["volumes"] == [{"name": "data", "persistentVolumeClaim": {"claimName": "c"}}]  # unchanged


def test_tolerations_of_the_flavor_are_added_once() -> None:
    own, flavors = {"key": "a", "operator": "Exists"}, {"key": "b", "operator": "Exists"}
    pod = manifest(template(tolerations=[own]), tolerations=[own, flavors])
    assert pod["spec"]["tolerations"] == [own, flavors]


def test_every_container_has_the_documented_environment_first_and_cannot_override_it() -> None:
    wanted = template(initContainers=[{"name": "side"}])
    wanted["spec"]["containers"][0]["env"] = [
        {"name": "LOG", "value": "$(MUSTER_REPLICA).log"},
        {"name": "MUSTER_ROLE", "value": "liar"},
    ]
    pod = manifest(wanted)
    names = [one["name"] for one in pod["spec"]["containers"][0]["env"]]
    assert names.index("LOG") > names.index("MUSTER_REPLICA")
    assert names.count("MUSTER_ROLE") == 1
    assert environment(pod) == {
        "MUSTER_JOB": "llama",
        "MUSTER_NAMESPACE": "team",
        "MUSTER_JOB_UID": "uid-llama",
        "MUSTER_ROLE": "trainer",
        "MUSTER_REPLICA": "1",
        "MUSTER_REPLICAS": "2",
        "MUSTER_ATTEMPT": "3",
        "MUSTER_RUN_DIR": "/muster/run",
        "MUSTER_RANK0_HOST": f"trainer-0.{service_name('llama', 'uid-llama')}",
        "MUSTER_RANK0_PORT": "29500",
        "MUSTER_GRACE_SECONDS": "90",
        "LOG": "$(MUSTER_REPLICA).log",
    }
    assert environment(pod, kind="initContainers")["MUSTER_ATTEMPT"] == "3"


def test_a_trace_window_is_half_open() -> None:
    variables = environment(manifest(trace={"startStep": 20, "steps": 5, "ranks": [0, 3]}))
    assert (variables["MUSTER_TRACE_STEPS"], variables["MUSTER_TRACE_RANKS"]) == ("20:25", "0,3")
    assert not {"MUSTER_TRACE_EVERY", "MUSTER_TRACE_WHEN_SLOWER"} & set(variables)


def test_pods_get_the_interval_of_repeated_traces() -> None:
    variables = environment(manifest(trace={"startStep": 20, "steps": 5, "every": 1000}))
    assert (variables["MUSTER_TRACE_STEPS"], variables["MUSTER_TRACE_EVERY"]) == ("20:25", "1000")


def test_pods_get_the_factor_of_traces_of_slower_steps_whose_window_has_a_default() -> None:
    variables = environment(manifest(trace={"whenSlower": 1.5}))
    assert (variables["MUSTER_TRACE_STEPS"], variables["MUSTER_TRACE_WHEN_SLOWER"]) == ("20:25", "1.5")


def test_the_run_folder_is_the_pods_own_unless_the_template_defines_one() -> None:
    pod = manifest()
    assert {"name": "muster-run", "emptyDir": {}} in pod["spec"]["volumes"]
    assert pod["spec"]["containers"][0]["volumeMounts"] == [{"name": "muster-run", "mountPath": "/muster/run"}]
    shared = template(volumes=[{"name": "muster-run", "persistentVolumeClaim": {"claimName": "runs"}}])
    assert manifest(shared)["spec"]["volumes"] == shared["spec"]["volumes"]
    elsewhere = template()
    elsewhere["spec"]["containers"][0]["env"] = [{"name": "MUSTER_RUN_DIR", "value": "/data/$(MUSTER_JOB)"}]
    pod = manifest(elsewhere)
    assert environment(pod)["MUSTER_RUN_DIR"] == "/data/$(MUSTER_JOB)"
    assert "volumes" not in pod["spec"]


def test_a_single_pod_job_needs_no_service() -> None:
    role = {"name": "trainer", "replicas": 1, "template": template()}
    pod = manifest(roles=[role])
    assert environment(pod)["MUSTER_RANK0_HOST"] == "127.0.0.1"
    assert "subdomain" not in pod["spec"]
    assert not needs_service(job(roles=[role]))


def test_pods_get_no_service_account_token_unless_they_request_one() -> None:
    assert manifest()["spec"]["automountServiceAccountToken"] is False
    assert "automountServiceAccountToken" not in manifest(template(serviceAccountName="robot"))["spec"]
    assert manifest(template(automountServiceAccountToken=True))["spec"]["automountServiceAccountToken"] is True


def test_the_installations_priority_class_is_used() -> None:
    assert manifest()["spec"]["priorityClassName"] == "muster"


def test_on_the_host_network_the_rendezvous_port_differs_in_every_attempt() -> None:
    ports = {rendezvous_port("u", "r", attempt, on_host_network=True) for attempt in range(20)}
    assert len(ports) > 15
    assert all(20_000 <= port < 30_000 for port in ports)


# ---- Services


def test_a_service_publishes_addresses_before_pods_are_ready() -> None:
    service = service_manifest(job())
    assert service["spec"] == {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": {"muster.dev/job-uid": "uid-llama", "muster.dev/index": "0"},
    }
    assert service["metadata"]["ownerReferences"][0]["uid"] == "uid-llama"


@given(st.from_regex(r"[a-z0-9]([-a-z0-9]{0,50}[a-z0-9])?", fullmatch=True), st.text(min_size=1, max_size=40))
def test_names_of_services_and_hosts_are_valid_dns_names(name: str, uid: str) -> None:
    service = service_name(name, uid)
    assert len(service) <= 63
    assert service[0].isalpha()
    assert service != service_name(name, uid + "x")
    assert len(host_name("r" * 52, 99_999)) <= 63


# ---- statuses


def status(**fields: Any) -> spec.TrainingJobStatus:
    return spec.TrainingJobStatus.model_validate(fields)


def test_a_patch_has_only_what_changed_and_the_version_it_was_decided_on() -> None:
    old = status(phase="Pending", queuePosition=3, attempt=1)
    new = old.model_copy(update={"phase": "Admitted", "queue_position": None})
    assert status_patch(old, new, "17") == {
        "metadata": {"resourceVersion": "17"},
        "status": {"phase": "Admitted", "queuePosition": None},
    }


FAILURES = st.none() | st.fixed_dictionaries(
    {"pod": st.sampled_from("ab")}, optional={"exitCode": st.none() | st.integers(0, 3), "extra": st.integers(0, 2)}
)
STATUSES = st.fixed_dictionaries(
    {},
    optional={
        "phase": st.sampled_from(["Pending", "Admitted"]),
        "queuePosition": st.none() | st.integers(1, 3),
        "lastFailure": FAILURES,
        "blamedNodes": st.lists(
            st.fixed_dictionaries({"node": st.sampled_from("ab"), "until": st.just(5.0)}), max_size=2
        ),
        "nomination": st.none() | st.just({"placement": [{"role": "r", "nodes": []}], "expiresAt": 9.0}),
    },
)


@given(STATUSES, STATUSES)
def test_merging_the_patch_gives_the_new_status(before: dict[str, Any], after: dict[str, Any]) -> None:
    old, new = status(**before), status(**after)
    stored = old.model_dump(mode="json", by_alias=True, exclude_none=True)
    patched = merged(stored, status_patch(old, new, None)["status"])
    assert spec.TrainingJobStatus.model_validate(patched) == new


@given(STATUSES)
def test_a_replacement_has_the_whole_status_the_uid_and_the_version_it_was_decided_on(fields: dict[str, Any]) -> None:
    metadata = spec.ObjectMeta(name="llama", namespace="team", uid="u1", resource_version="17", labels={"a": "b"})
    body = status_replacement(metadata, status(**fields))
    stored = body.pop("status")
    assert spec.TrainingJobStatus.model_validate(stored) == status(**fields)
    assert "phase" in stored
    assert [] not in stored.values()
    named = {"name": "llama", "namespace": "team", "uid": "u1", "resourceVersion": "17"}
    assert body == {"apiVersion": "muster.dev/v1alpha1", "kind": "TrainingJob", "metadata": named}


def merged(target: Any, patch: Any) -> Any:
    """RFC 7386, as the API server does it."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value)
    return result


# ---- Events


def test_an_event_names_its_job_and_is_truncated_to_the_limit() -> None:
    event = event_manifest(
        job().metadata, RecordEvent("uid-llama", "Warning", "Failed", "ü" * 900), 1763719200.5, "op-1"
    )
    assert event["regarding"]["uid"] == "uid-llama"
    assert event["reportingController"] == "muster.dev/operator"
    assert event["eventTime"] == "2025-11-21T10:00:00.500000Z"
    assert len(event["note"].encode()) <= 1024
