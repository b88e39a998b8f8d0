"""Which run folders and checkpoints outlive their pods."""

from __future__ import annotations

from typing import Any

import pytest
from tests.operator.objects import job, template
from tests.operator.run_folders import CLAIM, elsewhere

from muster_operator.cache.specs import trim_template
from muster_operator.pod_builder.collector import CollectorSidecarConfig, has_collector
from muster_operator.pod_builder.run_folder import has_durable_checkpoints, has_durable_run_folder

IMAGE = CollectorSidecarConfig(image="registry.example.com/trainer:1")
DISK = {"name": "disk", "persistentVolumeClaim": {"claimName": "x"}}
SCRATCH = {"name": "scratch", "emptyDir": {}}
DATA = ({"name": "disk", "mountPath": "/data"}, {"name": "scratch", "mountPath": "/data/scratch"})


def mounting(*mounts: dict[str, Any], volumes: Any = (DISK, SCRATCH)) -> dict[str, Any]:
    wanted = template(volumes=list(volumes))
    wanted["spec"]["containers"][0]["volumeMounts"] = list(mounts)
    return wanted


@pytest.mark.parametrize("kind", ["emptyDir", "ephemeral"])
def test_an_ephemeral_volume_is_no_durable_run_folder(kind: str) -> None:
    one = job(roles=[{"name": "trainer", "template": template(volumes=[{"name": "muster-run", kind: {}}])}])
    assert not has_durable_run_folder(one.spec.roles[0])
    assert not has_collector(one.spec, "trainer", 0, IMAGE)


def test_a_custom_run_folder_is_durable_if_its_volume_is() -> None:
    mounts = ({"name": "scratch", "mountPath": "/data"}, {"name": "disk", "mountPath": "/data/runs"})
    for run_dir, is_kept in (("/data/runs/$(MUSTER_JOB)", True), ("/data/x", False), ("/other", False)):
        one = job(roles=[{"name": "r", "template": elsewhere(run_dir, *mounts, volumes=(DISK, SCRATCH))}])
        assert has_durable_run_folder(one.spec.roles[0]) is is_kept


@pytest.mark.parametrize(
    ("wanted", "checkpoint_dir", "is_kept"),
    [
        (mounting(*DATA), "/data/checkpoints", True),
        (mounting(*DATA), "/data/scratch/checkpoints", False),
        (mounting(*DATA), "/data/scratch/../checkpoints", True),
        (mounting(*DATA), "/tmp/checkpoints", False),
        (mounting(*DATA), "checkpoints", False),
        (mounting(*DATA), None, False),
        (mounting(*DATA, volumes=(CLAIM, SCRATCH)), "/data/scratch", False),
        (mounting(*DATA, volumes=(CLAIM, SCRATCH)), "checkpoints", True),
        (mounting({"name": "muster-run", "mountPath": "/r"}, volumes=(CLAIM,)), "checkpoints", True),
        (mounting({"name": "muster-run", "mountPath": "/r"}, volumes=(CLAIM,)), "../r2", False),
        (elsewhere("/data/scratch/a", *DATA, volumes=(DISK, SCRATCH)), "../../saved", True),
        (elsewhere("/data/a", *DATA, volumes=(DISK, SCRATCH)), "checkpoints", True),
    ],
)
def test_checkpoints_are_durable_if_the_volume_of_their_folder_is(
    wanted: dict[str, Any], checkpoint_dir: str | None, is_kept: bool
) -> None:
    one = job(roles=[{"name": "trainer", "template": wanted}], checkpointDir=checkpoint_dir)
    (role,) = one.spec.roles
    trimmed = role.model_copy(update={"template": trim_template(role.template)})
    assert [has_durable_checkpoints(one.spec, kept) for kept in (role, trimmed)] == [is_kept, is_kept]
    assert has_collector(one.spec, "trainer", 0, IMAGE) is is_kept


def test_of_a_template_with_very_many_mounts_only_that_of_the_run_folder_is_kept() -> None:
    many = [{"name": "scratch", "mountPath": f"/m{number}"} for number in range(40)]
    wanted = mounting(*many, {"name": "muster-run", "mountPath": "/r", "readOnly": False}, volumes=(CLAIM, SCRATCH))
    trimmed = trim_template(job(roles=[{"name": "trainer", "template": wanted}]).spec.roles[0].template)
    assert trimmed.spec.containers[0].volume_mounts == [{"name": "muster-run", "mountPath": "/r"}]
    assert trimmed.spec.volumes == [CLAIM]
