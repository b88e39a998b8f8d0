"""Impersonation and `tls-server-name` of a kubeconfig, as the API server sees them, with both clients."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cluster.operator.pools import Pool
from tests.cluster.users.conftest import kubeconfig

from muster.errors import ClusterError
from muster.kube.async_client import ApiRateLimits, AsyncKubeClient
from muster.kube.config import ClientConfig, KubeContext, load_config
from muster.kube.sync_client import KubeClient

ACTING = {
    "as": "zoë",
    "as-uid": "17",
    "as-groups": ["readers", "writers"],
    "as-user-extra": {"example.com/Scopes 100%": ["view", "list"]},
}
REVIEWS = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
REVIEW = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview", "metadata": {}}


def review_with_sync_client(config: ClientConfig) -> Any:
    """Who the API server says that we are."""
    return KubeClient(config).request("POST", REVIEWS, REVIEW)


def review_with_async_client(config: ClientConfig) -> Any:
    """The same, with the operator's client."""

    async def post() -> bytes:
        async with AsyncKubeClient(config, ApiRateLimits()) as api:
            return await api.post(REVIEWS, json.dumps(REVIEW).encode())

    return json.loads(asyncio.run(post()))


CLIENTS = pytest.mark.parametrize("review", [review_with_sync_client, review_with_async_client])
Review = Callable[[ClientConfig], Any]


def load(pool: Pool, folder: Path, user: dict[str, Any], cluster: dict[str, Any]) -> ClientConfig:
    """The administrator's configuration with other fields."""
    document = yaml.safe_load(Path(kubeconfig(pool)).read_text())
    for entry in document["users"]:
        entry["user"] |= user
    for entry in document["clusters"]:
        entry["cluster"] |= cluster
    (folder / "config").write_text(yaml.safe_dump(document))
    return load_config(KubeContext(str(folder / "config")), {})


@CLIENTS
def test_the_server_treats_an_administrator_as_the_impersonated_user(
    pool: Pool, tmp_path: Path, review: Review
) -> None:
    assert review(load(pool, tmp_path, ACTING, {}))["status"]["userInfo"] == {
        "username": "zoë",
        "uid": "17",
        "groups": ["readers", "writers", "system:authenticated"],
        "extra": {"example.com/scopes 100%": ["view", "list"]},
    }


@CLIENTS
def test_the_certificate_is_verified_for_tls_server_name(pool: Pool, tmp_path: Path, review: Review) -> None:
    with pytest.raises(ClusterError, match="certificate"):
        review(load(pool, tmp_path, {}, {"tls-server-name": "other.example"}))
