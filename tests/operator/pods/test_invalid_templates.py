"""Any value at any field of a pod template: its job is rejected with a message, and nothing else happens."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.operator.caches import new_cache
from tests.operator.objects import create, job_document, job_seen, read

from muster.api import spec
from muster.cluster import CreatePod
from muster.errors import InvalidSpec
from muster.kinds.trainingjob.adapter import to_roles, training_jobs
from muster.kube.objects import RawCustomObject
from muster_operator.cache.specs import SpecCache, TemplateCache
from muster_operator.dry_run import compare_pod
from muster_operator.pod_builder.collector import CollectorSidecarConfig, run_location
from muster_operator.pod_builder.pods import PodConfig, pod_manifest
from muster_operator.pod_builder.run_folder import has_durable_checkpoints, has_durable_run_folder

COLLECTORS = CollectorSidecarConfig(image="collector", store="s3://runs", store_secret="keys")
Path = tuple[str | int, ...]

TEMPLATE: dict[str, Any] = {
    "metadata": {"labels": {"a": "b"}, "annotations": {"a": "b"}},
    "spec": {
        "containers": [
            {
                "name": "main",
                "image": "i",
                "env": [{"name": "MUSTER_RUN_DIR", "value": "/data/$(MUSTER_JOB)"}, {"name": "A", "valueFrom": {}}],
                "resources": {"limits": {"nvidia.com/gpu": 1}, "requests": {"memory": "1Gi"}},
                "ports": [{"name": "http", "containerPort": 80}],
                "volumeMounts": [{"name": "muster-run", "mountPath": "/data", "subPath": "a", "subPathExpr": ""}],
                "securityContext": {"runAsUser": 1, "runAsGroup": 1, "seLinuxOptions": {"level": "s0"}},
            }
        ],
        "initContainers": [{"name": "first", "restartPolicy": "Always", "env": [], "volumeMounts": [], "ports": []}],
        "volumes": [{"name": "muster-run", "persistentVolumeClaim": {"claimName": "runs"}, "emptyDir": {}}],
        "nodeSelector": {"a": "b"},
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [
                        {
                            "matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}],
                            "matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}],
                        }
                    ]
                }
            }
        },
        "tolerations": [{"key": "a", "operator": "Equal", "value": "b", "effect": "NoSchedule"}],
        "overhead": {"cpu": "10m"},
        "securityContext": {"runAsUser": 1},
        "hostNetwork": False,
        "serviceAccountName": "trainer",
        "terminationGracePeriodSeconds": 5,
        "restartPolicy": "Never",
    },
}


def places(value: Any, path: Path = ()) -> Iterator[Path]:
    """All paths below a value."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in entries:
        yield (*path, key)
        yield from places(inner, (*path, key))


PLACES = tuple(places(TEMPLATE))
NAMES = sorted({str(part) for path in PLACES for part in path})
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
)
KNOWN = st.sampled_from(
    ("muster-run", "muster-collector", "/muster/run", "MUSTER_RUN_DIR", "4E", "Always", "$(A)", 29480)
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    SCALARS | KNOWN,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
    max_leaves=6,
)


def with_value(path: Path, value: Any) -> dict[str, Any]:
    """The template with another value at one path."""
    template: Any = copy.deepcopy(TEMPLATE)
    inner = template
    for part in path[:-1]:
        inner = inner[part]
    inner[path[-1]] = value
    whole: dict[str, Any] = template
    return whole


def made_of(template: Any, collectors: CollectorSidecarConfig, **fields: Any) -> dict[str, Any]:
    """Everything that is derived from a template, up to its pod. Raises ValidationError and InvalidSpec only."""
    roles = [{"name": "trainer", "replicas": 2, "template": template}]
    document = job_document(**{"roles": roles, **fields})
    templates = TemplateCache()
    wanted = SpecCache(collectors, templates).read(json.dumps(document["spec"]).encode(), b"digest")
    job = spec.TrainingJob.model_construct(
        metadata=spec.ObjectMeta.model_validate(document["metadata"]), spec=wanted.spec
    )
    (role,) = wanted.spec.roles
    to_roles(wanted.spec)
    has_durable_run_folder(role)
    has_durable_checkpoints(wanted.spec.model_copy(update={"checkpoint_dir": "/data/../x"}), role)
    run_location(job, CollectorSidecarConfig(image=collectors.image))
    pod: CreatePod = create(index=0)
    written = templates.document(wanted.templates["trainer"])
    assert written is not None
    manifest = pod_manifest(job, written, pod, (), PodConfig(collector=collectors))
    compare_pod(role.template.spec, json.loads(msgspec.json.encode(manifest))["spec"])
    return manifest


@settings(deadline=None, max_examples=250)
@given(st.sampled_from(PLACES), VALUES, st.sampled_from(("", "traced", "may stall")), st.booleans())
def test_any_value_at_any_field_gives_a_pod_or_a_message(path: Path, value: Any, asks: str, collected: bool) -> None:
    fields: dict[str, Any] = {"": {}, "traced": {"trace": {"startStep": 1, "steps": 1}}}.get(
        asks, {"stallTimeoutSeconds": 60}
    )
    message = ""
    try:
        made_of(with_value(path, value), COLLECTORS if collected else CollectorSidecarConfig(), **fields)
    except (ValidationError, InvalidSpec) as refusal:
        message = str(refusal)
    assert not message.startswith("no pod can be made"), "what is read and not declared"


@pytest.mark.parametrize("collected", [True, False], ids=["with collectors", "without"])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("volumeMounts", ["x"]),
        ("volumeMounts", 5),
        ("volumeMounts", {"name": "x"}),
        ("volumeMounts", [{"mountPath": 5}]),
        ("ports", ["x"]),
        ("securityContext", "x"),
        ("securityContext", {"runAsUser": "root"}),
    ],
)
def test_a_field_of_the_wrong_type_is_rejected_by_name(field: str, value: Any, *, collected: bool) -> None:
    template = with_value(("spec", "containers", 0, field), value)
    with pytest.raises(ValidationError) as caught:
        made_of(template, COLLECTORS if collected else CollectorSidecarConfig())
    assert f"containers.0.{field}" in str(caught.value)


def test_a_job_with_such_a_template_is_reported_and_others_are_visible() -> None:
    cache, _ = new_cache()
    odd = job_document("odd")
    odd["spec"]["roles"][0]["template"]["spec"]["containers"][0]["volumeMounts"] = ["x"]
    cache.jobs.on_upsert(read(RawCustomObject, odd))
    cache.jobs.on_upsert(job_seen("other", 2))
    (broken,) = cache.jobs.invalid.values()
    assert broken.error.startswith("spec.roles[0].template.spec.containers[0].volumeMounts[0]: ")
    assert [job.metadata.name for job in training_jobs(cache.observe().workloads)] == ["other"]


def test_any_exception_while_a_pod_is_built_is_a_rejection() -> None:
    document = job_document()
    job = spec.TrainingJob.model_validate(document)
    unchecked = {"spec": {"containers": [{"volumeMounts": ["x"]}]}}
    with pytest.raises(InvalidSpec, match="cannot create a pod from the template: AttributeError"):
        pod_manifest(job, unchecked, create(), (), PodConfig())
