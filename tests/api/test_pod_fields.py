"""Fields that Kubernetes does not know: refused on one host, a warning for a cluster that may be newer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.local.support import shell_job

from muster.api.spec import TrainingJob
from muster.api.yaml_input import load_objects, parse_objects
from muster.errors import InvalidSpec
from muster.local.job_checks import check_local_support

CONTAINER = "spec.roles[0].template.spec.containers[0]"


def job(template: dict[str, Any] | None = None, **container: Any) -> str:
    command: dict[str, Any] = {"command": ["true"], **container}
    roles = [{"name": "w", "template": {"spec": {"containers": [command]}, **(template or {})}}]
    head = {"apiVersion": "muster.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": "llama"}}
    return yaml.safe_dump({**head, "spec": {"roles": roles}})


def pod(**spec: Any) -> str:
    return job({"spec": {"containers": [{"command": ["true"]}], **spec}})


UNKNOWN = [
    (job(env=[{"name": "A", "valeu": "1"}]), f"{CONTAINER}.env[0].valeu", "value"),
    (job(env=[{"name": "A", "valueFrom": {"fieldRef": {"fieldPth": "x"}}}]),
     f"{CONTAINER}.env[0].valueFrom.fieldRef.fieldPth", "fieldPath"),
    (job(comand=["true"]), f"{CONTAINER}.comand", "command"),
    (job(stdin_once=True), f"{CONTAINER}.stdin_once", "stdinOnce"),
    (job(lifecycle={"preStp": {}}), f"{CONTAINER}.lifecycle.preStp", "preStop"),
    (job(securityContext={"runAsUsr": 1}), f"{CONTAINER}.securityContext.runAsUsr", "runAsUser"),
    (job(xyzzy=1), f"{CONTAINER}.xyzzy", None),
    (pod(affinity={"podAffinty": {}}), "spec.roles[0].template.spec.affinity.podAffinty", "podAffinity"),
    (pod(volumes=[{"name": "v", "emptyDir": {"sizeLimt": 1}}]),
     "spec.roles[0].template.spec.volumes[0].emptyDir.sizeLimt", "sizeLimit"),
    (pod(tolerations=[{"key": "a", "tolerationSecs": 1}]),
     "spec.roles[0].template.spec.tolerations[0].tolerationSecs", "tolerationSeconds"),
    (job({"metadata": {"lables": {}}, "spec": {"containers": [{"command": ["true"]}]}}),
     "spec.roles[0].template.metadata.lables", "labels"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "field", "nearest"), UNKNOWN)
def test_a_field_that_kubernetes_does_not_know_is_refused_at_every_depth_with_the_nearest_name(
    text: str, field: str, nearest: str | None
) -> None:
    with pytest.raises(InvalidSpec) as refused:
        load_objects(text, "job.yaml")
    assert refused.value.field == field
    assert str(refused.value).count("unknown field") == 1
    assert f"did you mean {nearest!r}?" in str(refused.value) or nearest is None


def test_a_field_that_only_a_newer_cluster_may_know_is_no_error_for_a_cluster() -> None:
    text = job(xyzzy={"deep": [1]}, lifecycle={"preStp": {}})
    (placed,) = parse_objects(text, "job.yaml", allow_unknown_pod_fields=True)
    assert [doubt.partition("unknown field")[0].split()[1] for doubt in placed.warnings] == [
        f"{CONTAINER}.lifecycle.preStp:",
        f"{CONTAINER}.xyzzy:",
    ]
    assert isinstance(placed.item, TrainingJob)
    assert placed.item.spec.roles[0].template.spec.containers[0].model_extra == {
        "xyzzy": {"deep": [1]},
        "lifecycle": {"preStp": {}},
    }


@pytest.mark.parametrize("given", [{"name": "mine"}, {"labels": {}, "ownerReferences": []}, {"finalizers": ["a/b"]}])
def test_a_field_of_a_templates_metadata_that_no_pod_gets_is_refused_and_for_a_cluster_a_warning(
    given: dict[str, Any],
) -> None:
    text = job({"metadata": given, "spec": {"containers": [{"command": ["true"]}]}})
    with pytest.raises(InvalidSpec, match="labels and annotations") as refused:
        load_objects(text, "job.yaml")
    assert refused.value.field == f"spec.roles[0].template.metadata.{list(given)[-1]}"
    (placed,) = parse_objects(text, "job.yaml", allow_unknown_pod_fields=True)
    assert len(placed.warnings) == 1


def test_a_field_of_a_templates_metadata_that_says_nothing_is_no_error() -> None:
    assert load_objects(job({"metadata": {"creationTimestamp": None}, "spec": {"containers": [{"command": ["true"]}]}}))


def test_names_that_users_choose_are_no_fields() -> None:
    free = {"labels": {"any/thing": "x"}, "annotations": {"lables": "y"}}
    containers = [{"command": ["true"], "resources": {"limits": {"example.com/odd": 1}}}]
    text = job({"metadata": free, "spec": {"containers": containers, "nodeSelector": {"xyzzy": "a"}}})
    assert load_objects(text)


def test_this_host_refuses_an_unknown_field_of_a_job_that_was_not_read_from_a_file() -> None:
    wanted = shell_job("odd", "true")
    document = wanted.model_dump(by_alias=True, exclude_unset=True)
    document["spec"]["roles"][0]["template"]["spec"]["containers"][0]["env"] = [{"name": "A", "vlaue": "1"}]
    with pytest.raises(InvalidSpec) as refused:
        check_local_support(TrainingJob.model_validate(document), {"PATH": "/bin:/usr/bin"})
    assert refused.value.field == f"{CONTAINER}.env[0].vlaue"
    assert "did you mean 'value'?" in str(refused.value)
    document["spec"]["roles"][0]["template"] = {"metadata": {"name": "mine"}, **wanted_template(wanted)}
    with pytest.raises(InvalidSpec) as refused:
        check_local_support(TrainingJob.model_validate(document), {"PATH": "/bin:/usr/bin"})
    assert refused.value.field == "spec.roles[0].template.metadata.name"


def wanted_template(job: TrainingJob) -> dict[str, Any]:
    return job.spec.roles[0].template.model_dump(by_alias=True, exclude_unset=True)


def test_submit_to_a_cluster_warns_of_a_field_that_it_may_not_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from muster.cli.manifests import SpecOverrides, load_jobs

    file = tmp_path / "job.yaml"
    file.write_text(job(xyzzy=1))
    monkeypatch.setenv("MUSTER_CONTEXT", "prod")
    (read,) = load_jobs(str(file), SpecOverrides(queue="other", namespace="team"))
    assert read.job.spec.queue == "other"
    warnings = capsys.readouterr().err.splitlines()
    assert len(warnings) == 1
    assert warnings[0].startswith(f"warning: {file}:")
    assert f"{CONTAINER}.xyzzy" in warnings[0]
