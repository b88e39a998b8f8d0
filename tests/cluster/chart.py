"""The chart, installed with Helm on a control plane."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.cluster.controlplane.api import Api
from tests.cluster.controlplane.binaries import Unavailable
from tests.cluster.controlplane.plane import ControlPlane
from tests.manifests.objects import job

ROOT = Path(__file__).resolve().parent.parent.parent
CHART = ROOT / "helm" / "muster"
SYSTEM = "muster-system"
OPERATOR = "muster-operator"
GROUP = "/apis/muster.dev/v1alpha1"
Object = dict[str, Any]


def start(folder: Path) -> ControlPlane:
    try:
        plane = ControlPlane.start(folder)
    except Unavailable as error:
        pytest.fail(str(error), pytrace=False)
    plane.add_nodes(2)
    return plane


def install(plane: ControlPlane, chart: Path = CHART, *settings: str) -> str:
    image = (
        "--set=image.repository=registry.example.com/operator,collector.image.repository=registry.example.com/trainer"
    )
    flags = ("--namespace", SYSTEM, "--create-namespace", "--wait", "--timeout=400s", image)
    return plane.helm("upgrade", "--install", "muster", str(chart), *flags, *settings)


def in_team(api: Api, **spec: Any) -> str:
    item = job(**spec)
    item["metadata"]["namespace"] = "team-a"
    api.create(f"{GROUP}/namespaces/team-a/trainingjobs", item)
    return f"{GROUP}/namespaces/team-a/trainingjobs/j"
