"""Impersonation in a kubeconfig, as the API server receives it."""

from __future__ import annotations

from pathlib import Path

import yaml
from tests.cluster.operator.pools import Pool
from tests.cluster.users.conftest import kubeconfig

from muster.kube.config import KubeContext, load_config
from muster.kube.sync_client import KubeClient

ACTING = {
    "as": "zoë",
    "as-uid": "17",
    "as-groups": ["readers", "writers"],
    "as-user-extra": {"example.com/Scopes 100%": ["view", "list"]},
}


def test_the_server_treats_an_administrator_as_the_impersonated_user(pool: Pool, tmp_path: Path) -> None:
    document = yaml.safe_load(Path(kubeconfig(pool)).read_text())
    for entry in document["users"]:
        entry["user"] |= ACTING
    (tmp_path / "config").write_text(yaml.safe_dump(document))
    connection = KubeClient(load_config(KubeContext(str(tmp_path / "config")), {}))
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview", "metadata": {}}
    answer = connection.request("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", review)
    assert answer["status"]["userInfo"] == {
        "username": "zoë",
        "uid": "17",
        "groups": ["readers", "writers", "system:authenticated"],
        "extra": {"example.com/scopes 100%": ["view", "list"]},
    }
