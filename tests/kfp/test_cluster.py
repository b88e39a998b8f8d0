"""Which cluster a step uses, and the resources that were set on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from muster.errors import InvalidSpec, NotFound, Refused
from muster.kfp.step import connect

KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: a
contexts:
- {name: a, context: {cluster: c, user: u, namespace: team-a}}
- {name: b, context: {cluster: c, user: u, namespace: team-b}}
clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: u, user: {token: t}}]
"""


@pytest.fixture
def environ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    (tmp_path / "config").write_text(KUBECONFIG)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    return {"KFP_POD_NAME": "step"}


@pytest.mark.parametrize(
    ("selected", "namespace"),
    [
        ({"MUSTER_CLUSTER": "kubernetes"}, "team-a"),
        ({"MUSTER_CONTEXT": "b"}, "team-b"),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "team-a"),  # in a pod
    ],
)
def test_the_environment_or_the_pod_names_the_cluster_and_its_namespace(
    environ: dict[str, str], selected: dict[str, str], namespace: str
) -> None:
    cluster = connect(environ | selected)
    assert (cluster.in_cluster, cluster.namespace) == (True, namespace)


def test_another_kind_of_cluster_is_refused(environ: dict[str, str]) -> None:
    with pytest.raises(InvalidSpec, match="MUSTER_CLUSTER: must be local or kubernetes; got 'slurm'"):
        connect(environ | {"MUSTER_CLUSTER": "slurm"})


@pytest.mark.parametrize("error", [Refused("pods is forbidden", reason="Forbidden"), NotFound("no pod 'step'")])
def test_resources_that_cannot_be_read_are_left_out_with_a_message(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Refused
) -> None:
    def get(self: Any, path: str) -> Any:
        assert path == "/api/v1/namespaces/team-a/pods/step"
        raise error

    monkeypatch.setattr("muster.kube.sync_client.KubeClient.get", get)
    assert connect(environ | {"MUSTER_CLUSTER": "kubernetes"}).step_resources() == {}
    assert f"the resources set on the step cannot be read, and are not passed on: {error}" in capsys.readouterr().out


def test_resources_are_those_of_the_container_of_the_step(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    containers = [
        {"name": "wait", "resources": {"limits": {"cpu": "1"}}},
        {"name": "main", "resources": {"limits": {"memory": "64Gi"}}},
    ]
    monkeypatch.setattr(
        "muster.kube.sync_client.KubeClient.get", lambda self, path: {"spec": {"containers": containers}}
    )
    cluster = connect(environ | {"MUSTER_CLUSTER": "kubernetes"})
    assert cluster.step_resources() == {"requests": {}, "limits": {"memory": "64Gi"}}
