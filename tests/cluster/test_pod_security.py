"""Pod Security: our levels against those of the API server, and pods of our own in a namespace that enforces it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.api.pod_security_templates import ALLOWED, BOTH, RESTRICTED, Json
from tests.cluster.controlplane.api import Refused
from tests.cluster.controlplane.plane import ControlPlane

from muster.api.pod_security import PodSecurityLevel, pod_security_violations

LEVELS: tuple[PodSecurityLevel, ...] = ("privileged", "baseline", "restricted")
TEMPLATES = {
    **ALLOWED,
    **{name: bad for name, (bad, _) in BOTH.items()},
    **{name: bad for name, (bad, _) in RESTRICTED.items()},
}


@pytest.fixture(scope="module")
def namespaces(control_plane: ControlPlane) -> Iterator[dict[PodSecurityLevel, str]]:
    """A namespace for each level, which its pods must meet."""
    names: dict[PodSecurityLevel, str] = {level: f"enforces-{level}" for level in LEVELS}
    api = control_plane.api
    for level, name in names.items():
        labels = {"pod-security.kubernetes.io/enforce": level}
        api.create("/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
    accounts = [f"/api/v1/namespaces/{name}/serviceaccounts/default" for name in names.values()]
    control_plane.wait_for("each has its account", lambda: not any(map(api.gone, accounts)))
    yield names
    for name in names.values():
        api.delete(f"/api/v1/namespaces/{name}")


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
def test_the_api_server_refuses_the_same_templates_at_each_level(
    control_plane: ControlPlane, namespaces: dict[PodSecurityLevel, str], template: Json
) -> None:
    found = pod_security_violations(template)
    pod = {"metadata": {"generateName": "p-", **template.get("metadata", {})}, "spec": template["spec"]}
    for level, namespace in namespaces.items():
        answer = refusal(control_plane, namespace, pod)
        assert bool(answer) == bool(found.at(level)), (level, answer, found)
        assert answer == "" or f'violates PodSecurity "{level}' in answer


def refusal(control_plane: ControlPlane, namespace: str, pod: Json) -> str:
    """Why the API server refuses a pod; "" where it does not."""
    try:
        control_plane.api.create(f"/api/v1/namespaces/{namespace}/pods?dryRun=All", pod)
    except Refused as error:
        return str(error)
    return ""
