"""What the operator's account may change of JobSets and TrainJobs, evaluated by the API server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.cluster.controlplane.api import Api, Refused
from tests.cluster.controlplane.binaries import Unavailable, ensure
from tests.cluster.controlplane.building import manifests_of
from tests.cluster.controlplane.catalogue import JOB_SETS, TRAIN_JOBS
from tests.cluster.controlplane.plane import ControlPlane
from tests.helm.conftest import CHART

Json = dict[str, Any]
JSON_PATCH = "application/json-patch+json"
SETS = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets"
TRAIN = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/default/trainjobs"
QUEUED = {"muster.dev/queue": "q"}
TEMPLATE = "/spec/replicatedJobs/0/template/spec/template"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """With the CRDs of these kinds, without their controllers, and the chart with them among `queuedKinds`."""
    try:
        programs = ensure([JOB_SETS, TRAIN_JOBS])
        started = ControlPlane.start(tmp_path_factory.mktemp("policy"), scheduler=False, kwok=False)
    except Unavailable as error:
        pytest.fail(str(error), pytrace=False)
    with started as plane:
        for program in programs.values():
            for file in manifests_of(program.path).iterdir():
                if file.name != "manifests.yaml":
                    plane.create_crds(file)
        values = ("image.repository=registry.example.com/operator", "queuedKinds={Job,JobSet,TrainJob}")
        settings = [f"--set={value}" for value in values]
        plane.helm("install", "muster", str(CHART), "--namespace=muster-system", "--create-namespace", *settings)
        for path, kind, spec in (
            (SETS, "JobSet", {"replicatedJobs": [{"name": "w", "template": {"spec": {"template": pod_template()}}}]}),
            (TRAIN, "TrainJob", {"runtimeRef": {"name": "r"}, "runtimePatches": [entry("example.com/theirs")]}),
        ):
            for name, labels in (("queued", QUEUED), ("other", {})):
                meta = {"name": name, "labels": labels}
                api_version = path.removeprefix("/apis/").partition("/namespaces")[0]
                document = {
                    "apiVersion": api_version,
                    "kind": kind,
                    "metadata": meta,
                    "spec": {"suspend": True, **spec},
                }
                plane.api.create(path, document)
        plane.wait_for("the policy acts", lambda: refused(plane, f"{SETS}/other", resume()) != "")
        yield plane


def pod_template() -> Json:
    return {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "theirs"}]}}


def entry(manager: str, **of_pod: Any) -> Json:
    """A runtime patch of a TrainJob's pods."""
    template = {"spec": {"template": {"spec": {"schedulingGates": [{"name": "muster.dev/admission"}], **of_pod}}}}
    jobs = [{"name": "node", "template": template}]
    return {"manager": manager, "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": jobs}}}}


def resume() -> Json:
    return {"op": "add", "path": "/spec/suspend", "value": False}


def refused(plane: ControlPlane, path: str, *operations: Json) -> str:
    """What the policy says when the operator patches this; "" where the API server takes it."""
    operator = Api(plane.server, plane.authority, plane.token_for_service_account("muster-system", "muster-operator"))
    patch: Any = list(operations)  # a JSON patch is a list
    try:
        operator.request("PATCH", f"{path}?dryRun=All", patch, JSON_PATCH)
    except Refused as error:
        if "ValidatingAdmissionPolicy 'muster-operator-" not in str(error):
            raise
        return str(error)
    return ""


def test_of_a_job_set_that_queues_the_operator_changes_no_container(plane: ControlPlane) -> None:
    gate = {"op": "add", "path": f"{TEMPLATE}/spec/schedulingGates", "value": [{"name": "muster.dev/admission"}]}
    assert refused(plane, f"{SETS}/queued", resume(), gate) == ""
    image = {"op": "replace", "path": f"{TEMPLATE}/spec/containers/0/image", "value": "other"}
    more = {"op": "add", "path": f"{TEMPLATE}/spec/initContainers", "value": [{"name": "i", "image": "other"}]}
    for change in (image, more):
        assert "does not change containers" in refused(plane, f"{SETS}/queued", change)
    assert "with the label muster.dev/queue" in refused(plane, f"{SETS}/other", resume())


def test_of_a_train_job_that_queues_the_operator_writes_one_runtime_patch_without_a_program(
    plane: ControlPlane,
) -> None:
    def add(one: Json) -> Json:
        return {"op": "add", "path": "/spec/runtimePatches/-", "value": one}

    assert refused(plane, f"{TRAIN}/queued", resume(), add(entry("muster.dev/operator"))) == ""
    for field in ({"serviceAccountName": "admin"}, {"volumes": [{"name": "v", "emptyDir": {}}]}):
        why = refused(plane, f"{TRAIN}/queued", add(entry("muster.dev/operator", **field)))
        assert "changes scheduling gates of a TrainJob's pods only" in why
    assert "scheduling gates" in refused(plane, f"{TRAIN}/queued", add(entry("example.com/another")))
    assert "scheduling gates" in refused(plane, f"{TRAIN}/queued", {"op": "remove", "path": "/spec/runtimePatches/0"})
    assert "with the label muster.dev/queue" in refused(plane, f"{TRAIN}/other", resume())
