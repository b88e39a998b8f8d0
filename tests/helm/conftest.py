"""Fixtures that run Helm for tests of the chart. No control plane is needed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cluster.controlplane.binaries import Unavailable, ensure

ROOT = Path(__file__).resolve().parent.parent.parent
CHART = ROOT / "helm" / "muster"
HERE = Path(__file__).parent
SKIP = "MUSTER_SKIP_CLUSTER"

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Render = Callable[..., list[dict[str, Any]]]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker("cluster")
            if os.environ.get(SKIP) == "1":
                item.add_marker(pytest.mark.skip(reason=f"{SKIP}=1"))


@pytest.fixture(scope="session")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run Helm on the chart without the user's Helm settings: helm("lint", "--strict")."""
    try:
        program = ensure(["helm"])["helm"].path
    except Unavailable as error:
        pytest.fail(str(error), pytrace=False)
    home = str(tmp_path_factory.mktemp("helm"))
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("HELM_", "XDG_", "KUBE"))}

    def run(verb: str, *arguments: str, release: str = "m") -> subprocess.CompletedProcess[str]:
        names = (release, str(CHART)) if verb == "template" else (str(CHART),)
        command = [str(program), verb, *names, "--kube-version=1.29.0", *arguments]
        return subprocess.run(command, env=environment | {"HOME": home}, capture_output=True, text=True, check=False)

    return run


@pytest.fixture(scope="session")
def render(helm: Run) -> Render:
    """The objects that the chart renders for these values: render("replicas=1")."""

    def objects(*values: str, extra: tuple[str, ...] = ()) -> list[dict[str, Any]]:
        settings = [f"--set={value}" for value in ("image.repository=registry.example.com/operator", *values)]
        done = helm("template", "--namespace=muster-system", *settings, *extra)
        assert done.returncode == 0, done.stderr
        return [item for item in yaml.safe_load_all(done.stdout) if item]

    return objects
