"""A user at a terminal: `muster` and `torchx` against a cluster with a running operator."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.operator.pools import Pool

CORE_RULES = [
    {
        "apiGroups": ["muster.dev"],
        "resources": ["trainingjobs"],
        "verbs": ["get", "list", "watch", "create", "update", "patch", "delete"],
    },
    {"apiGroups": [""], "resources": ["pods", "pods/log", "events"], "verbs": ["get", "list"]},
]
"""Rules of a role for users who run jobs in a namespace."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one command ended and what it said."""

    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[Any]:
        """Its JSON."""
        rows = json.loads(self.out)
        assert isinstance(rows, list)
        return rows


Muster = Callable[..., Outcome]


@pytest.fixture
def muster(pool: Pool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Muster:
    """`muster("jobs", "--json")` as the administrator, in the namespace of the test; `user=` as another user."""
    from muster.cli.app import main

    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "160")

    def run(*words: str, user: str = "admin") -> Outcome:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(("--kubeconfig", kubeconfig(pool, user), *words))
        captured = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return Outcome(ended.value.code, captured.out, captured.err)

    return run


@pytest.fixture
def torchx(pool: Pool, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """`torchx("run", ...)` in a process of its own."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "torchx.cli.main", *arguments]
        environ = {**os.environ, "KUBECONFIG": kubeconfig(pool), "NO_COLOR": "1", "HOME": str(tmp_path)}
        return subprocess.run(command, capture_output=True, text=True, env=environ, check=False)

    return run


@pytest.fixture
def alice(pool: Pool) -> str:
    """A user who may run jobs in the test's namespace, and read nothing of the cluster."""
    rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{pool.namespace}"
    pool.api.create(f"{rbac}/roles", {"metadata": {"name": "runs-jobs"}, "rules": CORE_RULES})
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "runs-jobs"}
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "alice"}
    pool.api.create(
        f"{rbac}/rolebindings", {"metadata": {"name": "runs-jobs"}, "roleRef": reference, "subjects": [subject]}
    )
    asks = {"namespace": pool.namespace, "group": "muster.dev", "resource": "trainingjobs", "verb": "create"}
    review = {"spec": {"user": "alice", "groups": ["team-a", "system:authenticated"], "resourceAttributes": asks}}
    reviews = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    pool.wait("alice may", lambda: pool.api.create(reviews, review)["status"]["allowed"])
    return "alice"


def kubeconfig(pool: Pool, user: str = "admin") -> str:
    """A file whose context has the namespace of the test."""
    return str(pool.plane.kubeconfig(user, namespace=pool.namespace))


def file_of(folder: Path, document: dict[str, Any]) -> str:
    """The object in a file."""
    path = folder / f"{document['metadata']['name']}.yaml"
    path.write_text(json.dumps(document))
    return str(path)


def let_read_queues(pool: Pool, user: str) -> Callable[[], None]:
    """Let a user read queues and flavors; call what comes back to take it away again."""
    rbac, name = "/apis/rbac.authorization.k8s.io/v1", f"reads-queues-{pool.namespace}"
    rules = [{"apiGroups": ["muster.dev"], "resources": ["queues", "flavors"], "verbs": ["get", "list"]}]
    pool.api.create(f"{rbac}/clusterroles", {"metadata": {"name": name}, "rules": rules})
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}
    binding = {"metadata": {"name": name}, "roleRef": reference, "subjects": [subject]}
    pool.api.create(f"{rbac}/clusterrolebindings", binding)

    def undo() -> None:
        pool.api.delete(f"{rbac}/clusterrolebindings/{name}")
        pool.api.delete(f"{rbac}/clusterroles/{name}")

    return undo
